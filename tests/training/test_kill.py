"""Ten SIGKILLs at random moments change nothing: metrics and weights end bit for bit the same."""

import json
import os
import random
import subprocess
import sys
import time

import pytest

from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Recording
from glu_lab.training.environment import execution_hash
from tests.training.small import metrics_lines, retrained, small_experiment, without_times
from tests.training.test_resume import assert_same_state, state_of

KILLS = 10

CONFIG = """
import json
from pathlib import Path

from glu_lab.configs import experiment_config


def get_config():
    return experiment_config(**json.loads(Path({path!r}).read_text()))
"""


def start(config, run, cache):
    return subprocess.Popen(
        [
            sys.executable, "-m", "glu_lab.cli.main", "train", f"--config={config}",
            f"--workdir={run}",
        ],
        env={
            **os.environ,
            "GLU_LAB_CACHE": str(cache),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def newest(run):
    """Step of the newest complete checkpoint; -1 for none."""
    try:
        return max(int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdigit())
    except (OSError, ValueError):
        return -1


@pytest.mark.heavy
def test_ten_kills_at_random_moments_change_nothing(dataset, tmp_path):
    experiment = retrained(small_experiment(dataset.spec), steps=1000)
    recording = Recording(log_every=7, eval_every=50, telemetry_every=33, checkpoint_every=10)
    tree = {**encode(experiment), "recording": encode(recording)}
    (tmp_path / "experiment.json").write_text(json.dumps(tree))
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(path=str(tmp_path / "experiment.json")))
    cache = tmp_path / "cache"

    # Uninterrupted, in a process of its own; it also fills the compilation cache.
    assert start(config, tmp_path / "whole", cache).wait(timeout=900) == 0

    run = tmp_path / "killed"
    draw = random.Random(0)
    reached = []
    while len(reached) < KILLS:
        process = start(config, run, cache)
        before = newest(run)
        try:
            if len(reached) % 5 == 4:
                # Anywhere at all: imports, compilation, restoring, training.
                time.sleep(draw.uniform(0.0, 6.0))
            else:
                # In training: some while after it got past the last checkpoint.
                end = time.monotonic() + 300
                while newest(run) <= before and process.poll() is None:
                    assert time.monotonic() < end
                    time.sleep(0.005)
                time.sleep(draw.uniform(0.0, 0.3))
            assert process.poll() is None, "the run ended before it could be killed"
        finally:
            process.kill()
            process.wait()
        reached.append(newest(run))
        assert not (run / "summary.json").exists()
    assert len(set(reached)) > 5, reached

    assert start(config, run, cache).wait(timeout=900) == 0

    assert without_times(metrics_lines(run)) == without_times(metrics_lines(tmp_path / "whole"))
    assert_same_state(
        state_of(tmp_path / "whole", experiment, dataset), state_of(run, experiment, dataset)
    )
    numbers = ("log_perplexity", "log_perplexity_se", "bits_per_byte", "accuracy", "tokens_seen")
    one, two = (
        json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "whole", run)
    )
    assert {name: one[name] for name in numbers} == {name: two[name] for name in numbers}
    sessions = json.loads((run / "environment.json").read_text())
    assert {session["execution_hash"] for session in sessions} == {one["execution_hash"]}
    assert execution_hash(experiment.execution) == one["execution_hash"]

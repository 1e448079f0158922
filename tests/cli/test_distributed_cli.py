"""``glu-lab train --distributed``: several processes on this machine, over loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import call

STEPS = 40
FLAGS = [f"--config.training.steps={STEPS}", "--config.recording.checkpoint_every=5",
         "--config.recording.eval_every=0", "--config.recording.log_every=5",
         "--config.data.logical_shards=4"]  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(config, workdir, processes, devices, mesh):
    """The processes of a run, each with some virtual devices."""
    coordinator = f"127.0.0.1:{free_port()}"
    # Every process compiles for itself, so as little as can be.
    flags = f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={devices}"
    return [
        subprocess.Popen(
            [
                sys.executable, "-m", "glu_lab.cli.main", "train", f"--config={config}",
                f"--workdir={workdir}", f"--mesh={mesh}", "--distributed",
                f"--coordinator={coordinator}", f"--processes={processes}", f"--process={process}",
                "--json", *FLAGS,
            ],
            env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(processes)
    ]  # fmt: skip


def finish(run):
    """(Exit code, stdout, stderr) of every process."""
    return [(process.wait(), *process.communicate(timeout=300)) for process in run]


def steps_saved(workdir):
    folder = workdir / "checkpoints"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [int(name) for name in names if name.isdigit()]


@pytest.mark.slow
def test_2_by_2_loses_a_process_and_4_by_1_end_as_one_process_would(
    tiny_config, cli_cache, tmp_path
):
    whole = call(
        "train", f"--config={tiny_config}", "--workdir", tmp_path / "whole", "--json", *FLAGS
    )
    assert whole.code == 0, whole.err

    workdir = tmp_path / "run"
    run = start(tiny_config, workdir, 2, 2, "data=2,fsdp=2")
    while not steps_saved(workdir):
        assert all(process.poll() is None for process in run), finish(run)
        time.sleep(0.02)
    run[1].send_signal(signal.SIGKILL)
    (code, out, err), _ = finish(run)
    # 2 when a collective failed; an abort by JAX's runtime when it waited for something else.
    assert code in (2, -signal.SIGABRT) and not out, (code, err)
    saved = max(steps_saved(workdir))
    assert saved < STEPS
    assert "another process of this run ended" in err or "another one of the run" in err
    assert f"goes on from the checkpoint of step {saved}" in err
    assert not (workdir / "summary.json").exists()

    leader, *others = finish(start(tiny_config, workdir, 4, 1, "data=4"))
    assert leader[0] == 0, leader[2]
    assert [(code, out) for code, out, _ in others] == [(0, "")] * 3
    summary = json.loads(leader[1].splitlines()[-1])
    assert summary == json.loads((workdir / "summary.json").read_text())
    for name in ("log_perplexity", "log_perplexity_se", "accuracy"):
        # The order of float32 sums over rows differs, for forty steps.
        assert summary[name] == pytest.approx(whole.json[name], rel=1e-4), name
    for name in ("tokens_seen", "validation_tokens", "identity_hash", "steps"):
        assert summary[name] == whole.json[name], name
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    logged = [line["step"] for line in lines if line["kind"] == "train"]
    assert logged == list(range(5, STEPS + 1, 5))
    sessions = json.loads((workdir / "environment.json").read_text())
    assert len(sessions) == 2


@pytest.mark.slow
def test_when_process_0_dies_the_others_say_how_to_go_on(tiny_config, cli_cache, tmp_path):
    workdir = tmp_path / "run"
    run = start(tiny_config, workdir, 2, 1, "data=2")
    while not steps_saved(workdir):
        assert all(process.poll() is None for process in run), finish(run)
        time.sleep(0.02)
    run[0].send_signal(signal.SIGKILL)
    _, (code, _, err) = finish(run)
    assert code != 0
    assert "The same command, in all processes, goes on from the checkpoint of step" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--processes=2"], "--coordinator, --processes and --process need --distributed"),
        (["--distributed", "--processes=2"], "--coordinator, --process missing"),
        (
            ["--distributed", "--coordinator=here", "--processes=2", "--process=0"],
            "write host:port",
        ),
        (
            ["--distributed", "--coordinator=127.0.0.1:1", "--processes=2", "--process=2"],
            "count from 0",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused(tiny_config, tmp_path, flags, said):
    result = call("train", f"--config={tiny_config}", "--workdir", tmp_path / "run", *flags)
    assert result.code == 2 and said in result.err
    assert not (tmp_path / "run").exists()

"""``glu-lab train`` as a user types it."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from glu_lab.training import loop
from tests.cli.conftest import call


@pytest.mark.slow
def test_a_run_ends_with_its_number_and_its_files(trained_decoder):
    folder, result = trained_decoder
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert f"complete: log-perplexity {summary['log_perplexity']:.4f} ± " in result.err
    assert f"{summary['bits_per_byte']:.4f} bits per byte" in result.err
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "manifest.json", "environment.json", "metrics.jsonl", "summary.json",
        "tokenizer.model", "checkpoints",
    }  # fmt: skip


@pytest.mark.slow
def test_json_is_the_summary_and_nothing_else_on_stdout(trained_pair):
    folder, result = trained_pair
    assert result.out.count("\n") == 1
    assert result.json == json.loads((folder / "summary.json").read_text())
    # A span's target is not the text.
    assert result.json["bits_per_byte"] is None


@pytest.mark.slow
def test_a_finished_run_is_told_again_at_once(trained_decoder, tiny_config):
    folder, _ = trained_decoder
    before = (folder / "environment.json").read_bytes()
    again = call("train", f"--config={tiny_config}", "--workdir", folder)
    assert again.code == 0 and "complete: log-perplexity" in again.err
    assert (folder / "environment.json").read_bytes() == before


@pytest.mark.slow
def test_fields_are_set_by_flags(tiny_config, tmp_path, trained_decoder):
    result = call(
        "train", f"--config={tiny_config}", "--workdir", tmp_path / "run", "--json",
        "--config.seed=4", "--config.training.steps=2", "--config.recording.log_every=1",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert (result.json["seed"], result.json["steps"]) == (4, 2)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["recording"]["log_every"] == 1


@pytest.mark.slow
def test_another_config_in_the_same_folder_is_refused(trained_decoder, tiny_config):
    folder, _ = trained_decoder
    result = call("train", f"--config={tiny_config}", "--workdir", folder, "--config.seed=9")
    assert result.code == 2
    assert "belongs to another run" in result.err and "seed: 0 → 9" in result.err


@pytest.mark.slow
def test_divergence_is_told_and_the_exit_code_is_1(
    tiny_config, tmp_path, trained_decoder, monkeypatch
):
    monkeypatch.setattr(loop, "learning_rate", lambda *_: 1e30)
    result = call("train", f"--config={tiny_config}", "--workdir", tmp_path / "run")
    assert result.code == 1
    assert "diverged: non-finite at step 2" in result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--config.trainin.steps=3"], "trainin"),
        (["--config.training.step=3"], "step"),
        (["--config.training.steps=three"], "steps"),
        (["--config.training.steps=-1"], "steps"),
        (["--config.model.ffn.variant=swigluu"], "did you mean 'swiglu'"),
        (["--config.training.optimizer.kind=adamww"], "did you mean 'adamw'"),
        (["--config.training.microbatches=3"], "does not divide"),
        (["--config.execution.mesh=dat=1"], "did you mean 'data'"),
        (["--workdirr=x"], "did you mean '--workdir'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(flags, said, tiny_config, tmp_path):
    result = call("train", f"--config={tiny_config}", "--workdir", tmp_path / "run", *flags)
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "run").exists()


def test_a_missing_config_file_is_told_with_those_there_are(tmp_path):
    result = call("train", "--config=configs/no_such.py", "--workdir", tmp_path / "run")
    assert result.code == 2 and "no config file 'configs/no_such.py'" in result.err


def start(config, run, cache, *flags):
    """The command in a process of its own."""
    return subprocess.Popen(
        [
            sys.executable, "-W", "error", "-m", "glu_lab.cli.main", "train",
            f"--config={config}", f"--workdir={run}", *flags,
        ],
        env={
            **os.environ,
            "GLU_LAB_CACHE": str(cache),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def wait_for(condition, process, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        if process.poll() is not None:
            raise AssertionError(f"ended early: {process.stderr.read()[-2000:]}")
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_tells_how_to_go_on_and_exits_with_130(
    number, tiny_config, tmp_path, cli_cache, trained_decoder
):
    run = tmp_path / "a run"
    flags = ("--config.training.steps=100000",)
    process = start(tiny_config, run, cli_cache, *flags)
    metrics = run / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert (run / "checkpoints" / str(summary["steps"])).is_dir()
    # The command given can be pasted: the folder's blank is quoted.
    assert f"interrupted at step {summary['steps']}; a checkpoint is saved" in err
    told = err.split("Go on with:\n")[1].splitlines()[0]
    assert shlex.split(told)[:2] == ["glu-lab", "train"]
    assert f"--workdir={run}" in shlex.split(told)

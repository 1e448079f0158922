"""A run's folder belongs to one run, and to one session at a time."""

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glu_lab.errors import RecordError, RunInUseError
from glu_lab.spec.identity import identity
from glu_lab.training.loop import train
from glu_lab.training.record import LOCK_FILE, RunDirectory
from glu_lab.training.trained import TrainedRun
from tests.training.small import (
    content,
    metrics_lines,
    small_experiment,
    text_data,
    without_times,
)

EXPERIMENT = small_experiment(text_data(Path("corpus.jsonl")))

HOLD = """
import sys, time
from pathlib import Path
from glu_lab.training.record import RunDirectory
from tests.training.test_record import claim

run = claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.readline()
run.close()
print("closed", flush=True)
time.sleep(100)
"""


def claim(path):
    """A session that has begun, with nothing trained."""
    run = RunDirectory(path)
    run.claim(EXPERIMENT, b"pieces", {"identity": identity(EXPERIMENT, "f" * 64)}, {})
    return run


@contextlib.contextmanager
def holding(path):
    """Another process that has claimed the folder; it lets go when it reads a line."""
    command = [sys.executable, "-W", "error", "-c", HOLD, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "claimed\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def test_a_folder_that_another_process_trains_in_is_refused_until_that_one_is_gone(tmp_path):
    with holding(tmp_path / "run") as process:
        before = content(tmp_path / "run")
        assert json.loads(before[LOCK_FILE])["pid"] == process.pid
        with pytest.raises(RunInUseError, match=f"being trained by process {process.pid} on "):
            claim(tmp_path / "run")
        assert content(tmp_path / "run") == before
        # Looking at it needs no lock.
        RunDirectory(tmp_path / "run").check(EXPERIMENT)
        process.kill()
        process.wait()
    # SIGKILL left the file, and freed it.
    assert (tmp_path / "run" / LOCK_FILE).exists()
    claim(tmp_path / "run").close()
    assert not (tmp_path / "run" / LOCK_FILE).exists()


def test_a_session_that_ends_frees_the_folder_while_its_process_lives(tmp_path):
    with holding(tmp_path / "run") as process:
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        claim(tmp_path / "run").close()


def test_a_claim_that_fails_holds_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(RecordError, match="JSON takes"):
        run.claim(EXPERIMENT, b"", {"identity": identity(EXPERIMENT, "f"), "bad": float("nan")}, {})
    claim(tmp_path / "run").close()


def test_a_second_trainer_is_refused_and_a_reader_is_not_and_the_first_ends_the_same(
    finished, experiment, dataset, tmp_path
):
    run = tmp_path / "run"
    told = []

    def watch(entry):
        if entry["kind"] == "train" and entry["step"] == 5:
            with pytest.raises(RunInUseError, match=f"process {os.getpid()} on "):
                train(experiment, run, dataset=dataset)
            told.append(TrainedRun(run).step)

    summary = train(experiment, run, dataset=dataset, progress=watch)
    assert told == [4]
    assert summary["log_perplexity"] == finished[1]["log_perplexity"]
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(finished[0]))
    assert len(json.loads((run / "environment.json").read_text())) == 1
    assert not (run / LOCK_FILE).exists()


def test_a_folder_that_cannot_be_listed_is_told_and_nothing_is_written(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()

    def refuse(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        for use in (claim, lambda path: RunDirectory(path).check(EXPERIMENT)):
            with pytest.raises(RecordError, match=r"run cannot be read: Permission denied\."):
                use(run)
    assert content(run) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_place_behind_a_closed_folder_is_told(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(RecordError, match="cannot be read: Permission denied"):
            claim(tmp_path / "closed" / "run")
    finally:
        os.seteuid(0)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"run cannot be written: Not a directory\."):
        claim(tmp_path / "file" / "run")

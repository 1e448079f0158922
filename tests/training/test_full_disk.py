"""A disk that fills up while a run trains on it: a friendly error, and nothing lost."""

import pytest

from glu_lab.errors import RecordError
from glu_lab.training.loop import train
from glu_lab.training.record import RunDirectory
from tests.small_disk import mounted
from tests.training.small import metrics_lines, without_times
from tests.training.test_resume import assert_same_state, state_of


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; needs the right to mount one."""
    with mounted(tmp_path / "disk", "1m") as place:
        yield place


def fill(place):
    """Takes all the room there is, to the last byte."""
    with open(place / "ballast", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("full_after", [4, 5])
def test_a_run_stops_with_an_error_and_goes_on_once_there_is_room(
    full_after, small_disk, finished, experiment, dataset
):
    """Full before the second checkpoint (8), with a checkpoint at 4 written."""
    run = small_disk / "run"

    def watch(entry):
        # The line of step 5 is written before this is called, so the next to fail is a line of
        # metrics (6) or, where the file's last block has room, the checkpoint of step 8.
        if entry["step"] >= full_after and not (small_disk / "ballast").exists():
            fill(small_disk)

    with pytest.raises(RecordError, match=r"No space left|not written"):
        train(experiment, run, dataset=dataset, progress=watch)
    assert not (run / "summary.json").exists()
    (small_disk / "ballast").unlink()
    assert state_of(run, experiment, dataset)[0] == 4
    summary = train(experiment, run, dataset=dataset)
    assert summary["log_perplexity"] == finished[1]["log_perplexity"]
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(finished[0]))
    assert_same_state(
        state_of(finished[0], experiment, dataset), state_of(run, experiment, dataset)
    )


def test_a_disk_full_from_the_start_is_told_before_training(small_disk, experiment, dataset):
    fill(small_disk)
    with pytest.raises(RecordError, match="no space left"):
        train(experiment, small_disk / "run", dataset=dataset)


def test_a_summary_is_whole_or_not_there(small_disk):
    run = RunDirectory(small_disk)
    run.write_summary({"status": "interrupted"})
    fill(small_disk)
    with pytest.raises(RecordError, match=r"summary\.json was not written: no space left"):
        run.write_summary({"status": "complete", "text": "x" * 5000})
    assert run.summary() == {"status": "interrupted"}

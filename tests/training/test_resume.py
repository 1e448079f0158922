"""Runs repeat, and a run that was stopped anywhere ends as if it had not been."""

import dataclasses
import json
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from glu_lab.errors import DataError, RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Recording
from glu_lab.training.loop import train
from glu_lab.training.programs import program_key, programs
from tests.training.small import (
    content,
    killed_after,
    metrics_lines,
    retrained,
    text_data,
    without_times,
)


def state_of(run, experiment, dataset, step=None):
    """A checkpoint's arrays as NumPy, keys as their words."""
    checkpoints = Checkpoints(run / "checkpoints", 1, "read")
    try:
        abstract = programs(program_key(experiment, dataset)).abstract_state()
        step, state, loop = checkpoints.load(abstract, step)
    finally:
        checkpoints.close()
    state["rng"] = jax.random.key_data(state["rng"])
    return step, jax.tree.map(np.asarray, state), loop


def assert_same_state(one, other):
    """Equal bit for bit: parameters, optimiser, step, random key; and where the data stand."""
    assert one[0] == other[0]
    leaves = jax.tree.leaves_with_path(one[1])
    others = dict(jax.tree.leaves_with_path(other[1]))
    assert len(leaves) == len(others)
    for path, x in leaves:
        assert x.tobytes() == others[path].tobytes(), jax.tree_util.keystr(path)
    assert one[2]["iterator"] == other[2]["iterator"]


def test_the_same_config_gives_the_same_run(finished, experiment, dataset, tmp_path):
    folder, summary = finished
    again = train(experiment, tmp_path / "again", dataset=dataset)
    assert without_times(metrics_lines(tmp_path / "again")) == without_times(metrics_lines(folder))
    assert_same_state(
        state_of(folder, experiment, dataset), state_of(tmp_path / "again", experiment, dataset)
    )
    times = ("train_seconds", "wall_seconds", "tokens_per_second")
    assert {k: v for k, v in again.items() if k not in times} == {
        k: v for k, v in summary.items() if k not in times
    }


def test_another_seed_gives_another_run(finished, experiment, dataset, tmp_path):
    other = train(dataclasses.replace(experiment, seed=1), tmp_path / "run", dataset=dataset)
    assert other["log_perplexity"] != finished[1]["log_perplexity"]


# 4 and 8 lie inside the windows of 5 steps that the training loss is averaged over; after 13, the
# last step, only the summary is missing.
@pytest.mark.parametrize("step", [4, 8, 12, 13])
def test_a_run_killed_after_a_checkpoint_ends_as_if_it_was_not(
    step, finished, experiment, dataset, tmp_path
):
    folder, summary = finished
    run = killed_after(folder, tmp_path / "run", step)
    messages = []
    resumed = train(experiment, run, dataset=dataset, progress=messages.append)
    assert f"resumed at step {step}" in [m.get("message") for m in messages]
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(folder))
    assert resumed["log_perplexity"] == summary["log_perplexity"]
    assert resumed["tokens_seen"] == summary["tokens_seen"]
    assert resumed["exact_zero_fraction"] == summary["exact_zero_fraction"]
    assert_same_state(state_of(folder, experiment, dataset), state_of(run, experiment, dataset))


def test_a_run_killed_before_its_first_checkpoint_starts_anew(
    finished, experiment, dataset, tmp_path
):
    folder, _ = finished
    run = killed_after(folder, tmp_path / "run", 0)
    train(experiment, run, dataset=dataset)
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(folder))


def test_a_metrics_line_that_a_kill_cut_short_goes(finished, experiment, dataset, tmp_path):
    folder, _ = finished
    run = killed_after(folder, tmp_path / "run", 8)
    text = (run / "metrics.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if '"step": 5,' in line]
    (run / "metrics.jsonl").write_text("".join(kept) + lines[-1][:37])
    train(experiment, run, dataset=dataset)
    steps = [(line["step"], line["kind"]) for line in metrics_lines(run)]
    assert steps[:3] == [(5, "train"), (10, "train"), (12, "eval")]


def test_a_half_written_checkpoint_is_not_resumed_from(finished, experiment, dataset, tmp_path):
    folder, _ = finished
    run = killed_after(folder, tmp_path / "run", 8)
    whole = folder / "checkpoints" / "12"
    shutil.copytree(whole, run / "checkpoints" / "12.orbax-checkpoint-tmp")
    messages = []
    train(experiment, run, dataset=dataset, progress=messages.append)
    assert "resumed at step 8" in [m.get("message") for m in messages]
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(folder))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_run_goes_on_from_there(
    number, finished, experiment, dataset, tmp_path
):
    folder, _ = finished
    run = tmp_path / "run"
    before = signal.getsignal(number)

    def stop(entry):
        if entry["kind"] == "train" and entry["step"] == 5:
            os.kill(os.getpid(), number)

    summary = train(experiment, run, dataset=dataset, progress=stop)
    # The step in hand is the fifth or the sixth; no checkpoint was due at either.
    assert summary["status"] == "interrupted" and summary["steps"] in (5, 6)
    assert summary["log_perplexity"] is None
    assert state_of(run, experiment, dataset)[0] == summary["steps"]
    assert signal.getsignal(number) is before
    resumed = train(experiment, run, dataset=dataset)
    assert resumed["status"] == "complete"
    assert without_times(metrics_lines(run)) == without_times(metrics_lines(folder))
    assert_same_state(state_of(folder, experiment, dataset), state_of(run, experiment, dataset))


def test_a_signal_at_the_last_step_lets_the_run_complete(finished, experiment, dataset, tmp_path):
    def stop(entry):
        if entry["kind"] == "eval" and entry["step"] == 13:
            os.kill(os.getpid(), signal.SIGTERM)

    summary = train(experiment, tmp_path / "run", dataset=dataset, progress=stop)
    assert summary["status"] == "complete"
    assert without_times(metrics_lines(tmp_path / "run")) == without_times(
        metrics_lines(finished[0])
    )


def test_a_second_signal_interrupts_at_once(experiment, dataset, tmp_path):
    def stop(entry):
        if entry["kind"] == "train":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "run", dataset=dataset, progress=stop)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_another_identity_is_refused_and_the_difference_shown(
    finished, experiment, dataset, tmp_path
):
    run = killed_after(finished[0], tmp_path / "run", 8)
    before = content(run)
    other = retrained(dataclasses.replace(experiment, seed=7), steps=20)
    with pytest.raises(RecordError) as caught:
        train(other, run, dataset=dataset)
    assert "seed: 0 → 7" in str(caught.value)
    assert "training.steps: 13 → 20" in str(caught.value)
    assert "recording" not in str(caught.value)
    assert content(run) == before


@pytest.mark.slow
def test_name_recording_and_execution_may_change_on_resume(finished, experiment, dataset, tmp_path):
    folder, summary = finished
    run = killed_after(folder, tmp_path / "run", 8)
    changed = dataclasses.replace(
        experiment,
        name="renamed",
        recording=Recording(log_every=1, keep=10),
        execution=Execution(remat="block"),
    )
    resumed = train(changed, run, dataset=dataset)
    assert resumed["status"] == "complete"
    # Recomputation orders some float32 sums differently: close, and not promised to be equal.
    assert resumed["log_perplexity"] == pytest.approx(summary["log_perplexity"], rel=1e-5)
    lines = metrics_lines(run)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [5, 9, 10, 11, 12, 13]
    sessions = json.loads((run / "environment.json").read_text())
    assert [s["execution"]["remat"] for s in sessions] == ["none", "block"]
    assert sessions[0]["execution_hash"] != sessions[1]["execution_hash"]
    assert json.loads((run / "config.json").read_text())["name"] == "renamed"


def test_a_finished_run_is_returned_and_not_touched(finished, experiment, dataset, tmp_path):
    folder, summary = finished
    shutil.copytree(folder, tmp_path / "run")
    before = content(tmp_path / "run")
    assert train(experiment, tmp_path / "run", dataset=dataset) == summary
    assert content(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"thesis.tex": "years of work"}, "thesis.tex"),
        # What a tokenizer or a config of another program leaves is not a run's either.
        ({"config.json": '{"model_type": "llama"}'}, "config.json"),
        ({"tokenizer.model": "pieces"}, "tokenizer.model"),
        ({"checkpoints/1/state": "weights"}, "checkpoints"),
        ({"manifest.json": "[1, 2]"}, "manifest.json"),
        ({"manifest.json": '{"identity_ha'}, "manifest.json"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_left_as_it_is(
    files, said, experiment, dataset, tmp_path
):
    run = tmp_path / "run"
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    before = content(run)
    with pytest.raises(RecordError, match=said):
        train(experiment, run, dataset=dataset)
    assert content(run) == before


def test_a_workdir_that_is_a_file_is_refused(experiment, dataset, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RecordError, match="is a file"):
        train(experiment, tmp_path / "run", dataset=dataset)


def test_a_dataset_of_another_spec_is_refused(experiment, dataset, corpus_file, tmp_path):
    other = dataclasses.replace(experiment, data=text_data(corpus_file, input_length=17))
    with pytest.raises(DataError, match="another data Spec"):
        train(other, tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()

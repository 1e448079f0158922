"""Sweeps with a stand-in for training: what is run, what is kept, what a failure leaves."""

import dataclasses
import io
import json

import pytest
from rich.console import Console

from glu_lab.errors import RecordError, RunInUseError, SpecError
from glu_lab.files.atomic import write_json
from glu_lab.spec.codec import encode
from glu_lab.studies import Study, axis, expand, variants_matched
from glu_lab.studies.launch import launch, plan
from glu_lab.studies.records import read_record
from glu_lab.studies.resolved import read_resolved
from tests.studies.synthetic import FakeData, base, summary


def make_study(**fields):
    axes = variants_matched(["relu", "swiglu"], base())
    return Study(
        **{
            "name": "s",
            "question": "?",
            "base": base(),
            "axes": axes,
            "baseline": "relu",
            "seeds": (0, 1),
            **fields,
        }
    )


class FakeTraining:
    """Writes what training writes; fails, diverges or is interrupted where it is told to."""

    def __init__(self, **events):
        self.events, self.calls = events, []

    def __call__(self, experiment, workdir, *, dataset, progress):
        label = f"{experiment.name.split('/')[1]}_{experiment.seed}"
        self.calls.append(label)
        assert not (workdir / "summary.json").exists()
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(workdir / "config.json", encode(experiment))
        progress({"step": 1, "kind": "train", "loss": 3.0, "tokens_per_second": 10.0})
        event = self.events.get(label)
        if isinstance(event, BaseException):
            raise event
        result = summary(experiment, **(event or {}))
        write_json(workdir / "summary.json", result)
        return result


def sweep(tmp_path, train, study=None):
    study = study or make_study()
    runs = plan(study, expand(study), tmp_path / study.name, load_data=lambda data: FakeData())
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    outcomes, interrupted = launch(runs, train=train, console=console)
    return (
        {f"{o.member.point}_{o.member.seed}": o for o in outcomes},
        interrupted,
        screen.getvalue(),
    )


def test_seeds_of_a_point_run_together_and_a_second_sweep_trains_nothing(tmp_path):
    first, again = FakeTraining(), FakeTraining()
    outcomes, _, _ = sweep(tmp_path, first)
    assert first.calls == ["relu_0", "relu_1", "swiglu_0", "swiglu_1"]
    assert all(outcome.status == "complete" and outcome.ran for outcome in outcomes.values())
    outcomes, _, _ = sweep(tmp_path, again)
    assert again.calls == []
    assert not any(outcome.ran for outcome in outcomes.values())


def test_a_failure_is_recorded_and_the_others_go_on_then_only_it_runs_again(tmp_path):
    failing = FakeTraining(relu_1=MemoryError("no room"), swiglu_0={"status": "diverged"})
    outcomes, interrupted, _ = sweep(tmp_path, failing)
    assert len(failing.calls) == 4
    assert not interrupted
    assert outcomes["relu_1"].status == "failed"
    assert outcomes["relu_1"].error.startswith("out of memory (no room). Lower training.batch_size")
    record = read_record(outcomes["relu_1"].directory)
    assert record.status == "failed"
    assert "no room" in (record.error or "")
    again = FakeTraining()
    sweep(tmp_path, again)
    assert again.calls == ["relu_1"]
    assert read_record(outcomes["relu_1"].directory).status == "complete"


def test_a_run_that_another_process_trains_is_left_alone_and_said(tmp_path):
    busy = FakeTraining(relu_1=RunInUseError("process 7 is training it"))
    outcomes, interrupted, screen = sweep(tmp_path, busy)
    outcome = outcomes["relu_1"]
    assert (outcome.status, outcome.ran, outcome.error) == (
        "in use",
        False,
        "process 7 is training it",
    )
    assert not interrupted and len(outcomes) == 4
    assert "relu · seed 1: in use" in screen
    assert not (outcome.directory / "summary.json").exists()


def test_a_run_that_another_process_finished_meanwhile_is_not_run_again(tmp_path):
    study = make_study()
    later = FakeTraining()

    def first(experiment, workdir, *, dataset, progress):
        """Trains its own run while another process trains the next one."""
        if experiment.seed == 0:
            other = next(
                run.directory
                for run in plan(
                    study, expand(study), tmp_path / "s", load_data=lambda d: FakeData()
                )
                if run.member.point == experiment.name.split("/")[1] and run.member.seed == 1
            )
            seed_1 = dataclasses.replace(experiment, seed=1, name=experiment.name[:-1] + "1")
            FakeTraining()(seed_1, other, dataset=dataset, progress=progress)
        return later(experiment, workdir, dataset=dataset, progress=progress)

    outcomes, _, _ = sweep(tmp_path, first, study)
    assert later.calls == ["relu_0", "swiglu_0"]
    assert {o.status for o in outcomes.values()} == {"complete"}


def test_an_interruption_stops_and_says_how_to_go_on(tmp_path):
    outcomes, interrupted, screen = sweep(tmp_path, FakeTraining(relu_1=KeyboardInterrupt()))
    assert interrupted
    assert list(outcomes) == ["relu_0", "relu_1"]
    assert outcomes["relu_1"].status == "unfinished"
    assert "Interrupted with 1 of 4 runs done. Go on with: glu-lab sweep" in screen
    again = FakeTraining()
    sweep(tmp_path, again)
    assert again.calls == ["relu_1", "swiglu_0", "swiglu_1"]


def test_training_that_ends_itself_as_interrupted_stops_the_sweep_too(tmp_path):
    train = FakeTraining(relu_0={"status": "interrupted", "log_perplexity": None})
    _, interrupted, _ = sweep(tmp_path, train)
    assert interrupted
    assert train.calls == ["relu_0"]


def test_a_stale_failure_does_not_outlive_a_kill_in_the_next_attempt(tmp_path):
    outcomes, _, _ = sweep(tmp_path, FakeTraining(relu_0=ValueError("x")))
    sweep(tmp_path, FakeTraining(relu_0=KeyboardInterrupt()))
    assert read_record(outcomes["relu_0"].directory).status == "unfinished"


def test_a_foreign_run_directory_is_refused_before_anything_is_trained(tmp_path):
    outcomes, _, _ = sweep(tmp_path, FakeTraining())
    file = outcomes["swiglu_1"].directory / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"identity_hash": "0" * 64}))
    train = FakeTraining()
    with pytest.raises(RecordError, match="belongs to another run"):
        sweep(tmp_path, train)
    assert train.calls == []


def test_study_json_says_what_is_needed_for_a_table(tmp_path):
    study = make_study()
    sweep(tmp_path, FakeTraining(), study)
    resolved = read_resolved(tmp_path / "s")
    assert resolved is not None
    assert (resolved.name, resolved.baseline) == ("s", "relu")
    assert resolved.budget == "parameters of one FFN exactly equal"
    assert [(p.name, p.d_ff) for p in resolved.points] == [("relu", 96), ("swiglu", 64)]
    assert [point.formula for point in resolved.points] == ["relu(xW)", "silu(xW₁) ⊙ (xW₂)"]
    directories = {path.name for path in (tmp_path / "s").iterdir() if path.is_dir()}
    assert {run_id for _, _, run_id in resolved.members} == directories


def test_members_whose_data_have_the_same_content_are_one_run(tmp_path):
    texts = axis("data.path", ["a.txt", "b.txt"])
    study = make_study(axes=texts, baseline=texts[0].name)
    with pytest.raises(SpecError, match="same run"):
        plan(study, expand(study), tmp_path, load_data=lambda data: FakeData())

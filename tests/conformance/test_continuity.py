"""A run that is stopped goes on as if it had not been; and a fault of resuming is found."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.cli.main import main
from glu_lab.conformance import continuity
from glu_lab.conformance.comparisons import Bounds, bounds, equal, losses_alike, moved_alike, near
from glu_lab.conformance.comparisons import same as same_bits
from glu_lab.conformance.continuity import check, with_dropout
from glu_lab.conformance.continuity_tables import sections
from glu_lab.data import load
from glu_lab.data.iterator import TrainIterator
from glu_lab.errors import SpecError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.spec.numerics import Numerics
from glu_lab.training.programs import Programs, program_key
from tests.training.small import small_experiment, small_model, text_data, write_corpus

BOUND = Bounds(1e-4, 0.04, ("rounding", "drift"))


def test_equal_bits_pass_and_nothing_else():
    tree = {"a": {"w": np.array([1.0, -0.0], np.float32)}, "n": np.int32(3), "k": jax.random.key(0)}
    assert same_bits("way", "state", tree, tree, "why").passed
    for change in (
        {"a": {"w": np.array([1.0, 0.0], np.float32)}},  # equal numbers, other bits
        {"a": {"w": np.array([1.0, np.nan], np.float32)}},
        {"a": {"w": np.array([1.0, -0.0], np.float64)}},
        {"a": {"w": np.array([[1.0, -0.0]], np.float32)}},
        {"n": np.int32(4)},
        {"k": jax.random.key(1)},
        {"more": np.int32(1)},
    ):
        found = same_bits("way", "state", {**tree, **change}, tree, "why")
        assert not found.passed and found.largest > 0 and found.where
    assert same_bits("w", "s", {**tree, "n": np.int32(4)}, tree, "").where == "n"
    assert not equal("w", "place", {"a": 1}, {"a": 2}).passed
    assert equal("w", "place", {"a": 1}, {"a": 1}).passed


def test_gradients_are_measured_by_their_largest_element_or_the_typical_size():
    want = {"w": np.array([2.0, -1e-3]), "k_bias": np.array([1e-12, -1e-12])}
    typical = math.sqrt((4 + 1e-6) / 4)
    got = {"w": np.array([2.0, -1e-3 + 1e-4]), "k_bias": np.array([-3e-12, 0.0])}
    found = near("way", got, want, BOUND)
    # Not 10 % of the small element, and not 300 % of what is zero but for rounding.
    assert found.largest == pytest.approx(1e-4 / 2) and found.where == "w" and found.passed
    off = near("way", {**got, "k_bias": np.array([2e-4, 0.0])}, want, BOUND)
    assert off.largest == pytest.approx(2e-4 / typical) and not off.passed
    assert not near("way", {**got, "w": np.array([np.nan, 0.0])}, want, BOUND).passed


def test_parameters_are_measured_by_the_way_that_they_went():
    start, want = {"w": np.zeros(4)}, {"w": np.full(4, 0.5)}
    assert moved_alike("w", {"w": np.full(4, 0.49)}, want, start, BOUND).largest == pytest.approx(
        0.02
    )
    assert not moved_alike("w", {"w": np.full(4, 0.45)}, want, start, BOUND).passed
    with pytest.raises(SpecError, match="did not move"):
        moved_alike("w", start, start, start, BOUND)


def test_losses_may_differ_by_what_the_drift_explains():
    def metrics(*losses):
        return [
            {"sums": {"nats": 10 * loss, "tokens": 10}, "gradient_norm": 1.0} for loss in losses
        ]

    want = metrics(8.0, 7.0)
    assert losses_alike("w", want, want, BOUND, 0.5).largest == 0
    # τ·8 at the first step, τ·7 + 0.04·1·0.5 at the second.
    first = losses_alike("w", metrics(8.0 + 4e-4, 7.0), want, BOUND, 0.5)
    assert first.largest == pytest.approx(0.5, rel=1e-6) and first.where.startswith("step 0")
    second = losses_alike("w", metrics(8.0, 7.0 + 2 * (7e-4 + 0.02)), want, BOUND, 0.5)
    assert second.largest == pytest.approx(2, rel=1e-6) and not second.passed
    assert not losses_alike("w", metrics(8.0, math.nan), want, BOUND, 0.5).passed


def test_bounds_follow_number_formats_and_stay_far_below_a_fault():
    experiment = small_experiment(text_data("none.jsonl"))
    batch = {"tokens": (4, 16)}
    single = bounds(experiment, batch)
    double = bounds(dataclasses.replace(experiment, numerics=Numerics.uniform("float64")), batch)
    assert double.rounding / single.rounding == pytest.approx(2.0**-29)
    assert single.rounding < 1e-4 and single.drift < 0.05 and "√n·u" in single.reasons[0]
    narrow = bounds(
        dataclasses.replace(experiment, numerics=Numerics(compute_dtype="bfloat16")), batch
    )
    assert single.rounding < narrow.rounding < 0.2


def test_dropout_is_added_only_where_there_is_none():
    without = small_model(residual_dropout=0.0)
    without = dataclasses.replace(
        without, attention=dataclasses.replace(without.attention, dropout=0.0)
    )
    data = text_data("none.jsonl")
    added, was_added = with_dropout(small_experiment(data, model=without), 0.2)
    assert was_added and added.model.residual_dropout == added.model.ffn.hidden_dropout == 0.2
    own = small_experiment(data)
    assert with_dropout(own, 0.2) == (own, False)
    assert with_dropout(small_experiment(data, model=without), 0.0)[1] is False


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data = text_data(write_corpus(folder / "documents.jsonl"))
    return load(data, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def experiment(dataset):
    return small_experiment(dataset.spec)


@pytest.fixture(scope="module")
def report(experiment, dataset):
    """An honest check, its programs as fresh as a user's."""
    return check(experiment, steps=5, dataset=dataset)


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_and_recomputes_the_same_gradients(report):
    assert report["passed"] and all(line["passed"] for line in report["comparisons"])
    resumed = {
        line["what"]: line for line in report["comparisons"] if line["way"] == "resumed at step 2"
    }
    assert set(resumed) == {
        "state as loaded", "place of the data", "parameters at the end",
        "optimiser state at the end", "step and random key at the end",
        "place of the data at the end", "metrics of every step",
    }  # fmt: skip
    assert all(line["tolerance"] == line["largest"] == 0 for line in resumed.values())
    remat = [line for line in report["comparisons"] if line["way"].startswith("remat")]
    assert {line["way"] for line in remat} == {"remat block", "remat dots"}
    assert all(0 < line["tolerance"] < 1e-4 for line in remat)


@pytest.mark.slow
def test_the_record_is_plain_and_says_where_the_run_was_stopped(report, experiment):
    again = json.loads(json.dumps(report, allow_nan=False))
    assert (again["steps"], again["saved_at"], again["checkpoint"]["step"]) == (5, 2, 2)
    assert (
        again["checkpoint"]["rng"]
        == np.asarray(jax.random.key_data(jax.random.key(experiment.seed))).tolist()
    )
    assert again["dropout_added"] is None  # this model has its own
    (section,) = sections(again)
    assert len(section.rows) == len(report["comparisons"]) and "(1) bit for bit" in section.note


@pytest.fixture
def shared(monkeypatch):
    """Programs that are compiled once for all planted faults."""
    monkeypatch.setattr(continuity, "_programs", shared_programs)
    monkeypatch.setattr(continuity, "REMATS", ("none",))


@functools.cache
def _shared(key, mesh):
    return Programs(key, mesh)


def shared_programs(experiment, dataset, mesh):
    return _shared(program_key(experiment, dataset), mesh)


def failed(report):
    assert not report["passed"]
    return {line["what"]: line["where"] for line in report["comparisons"] if not line["passed"]}


@pytest.mark.slow
def test_data_that_start_over_are_found(experiment, dataset, shared, monkeypatch):
    monkeypatch.setattr(TrainIterator, "set_state", lambda self, state: None)
    found = failed(check(experiment, steps=4, dataset=dataset))
    assert {"place of the data", "parameters at the end", "metrics of every step"} <= set(found)
    assert "state as loaded" not in found


def spoil(monkeypatch, change):
    """Checkpoints that give another state than they were given."""
    honest = Checkpoints.load

    def load(self, abstract, step=None):
        step, state, loop = honest(self, abstract, step)
        return step, change(state), loop

    monkeypatch.setattr(Checkpoints, "load", load)


@pytest.mark.slow
def test_a_random_key_that_is_drawn_anew_is_found(experiment, dataset, shared, monkeypatch):
    spoil(monkeypatch, lambda state: {**state, "rng": jax.random.fold_in(state["rng"], 1)})
    found = failed(check(experiment, steps=4, dataset=dataset))
    assert found["state as loaded"] == "rng"
    assert {"step and random key at the end", "metrics of every step"} <= set(found)


@pytest.mark.slow
def test_an_optimiser_that_starts_anew_is_found(experiment, dataset, shared, monkeypatch):
    spoil(
        monkeypatch,
        lambda state: {**state, "optimizer": jax.tree.map(jnp.zeros_like, state["optimizer"])},
    )
    found = failed(check(experiment, steps=4, dataset=dataset))
    assert found["state as loaded"].startswith("optimizer/adamw/")
    assert {"optimiser state at the end", "parameters at the end"} <= set(found)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"steps": 1}, "steps must be ≥ 2"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"onto": ["data=2"]}, "needs 2 devices; there are 1"),
        ({"onto": ["rows=2"]}, "mesh axis"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_data_are_read(fields, said):
    with pytest.raises(SpecError, match=said):
        check(small_experiment(text_data("none.jsonl")), **fields)


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_verdict(passed, code, monkeypatch, capsys, tmp_path):
    line = {
        "way": "remat block", "what": "gradients", "largest": 1e-3, "tolerance": 1e-4,
        "where": "decoder/layers/ffn/wi", "reason": "because", "passed": passed,
    }  # fmt: skip
    report = {
        "config": "tiny", "steps": 6, "saved_at": 3, "mesh": "1×1×1", "onto": [],
        "dropout_added": 0.1, "compute_dtype": "float32", "passed": passed,
        "checkpoint": {"step": 3, "rng": [0, 0], "finite": True}, "comparisons": [line],
    }  # fmt: skip
    monkeypatch.setattr(continuity, "check", lambda experiment, **how: report)
    monkeypatch.setattr("glu_lab.training.cache.enable_compilation_cache", lambda: None)
    arguments = ["continuity", "--config=configs/lm_tiny_sotu.py:swiglu"]
    assert main([*arguments, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == report
    assert main([*arguments, f"--keep={tmp_path / 'continuity'}"]) == code
    assert "decoder/layers/ffn/wi" in capsys.readouterr().out
    page = (tmp_path / "continuity.md").read_text()
    assert "## tiny" in page and ("NO" in page) == (not passed) and "0.1 added" in page
    assert json.loads((tmp_path / "continuity.json").read_text()) == {"tiny": report}

"""A run whose numbers blow up says where and when, and keeps the state from before."""

import math

import jax
import numpy as np
import pytest

from glu_lab.spec.experiment import Schedule
from glu_lab.training.evaluation import Totals
from glu_lab.training.loop import train
from glu_lab.training.programs import program_key, programs
from tests.training.small import killed_after, metrics_lines, retrained
from tests.training.test_resume import state_of


@pytest.fixture
def program(experiment, dataset):
    return programs(program_key(experiment, dataset))


def spoil(monkeypatch, program, *path, index=...):
    """Makes every initial state of a program hold a NaN."""
    honest = program.init

    def init(*arguments):
        state = honest(*arguments)
        node = state["params"]
        for name in path[:-1]:
            node = node[name]
        spoilt = np.array(node[path[-1]])
        spoilt[index] = np.nan
        node[path[-1]] = jax.device_put(spoilt, node[path[-1]].sharding)
        return state

    monkeypatch.setattr(program, "init", init)


@pytest.mark.slow
def test_a_huge_learning_rate_diverges_and_says_so(experiment, dataset, tmp_path):
    # Updates of about 1e30: the products of the second step overflow float32.
    wild = retrained(experiment, schedule=Schedule(kind="constant", peak=1e30, warmup_steps=0))
    summary = train(wild, tmp_path / "run", dataset=dataset)
    assert summary["status"] == "diverged"
    assert summary["log_perplexity"] is None and summary["perplexity"] is None
    last = metrics_lines(tmp_path / "run")[-1]
    assert last["kind"] == "diverged" and last["step"] == summary["steps"] == 2
    assert summary["error"] == last["message"]
    # RMSNorm keeps the loss finite; the gradients of the weights that it normalises are not.
    assert summary["error"].startswith("non-finite at step 2: the gradient of decoder/layers/")
    # The verdict stands: there is nothing to resume.
    assert train(wild, tmp_path / "run", dataset=dataset) == summary


@pytest.mark.parametrize("layer", [0, 1])
def test_a_nan_weight_names_its_layer(layer, program, experiment, dataset, tmp_path, monkeypatch):
    spoil(monkeypatch, program, "decoder", "layers", "ffn", "wi", index=(layer, 0, 1, 3))
    summary = train(experiment, tmp_path / "run", dataset=dataset)
    assert summary["status"] == "diverged"
    expected = f"non-finite at step 1: decoder layer {layer}, FFN pre_activation"
    assert summary["error"] == expected
    assert summary["tokens_seen"] == 0


def test_a_nan_outside_of_the_ffns_is_named_too(
    program, experiment, dataset, tmp_path, monkeypatch
):
    spoil(monkeypatch, program, "decoder", "final_norm", "scale", index=0)
    summary = train(experiment, tmp_path / "run", dataset=dataset)
    assert summary["error"] == "non-finite at step 1: the logits"


def test_divergence_after_a_checkpoint_leaves_the_checkpoint(
    finished, experiment, dataset, tmp_path, monkeypatch
):
    """The run is resumed into a step whose loss is not finite."""
    from glu_lab.training import loop

    run = killed_after(finished[0], tmp_path / "run", 8)
    before = state_of(run, experiment, dataset)
    monkeypatch.setattr(loop, "learning_rate", lambda *_: 1e30)
    summary = train(experiment, run, dataset=dataset)
    assert summary["status"] == "diverged" and summary["steps"] == 10
    after = state_of(run, experiment, dataset, 8)
    for one, two in zip(jax.tree.leaves(before[1]), jax.tree.leaves(after[1]), strict=True):
        assert one.tobytes() == two.tobytes()


def test_a_bad_step_changes_nothing_and_neither_do_those_after_it(program, experiment, dataset):
    state = program.init(program.put_key(0))
    batch = program.put_batch(
        next(iter(dataset.train_iterator(seed=0, batch_size=experiment.training.batch_size)))
    )
    rate = np.float32(0.1)
    state, out = program.train(state, batch, rate)
    assert bool(out["finite"]) and int(state["step"]) == 1
    norm = state["params"]["decoder"]["final_norm"]["scale"]
    spoilt = np.array(norm)
    spoilt[0] = np.nan
    state["params"]["decoder"]["final_norm"]["scale"] = jax.device_put(spoilt, norm.sharding)
    state["rng"] = jax.random.key_data(state["rng"])
    frozen = jax.tree.map(np.array, state)
    for _ in range(2):
        state["rng"] = program.put_key(0)
        state, out = program.train(state, batch, rate)
        assert not bool(out["finite"])
        state["rng"] = jax.random.key_data(state["rng"])
        for name in ("params", "optimizer", "step"):
            pairs = zip(jax.tree.leaves(state[name]), jax.tree.leaves(frozen[name]), strict=True)
            for now, then in pairs:
                assert np.asarray(now).tobytes() == then.tobytes(), name


def one_step(experiment, peak):
    return retrained(
        experiment, steps=1, schedule=Schedule(kind="constant", peak=peak, warmup_steps=0)
    )


def test_a_validation_that_is_not_finite_is_a_divergence(
    experiment, dataset, tmp_path, monkeypatch
):
    """Every step was finite, and yet there is no number to tabulate."""
    from glu_lab.training import loop

    def not_finite(*_):
        totals = Totals()
        totals.tokens, totals.nats, totals.non_finite = 3, math.nan, 1
        return totals

    monkeypatch.setattr(loop, "evaluate", not_finite)
    summary = train(one_step(experiment, 0.1), tmp_path / "run", dataset=dataset)
    assert summary["status"] == "diverged"
    assert summary["error"] == "non-finite validation loss after step 1: the logits"
    assert summary["log_perplexity"] is None
    assert metrics_lines(tmp_path / "run")[-1]["kind"] == "diverged"


def test_a_size_beyond_float32_is_recorded_as_null(experiment, dataset, tmp_path):
    """The weights are finite, their mean square is not; the run goes on to its end."""
    summary = train(one_step(experiment, 1e30), tmp_path / "run", dataset=dataset)
    assert summary["status"] == "complete"
    (line,) = [x for x in metrics_lines(tmp_path / "run") if x["kind"] == "telemetry"]
    assert line["rms"]["parameter"]["decoder/layers/ffn/wi"] == [None, None]
    assert line["rms"]["gradient"]["decoder/layers/ffn/wi"][0] > 0

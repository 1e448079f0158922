"""Losses are sums over tokens, and every number that follows from them is right."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from glu_lab.layers.loss import cross_entropy
from glu_lab.models import Transformer
from glu_lab.training.evaluation import Totals, bits_per_byte, evaluate, metrics
from glu_lab.training.programs import program_key, programs
from tests.training.small import metrics_lines

torch = pytest.importorskip("torch")


def sums_of(nats, correct=0):
    nats = np.asarray(nats, np.float64)
    return {
        "nats": nats.sum(),
        "nats_squared": (nats**2).sum(),
        "z_squared": 0.0,
        "tokens": len(nats),
        "correct": correct,
        "non_finite": 0,
    }


def totals_of(*chunks):
    totals = Totals()
    for chunk in chunks:
        totals.add(sums_of(chunk))
    return totals


def test_the_mean_is_over_tokens_not_over_chunk_means():
    # 3 tokens of mean 0.4 and 5 of mean 1.5: 8.7 nats over 8 tokens, not (0.4 + 1.5) / 2.
    totals = totals_of([0.1, 0.4, 0.7], [1.5] * 5)
    assert totals.mean == pytest.approx(8.7 / 8, rel=1e-15)
    assert totals.tokens == 8


def test_standard_error_is_that_of_the_mean_over_all_tokens():
    rng = np.random.default_rng(0)
    nats = rng.gamma(2.0, 1.5, 1000)
    totals = totals_of(nats[:10], nats[10:700], nats[700:])
    expected = nats.std(ddof=1) / math.sqrt(len(nats))
    assert totals.standard_error == pytest.approx(expected, rel=1e-10)


def test_totals_survive_a_checkpoint_exactly():
    totals = totals_of([0.1, 0.2], [0.7])
    assert Totals.from_state(totals.state()).state() == totals.state()


def test_numbers_of_an_evaluation():
    totals = totals_of([1.0, 2.0, 3.0])
    totals.correct = 2
    measured = metrics(totals, utf8_bytes=12)
    assert measured["log_perplexity"] == 2.0
    assert measured["perplexity"] == pytest.approx(math.exp(2.0))
    assert measured["accuracy"] == pytest.approx(2 / 3)
    # 6 nats are 6/ln 2 bits; 12 bytes.
    assert measured["bits_per_byte"] == pytest.approx(6 / math.log(2) / 12)
    assert measured["tokens"] == 3
    assert metrics(totals, utf8_bytes=None)["bits_per_byte"] is None


def test_a_uniform_guess_over_bytes_costs_eight_bits_a_byte():
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8.0)


def test_undefined_numbers_are_none():
    measured = metrics(Totals(), utf8_bytes=5)
    undefined = ("log_perplexity", "log_perplexity_se", "perplexity", "bits_per_byte", "accuracy")
    assert [measured[name] for name in undefined] == [None] * 5
    assert measured["tokens"] == 0
    infinite = metrics(totals_of([math.inf, 1.0]), utf8_bytes=5)
    assert infinite["log_perplexity"] is None and infinite["perplexity"] is None


def example(rows=3, length=5, vocabulary=11, scale=3.0):
    rng = np.random.default_rng(1)
    logits = scale * rng.normal(size=(rows, length, vocabulary)).astype(np.float32)
    targets = rng.integers(0, vocabulary, (rows, length)).astype(np.int32)
    weights = (rng.random((rows, length)) < 0.7).astype(np.int32)
    return logits, targets, weights


def as_numbers(sums):
    return {name: float(value) for name, value in sums.items()}


def test_cross_entropy_equals_scipy_in_float64():
    logits, targets, weights = example()
    got = as_numbers(cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights)))
    log_p = special.log_softmax(logits.astype(np.float64), axis=-1)
    nats = -np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0][weights > 0]
    log_z = special.logsumexp(logits.astype(np.float64), axis=-1)[weights > 0]
    hits = (logits.argmax(-1) == targets)[weights > 0]
    # float32 sums of about ten terms of order 10.
    assert got["nats"] == pytest.approx(nats.sum(), rel=1e-6)
    assert got["nats_squared"] == pytest.approx((nats**2).sum(), rel=1e-6)
    assert got["z_squared"] == pytest.approx((log_z**2).sum(), rel=1e-6)
    assert got["tokens"] == weights.sum()
    assert got["correct"] == hits.sum()
    assert got["non_finite"] == 0


def test_cross_entropy_equals_torch():
    logits, targets, weights = example()
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double().reshape(-1, logits.shape[-1]),
        torch.from_numpy(np.where(weights > 0, targets, -100)).long().reshape(-1),
        ignore_index=-100,
        reduction="sum",
    )
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    assert float(got["nats"]) == pytest.approx(float(expected), rel=1e-6)


def test_padding_has_no_weight_whatever_it_holds():
    logits, targets, weights = example()
    pads = weights == 0
    spoiled, other = logits.copy(), targets.copy()
    spoiled[pads], other[pads] = np.nan, 0
    one = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    two = cross_entropy(jnp.asarray(spoiled), jnp.asarray(other), jnp.asarray(weights))
    assert as_numbers(one) == as_numbers(two)


def test_non_finite_positions_are_counted():
    logits, targets, weights = example()
    weights[:] = 1
    logits[0, 1], logits[2, 3] = np.nan, np.inf
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    assert int(got["non_finite"]) == 2


def test_large_logits_do_not_overflow():
    logits = jnp.asarray([[[1e4, -1e4, 0.0]]], jnp.float32)
    got = cross_entropy(logits, jnp.asarray([[1]], jnp.int32), jnp.asarray([[1]], jnp.int32))
    assert float(got["nats"]) == pytest.approx(2e4, rel=1e-6)


def test_validation_counts_every_token_once(finished, dataset):
    _, summary = finished
    statistics = dataset.statistics
    # Each document's end-of-sequence is predicted too.
    expected = statistics["validation_tokens"] + statistics["validation_documents"]
    assert summary["validation_tokens"] == expected


def test_validation_loss_is_that_of_a_float64_log_softmax(finished, experiment, dataset):
    """The recorded number, recomputed from logits with batches of another size."""
    from tests.training.test_resume import state_of

    folder, summary = finished
    _, state, _ = state_of(folder, experiment, dataset)
    model = Transformer(experiment.model)
    nats, count = 0.0, 0
    for batch in dataset.validation(7):
        arrays = {name: jnp.asarray(value) for name, value in batch.items()}
        logits = np.asarray(model.apply({"params": state["params"]}, arrays), np.float64)
        log_p = special.log_softmax(logits, axis=-1)
        each = -np.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
        nats += each[batch["weights"] > 0].sum()
        count += int((batch["weights"] > 0).sum())
    assert count == summary["validation_tokens"]
    # float32 logits of order 10 over some hundred tokens.
    assert summary["log_perplexity"] == pytest.approx(nats / count, rel=2e-6)
    bits = nats / math.log(2) / dataset.validation_bytes
    assert summary["bits_per_byte"] == pytest.approx(bits, rel=2e-6)
    assert summary["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-4)


def test_an_evaluation_has_no_dropout(finished, experiment, dataset):
    from tests.training.test_resume import state_of

    folder, summary = finished
    program = programs(program_key(experiment, dataset))
    _, state, _ = state_of(folder, experiment, dataset)
    again = evaluate(
        program.evaluate, state["params"], map(program.put_batch, dataset.validation(4))
    )
    assert again.mean == summary["log_perplexity"]
    assert again.tokens == summary["validation_tokens"]


def test_tokens_seen_and_windows_are_exact(finished, experiment):
    folder, summary = finished
    training = experiment.training
    rows = training.batch_size * experiment.data.input_length
    assert summary["tokens_seen"] == training.steps * rows
    windows = {
        line["step"]: line["tokens"] for line in metrics_lines(folder) if line["kind"] == "train"
    }
    assert windows == {5: 5 * rows, 10: 5 * rows, 13: 3 * rows}

"""The gradient of a step: of the mean loss per counted token, however the batch is divided."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from glu_lab.layers.loss import cross_entropy
from glu_lab.layers.params import flatten
from glu_lab.models import Transformer
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Optimizer
from glu_lab.spec.numerics import Numerics
from glu_lab.training.programs import ProgramKey, Programs
from tests.training.small import SENTINELS, VOCABULARY, small_model

F64 = Numerics.uniform("float64")
ROWS, LENGTH = 2, 101

#: Summed losses of a step's two micro-batches, of 11 and 101 counted tokens.
COUNTS = (11, 101)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def key(**fields):
    model = small_model()
    attention = dataclasses.replace(model.attention, dropout=0.0)
    model = dataclasses.replace(model, attention=attention, residual_dropout=0.0)
    names = ("tokens", "targets", "positions", "segments", "weights")
    settings = dict(
        model=model,
        numerics=F64,
        execution=Execution(),
        optimizer=Optimizer(kind="adamw"),
        microbatches=1,
        z_loss=0.0,
        train_batch=tuple((name, (ROWS, LENGTH)) for name in names),
        eval_batch=tuple((name, (ROWS, LENGTH)) for name in names),
    )
    return ProgramKey(**(settings | fields))


def batch():
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, VOCABULARY + SENTINELS, (ROWS, LENGTH + 1))
    weights = (np.arange(LENGTH) < np.array(COUNTS)[:, None]).astype(np.int32)
    arrays = {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "positions": np.tile(np.arange(LENGTH), (ROWS, 1)),
        "segments": weights,
        "weights": weights,
    }
    return {name: jnp.asarray(x, jnp.int32) for name, x in arrays.items()}


def state_and_gradients(**fields):
    program = Programs(key(**fields))
    state = program.init(program.put_key(0))
    with jax.set_mesh(program.mesh):
        return state, *jax.jit(program.loss_gradients)(state, program.put_batch(batch()))


def reference_loss(params, z_loss=0.0):
    """Mean over the counted tokens, from logits, in SciPy."""
    parts = batch()
    output: Any = Transformer(key().model, F64).apply({"params": jax.device_get(params)}, parts)
    logits = np.asarray(output)
    log_p = special.log_softmax(logits, axis=-1)
    targets = np.asarray(parts["targets"])[..., None]
    nats = -np.take_along_axis(log_p, targets, -1)[..., 0]
    log_z = np.asarray(special.logsumexp(logits, axis=-1))
    each = nats + z_loss * log_z**2
    return each[np.asarray(parts["weights"]) > 0].mean()


@pytest.mark.slow
def test_microbatches_of_11_and_101_tokens_equal_one_batch_of_112():
    _, sums, whole = state_and_gradients()
    _, parts_sums, parts = state_and_gradients(microbatches=2)
    assert int(sums["tokens"]) == int(parts_sums["tokens"]) == 112
    assert float(sums["nats"]) == pytest.approx(float(parts_sums["nats"]), rel=1e-14)
    for path, x in flatten(whole).items():
        other = flatten(parts)[path]
        assert other.dtype == jnp.float64
        # float64 sums of a hundred terms; a mean of the parts' means would be off by half.
        np.testing.assert_allclose(other, x, rtol=1e-11, atol=1e-14, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_gradient_is_the_slope_of_the_reference_loss(z_loss):
    """A central difference of SciPy's loss along a random direction; no JAX gradient involved."""
    state, sums, grads = state_and_gradients(z_loss=z_loss)
    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), grads)
    slope = sum(
        float(jnp.sum(g * d))
        for g, d in zip(jax.tree.leaves(grads), jax.tree.leaves(direction), strict=True)
    )
    h = 1e-5

    def moved(sign):
        params = jax.tree.map(lambda p, d: p + sign * h * d, state["params"], direction)
        return reference_loss(params, z_loss)

    # Truncation h² and rounding 1e-16/h are both below 1e-8 of the slope.
    assert slope == pytest.approx((moved(1) - moved(-1)) / (2 * h), rel=1e-6)
    # The loss that is reported stays free of z_loss.
    assert float(sums["nats"]) / 112 == pytest.approx(reference_loss(state["params"]), rel=1e-12)


def test_slope_of_the_z_term_in_closed_form():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 7))
    weights = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    targets = jnp.zeros((2, 3), jnp.int32)

    def z_squared(x):
        return cross_entropy(x, targets, jnp.asarray(weights))["z_squared"]

    got = jax.grad(z_squared)(jnp.asarray(logits))
    log_z = special.logsumexp(logits, axis=-1)[..., None]
    expected = 2 * log_z * special.softmax(logits, axis=-1) * weights[..., None]
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.01, 100.0])
def test_a_step_clips_by_the_global_norm_and_moves_against_the_gradient(limit):
    rate, eps = 0.5, 1e-3
    spec = Optimizer(kind="adamw", eps=eps, clip_norm=limit)
    program = Programs(key(optimizer=spec))
    state = program.init(program.put_key(0))
    start = jax.tree.map(np.asarray, state["params"])
    with jax.set_mesh(program.mesh):
        _, grads = jax.jit(program.loss_gradients)(state, program.put_batch(batch()))
    flat = {path: np.asarray(x) for path, x in flatten(grads).items()}
    norm = np.sqrt(sum((x**2).sum() for x in flat.values()))
    assert (norm > limit) == (limit < 1)
    new, out = program.train(state, batch(), np.float32(rate))
    assert float(out["gradient_norm"]) == pytest.approx(norm, rel=1e-12)
    for path, before in flatten(start).items():
        clipped = flat[path] * min(1, limit / norm)
        # Adam's first step: m̂ = g and v̂ = g².
        expected = before - rate * clipped / (np.abs(clipped) + eps)
        np.testing.assert_allclose(flatten(new["params"])[path], expected, rtol=1e-9, atol=1e-12)
        layered = tuple(range(1, before.ndim)) if "layers/" in path else None
        for kind, x in (
            ("parameter", expected), ("gradient", clipped), ("update", expected - before)
        ):  # fmt: skip
            rms = np.sqrt((x**2).mean(axis=layered))
            np.testing.assert_allclose(out["rms"][kind][path], rms, rtol=1e-6, err_msg=path)
    assert int(new["step"]) == 1

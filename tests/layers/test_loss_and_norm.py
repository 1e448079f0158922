"""Cross-entropy as sums, and the two normalisations, against torch and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from glu_lab.layers import norm
from glu_lab.layers.loss import cross_entropy
from glu_lab.layers.positions import rope
from glu_lab.spec.model import Norm

torch = pytest.importorskip("torch")


def random_case(seed=0, rows=3, length=6, vocabulary=11):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, length, vocabulary)).astype(np.float32) * 3
    targets = rng.integers(0, vocabulary, (rows, length)).astype(np.int32)
    weights = (rng.random((rows, length)) < 0.7).astype(np.int32)
    return logits, targets, weights


def test_every_sum_is_what_it_says():
    logits, targets, weights = random_case()
    got = jax.jit(cross_entropy)(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    wide, counted = logits.astype(np.float64), weights > 0
    log_z = np.asarray(special.logsumexp(wide, axis=-1))
    nats = log_z - np.take_along_axis(wide, targets[..., None], -1)[..., 0]
    # float32 sums of a dozen terms.
    close = dict(rtol=2e-6)
    np.testing.assert_allclose(got["nats"], nats[counted].sum(), **close)
    np.testing.assert_allclose(got["nats_squared"], (nats[counted] ** 2).sum(), **close)
    np.testing.assert_allclose(got["z_squared"], (log_z[counted] ** 2).sum(), **close)
    assert int(got["tokens"]) == counted.sum()
    assert int(got["correct"]) == (wide.argmax(-1) == targets)[counted].sum()
    assert int(got["non_finite"]) == 0


def test_nats_and_their_gradient_are_torchs():
    logits, targets, weights = random_case()
    rows = torch.tensor(logits, requires_grad=True)
    target = torch.tensor(np.where(weights > 0, targets, -100)).long()
    torch.nn.functional.cross_entropy(
        rows.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum"
    ).backward()
    gradient = jax.grad(
        lambda x: cross_entropy(x, jnp.asarray(targets), jnp.asarray(weights))["nats"]
    )(jnp.asarray(logits))
    np.testing.assert_allclose(gradient, rows.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_unequal_chunks_give_the_token_mean():
    """0.4 nats over 3 tokens and 1.5 over 5: 8.7/8, not the mean of means 0.95."""

    def chunk(mean, tokens, length=6):
        # Two words; a margin m costs log(1 + e^m) nats.
        margin = np.log(np.expm1(mean))
        logits = jnp.zeros((1, length, 2)).at[:, :, 1].set(margin)
        weights = jnp.asarray([[1] * tokens + [0] * (length - tokens)], jnp.int32)
        return cross_entropy(logits, jnp.zeros((1, length), jnp.int32), weights)

    total = jax.tree.map(lambda a, b: a + b, chunk(0.4, 3), chunk(1.5, 5))
    assert int(total["tokens"]) == 8
    assert float(total["nats"]) / int(total["tokens"]) == pytest.approx(8.7 / 8, rel=1e-6)


def test_padding_may_hold_anything():
    logits, targets, weights = random_case()
    weights[:, -2:] = 0
    logits[:, -1] = np.nan
    logits[:, -2] = np.inf
    targets[:, -1] = 7
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    assert bool(jnp.isfinite(got["nats"])) and int(got["non_finite"]) == 0
    assert int(got["tokens"]) == weights.sum()


def test_non_finite_positions_are_counted():
    logits, targets, weights = random_case()
    weights[:] = 1
    logits[0, 0, 0], logits[1, 2, 3] = np.nan, np.inf
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    assert int(got["non_finite"]) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_norms_are_torchs_and_keep_the_dtype(kind, dtype):
    """In bfloat16 the statistics are float32: mean and squares do not round to 8 bits."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(4, 64)) * 3 + 1, dtype)
    scale, bias = rng.normal(size=64).astype(np.float32), rng.normal(size=64).astype(np.float32)
    wide = torch.tensor(np.asarray(x, np.float64))
    if kind == "rmsnorm":
        spec, params = Norm(eps=1e-5), {"scale": jnp.asarray(scale)}
        want = torch.nn.functional.rms_norm(wide, (64,), torch.tensor(scale).double(), 1e-5)
    else:
        spec = Norm(kind="layernorm", bias=True, eps=1e-5)
        params = {"scale": jnp.asarray(scale), "bias": jnp.asarray(bias)}
        want = torch.nn.functional.layer_norm(
            wide, (64,), torch.tensor(scale).double(), torch.tensor(bias).double(), 1e-5
        )
    got = norm.apply(params, x, spec)
    assert got.dtype == dtype
    # float32: some ulp of 64 terms. bfloat16: one rounding at the end, half an ulp.
    rtol, atol = (1e-5, 1e-5) if dtype == "float32" else (2**-8, 1e-6)
    np.testing.assert_allclose(np.asarray(got, np.float64), want.numpy(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_the_epsilon_of_a_norm_is_the_stated_one(kind):
    """It decides rows whose mean square is about as small, and keeps rows of zeros at zero."""
    x = np.random.default_rng(0).normal(size=(3, 64)) * [[1e-3], [1e-1], [0.0]]
    wide = x - x.mean(axis=-1, keepdims=True) if kind == "layernorm" else x
    want = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5)
    assert 0.2 < np.sqrt((want[0] ** 2).mean()) < 0.5
    got = norm.apply(
        {"scale": jnp.ones(64)}, jnp.asarray(x, jnp.float32), Norm(kind=kind, eps=1e-5)
    )
    # float32: some ulp of 64 terms.
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_rope_in_bfloat16_keeps_its_angles_in_float32():
    """Position 1001 in bfloat16 would be 1000: the angle of channel 0 would be off by a radian."""
    x = jnp.ones((1, 1, 2, 8), jnp.bfloat16)
    got = rope(x, jnp.asarray([[1001]], jnp.int32), 10000.0)
    assert got.dtype == jnp.bfloat16
    angle = 1001 * 10000.0 ** (-np.arange(4) / 4)
    want = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])
    np.testing.assert_allclose(np.asarray(got[0, 0, 0], np.float64), want, atol=2**-8)


def test_of_equal_logits_the_first_token_counts_as_the_guess():
    rng = np.random.default_rng(5)
    logits = rng.integers(0, 3, (4, 50, 8)).astype(np.float32)
    targets = rng.integers(0, 8, (4, 50)).astype(np.int32)
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.ones((4, 50), jnp.int32))
    assert int(got["correct"]) == int((logits.argmax(-1) == targets).sum())

"""Dropout of the hidden state: keys, masks, scaling, and recomputation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers import ffn
from glu_lab.layers.dropout import dropout
from glu_lab.spec import variant
from glu_lab.spec.numerics import Numerics
from tests.layers import oracle

D, F = 4, 32


def setup(**fields):
    fields = {"hidden_dropout": 0.25} | fields
    spec = variant("swiglu", d_model=D, d_ff=F, **fields)
    params = ffn.init(jax.random.key(0), spec)
    x = jax.random.normal(jax.random.key(1), (3, 5, D))
    return spec, params, x


def mask_of(spec, params, x, key):
    """The mask, read off the output with wo = 1: which hidden elements reached the sum."""
    params = {**params, "wo": jnp.ones((F, D))}

    def rows(scale):
        return ffn.apply({**params, "wo": params["wo"] * scale[:, None]}, x, spec, dropout_key=key)

    hidden = {}
    ffn.apply(params, x, spec, tap=hidden.__setitem__)
    columns = jax.vmap(rows)(jnp.eye(F))[..., 0]  # (F, 3, 5): one channel at a time
    return np.asarray(jnp.moveaxis(columns, 0, -1) / hidden["product"])


def test_kept_elements_are_scaled_and_the_rest_are_zero():
    spec, params, x = setup()
    ratio = mask_of(spec, params, x, jax.random.key(7))
    kept = ratio > 0.5
    np.testing.assert_allclose(ratio[kept], 1 / 0.75, rtol=1e-5)
    np.testing.assert_array_equal(ratio[~kept], 0)
    # 480 draws at 0.75: 4σ is 0.08.
    assert kept.mean() == pytest.approx(0.75, abs=0.08)


def test_output_is_the_oracles_under_the_same_mask():
    spec, params, x = setup(product_bias=True, bias=True)
    keep = mask_of(spec, params, x, jax.random.key(7)) > 0.5
    got = ffn.apply(params, x, spec, dropout_key=jax.random.key(7))
    np.testing.assert_allclose(got, oracle.ffn(params, x, spec, keep), rtol=2e-5, atol=2e-6)


def test_a_key_names_a_mask_also_under_jit():
    spec, params, x = setup()
    run = jax.jit(lambda key: ffn.apply(params, x, spec, dropout_key=key))
    one, other = jax.random.key(1), jax.random.key(2)
    np.testing.assert_array_equal(run(one), run(one))
    assert not np.array_equal(run(one), run(other))
    np.testing.assert_allclose(
        run(one), ffn.apply(params, x, spec, dropout_key=one), rtol=1e-5, atol=1e-6
    )


def test_the_mean_over_keys_is_the_output_without_dropout():
    spec, params, x = setup()
    keys = jax.random.split(jax.random.key(3), 1000)
    outputs = jax.vmap(lambda key: ffn.apply(params, x, spec, dropout_key=key))(keys)
    mean, error = outputs.mean(0), outputs.std(0) / 1000**0.5
    plain = ffn.apply(params, x, spec)
    assert float(jnp.max(jnp.abs(mean - plain) / error)) < 4.5  # 60 normal draws


def test_no_key_and_rate_zero_are_the_inference_mode():
    spec, params, x = setup()
    plain = ffn.apply(params, x, spec)
    zero = spec.replace(hidden_dropout=0.0)
    np.testing.assert_array_equal(plain, ffn.apply(params, x, zero, dropout_key=jax.random.key(0)))


@pytest.mark.parametrize(
    ("shared", "distinct"),
    [((), (3, 5)), (("position",), (3, 1)), (("batch",), (1, 5)), (("batch", "position"), (1, 1))],
)
def test_a_shared_mask_is_the_same_along_its_axes_only(shared, distinct):
    spec, params, x = setup(hidden_dropout=0.5, hidden_dropout_shared=shared)
    keep = mask_of(spec, params, x, jax.random.key(5)) > 0.5
    unique = {row.tobytes() for row in keep.reshape(-1, F)}
    assert len(unique) == distinct[0] * distinct[1]
    for axis, size in enumerate(distinct):
        if size == 1:
            np.testing.assert_array_equal(
                keep, np.repeat(keep.take([0], axis), keep.shape[axis], axis)
            )


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_a_recomputed_sublayer_draws_the_same_mask(policy):
    spec, params, x = setup(hidden_dropout=0.5)

    def loss(params, x, key):
        return jnp.sum(ffn.apply(params, x, spec, dropout_key=key) ** 2)

    kept = jax.jit(jax.value_and_grad(loss))(params, x, jax.random.key(0))
    again = jax.jit(jax.value_and_grad(jax.checkpoint(loss, policy=policy)))(
        params, x, jax.random.key(0)
    )
    # Two programs, fused apart: float32 rounding, no more. Another mask would differ by order 1.
    for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_dropout_of_the_residual_keeps_expectation_dtype_and_identity():
    x = jnp.ones((200, 200), jnp.bfloat16)
    assert dropout(x, 0.5, None) is x and dropout(x, 0.0, jax.random.key(0)) is x
    out = dropout(x, 0.25, jax.random.key(0))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.unique(np.asarray(out, np.float32)), [0, 171 / 128]
    )  # 4/3 rounded
    assert float((out > 0).mean()) == pytest.approx(0.75, abs=0.01)  # 4σ of 40,000 draws


def test_dropout_works_in_bfloat16_compute():
    spec, params, x = setup(hidden_dropout=0.1)
    y = ffn.apply(
        params,
        x,
        spec,
        numerics=Numerics(compute_dtype="bfloat16"),
        dropout_key=jax.random.key(0),
    )
    assert y.dtype == jnp.bfloat16 and bool(jnp.isfinite(y).all())

"""The FFN against the float64 oracle: values, gradients, clamps and rounding points."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from glu_lab.layers import ffn
from glu_lab.layers.params import leaves
from glu_lab.spec import VARIANTS, variant
from glu_lab.spec.numerics import Numerics
from tests.layers import oracle

F64 = Numerics.uniform("float64")
D, F = 6, 10
TEXTS = [*VARIANTS, "silu*silu", "swish(1.5)*linear", "swish_learned*linear", "xielu"]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def everything(text):
    """A Spec with every term of the formula switched on."""
    spec = variant(
        text,
        d_model=D,
        d_ff=F,
        bias=True,
        product_bias=True,
        output_scale=0.7,
    )
    first = dataclasses.replace(
        spec.branches[0], scale=1.3, pre=(-1.5, 2.0), post=(-0.2, 1.4), offset=0.25
    )
    return spec.replace(branches=(first, *spec.branches[1:]))


def random_params(spec, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=parameter.shape) * 0.8)
        for name, parameter in leaves(ffn.parameters(spec))
    }


def random_rows(*shape):
    return jnp.asarray(np.random.default_rng(99).normal(size=shape))


SPECS = [
    *((f"{text}, no bias", variant(text, d_model=D, d_ff=F, bias=False)) for text in TEXTS),
    *((f"{text}, biases", variant(text, d_model=D, d_ff=F, bias=True)) for text in TEXTS),
    *((f"{text}, everything", everything(text)) for text in TEXTS),
]


@pytest.mark.parametrize("spec", [s for _, s in SPECS], ids=[n for n, _ in SPECS])
def test_output_is_the_formula(spec):
    params, x = random_params(spec), random_rows(3, 5, D)
    got = jax.jit(lambda p, x: ffn.apply(p, x, spec, numerics=F64))(params, x)
    want = oracle.ffn(params, x, spec)
    # Sums of D and F terms in another order: a few ulp of the largest output.
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14 * np.abs(want).max())


@pytest.mark.parametrize("text", TEXTS)
def test_each_weights_gradient_is_the_oracles_finite_difference(text):
    """Named, so that two slots swapped in backward show up as two names."""
    spec = variant(text, d_model=D, d_ff=F, bias=True, product_bias=True, output_scale=0.7)
    params, x = random_params(spec), random_rows(4, D)
    upstream = np.random.default_rng(5).normal(size=(4, D))

    def loss(params, x):
        return jnp.sum(ffn.apply(params, x, spec, numerics=F64) * upstream)

    by_params, by_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x)

    def oracle_loss(changes, x=x):
        return float(np.sum(oracle.ffn({**params, **changes}, x, spec) * upstream))

    rng = np.random.default_rng(11)
    step = 1e-6
    for name, value in params.items():
        # Along one random direction an element's error cannot hide behind another's.
        direction = rng.normal(size=value.shape)
        difference = (
            oracle_loss({name: value + step * direction})
            - oracle_loss({name: value - step * direction})
        ) / (2 * step)
        got = float(jnp.sum(by_params[name] * direction))
        # Central difference: truncation h² and rounding 1e-16/h, both near 1e-10 of the loss; the
        # kink of a ReLU lies within 1e-6 of no pre-activation of this seed.
        assert got == pytest.approx(difference, rel=1e-6, abs=1e-7), name
    direction = rng.normal(size=x.shape)
    difference = (oracle_loss({}, x + step * direction) - oracle_loss({}, x - step * direction)) / (
        2 * step
    )
    assert float(jnp.sum(by_x * direction)) == pytest.approx(difference, rel=1e-6, abs=1e-7)


def one_channel(text, gate, up, **fields):
    """Y of an FFN with D = F = 1 whose two pre-activations are given."""
    spec = variant(text, d_model=1, d_ff=1, bias=False, **fields)
    params = {"wi": jnp.asarray([[[gate], [up]]], jnp.float64), "wo": jnp.ones((1, 1))}
    return float(ffn.apply(params, jnp.ones((1, 1)), spec, numerics=F64)[0, 0])


def test_the_activation_sees_the_gate_alone():
    """At g = u = −1 a function of g·u would give silu(1) = 0.731."""
    silu = -1 / (1 + math.e)
    assert one_channel("swiglu", -1.0, -1.0) == pytest.approx(silu * -1.0, rel=1e-15)
    assert one_channel("swiglu", -1.0, 2.0) == pytest.approx(silu * 2.0, rel=1e-15)


def test_both_clamps_of_gpt_oss_hold():
    """Gate 20, up −20, limit 7: the gate only from above, the up branch on both sides."""
    gate = 7 / (1 + math.exp(-1.702 * 7))
    assert one_channel("gpt_oss", 20.0, -20.0) == pytest.approx(gate * (-7 + 1), rel=1e-14)
    assert one_channel("gpt_oss", 20.0, 20.0) == pytest.approx(gate * (7 + 1), rel=1e-14)
    low = -20 / (1 + math.exp(1.702 * 20))
    assert one_channel("gpt_oss", -20.0, 0.5) == pytest.approx(low * 1.5, rel=1e-12)


def test_a_clamped_branch_passes_no_gradient():
    spec = variant("gpt_oss", d_model=1, d_ff=1, bias=False)
    params = {"wi": jnp.asarray([[[20.0], [-20.0]]], jnp.float64), "wo": jnp.ones((1, 1))}
    grads = jax.grad(lambda p: ffn.apply(p, jnp.ones((1, 1)), spec, numerics=F64).sum())(params)
    np.testing.assert_array_equal(grads["wi"], np.zeros((1, 2, 1)))


def rounded(x, dtype="bfloat16"):
    return np.asarray(x).astype(dtype).astype(np.float32)


@pytest.mark.slow
def test_rounding_points_differ_on_a_quarter_of_the_elements_and_each_is_what_it_says():
    """silu·up of 3072² bfloat16 pairs, rounded once after the product, or before it and after."""
    rng = np.random.default_rng(0)
    # As many elements as 3072²; few rows, since one-hot rows must pick the pre-activations that
    # stand in the weights.
    rows, width = 192, 49152
    gate, up = (rounded(rng.standard_normal((rows, width), np.float32)) for _ in range(2))
    spec = variant("swiglu", d_model=rows, d_ff=width)

    def product(rounding_point):
        """The hidden state for given pre-activations, through the library's own code path."""
        seen = {}
        params = {
            "wi": jnp.stack([jnp.asarray(gate), jnp.asarray(up)], axis=1).astype(jnp.bfloat16),
            "wo": jnp.zeros((width, rows), jnp.bfloat16),
        }
        ffn.apply(
            params,
            jnp.eye(rows, dtype=jnp.bfloat16),
            spec,
            numerics=Numerics(compute_dtype="bfloat16", rounding_point=rounding_point),
            tap=seen.__setitem__,
        )
        assert seen["product"].dtype == jnp.bfloat16
        return np.asarray(seen["product"]).astype(np.float32)

    phi = (gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))).astype(np.float32)
    once = rounded(phi * up)
    twice = rounded(rounded(phi) * up)
    got_once, got_twice = product("product"), product("branch")
    share = np.mean(got_once != got_twice)
    assert 0.2 < share < 0.35, share
    # The emulation rounds φ from float64 and the library evaluates it in float32; where the two
    # straddle a rounding border, one bfloat16 ulp apart, in about one element of 10⁴.
    assert np.mean(got_once != once) < 1e-3
    assert np.mean(got_twice != twice) < 1e-3
    np.testing.assert_allclose(got_once, once, rtol=2**-7)
    np.testing.assert_allclose(got_twice, twice, rtol=2**-7)


def test_formats_of_output_and_taps_are_the_stated_ones():
    spec = variant("swiglu", d_model=D, d_ff=F)
    params = ffn.init(jax.random.key(0), spec)
    seen = {}
    y = ffn.apply(
        params,
        jnp.ones((3, D)),
        spec,
        numerics=Numerics(compute_dtype="bfloat16"),
        tap=seen.__setitem__,
    )
    assert y.dtype == jnp.bfloat16
    assert {name: str(value.dtype) for name, value in seen.items()} == {
        "input": "bfloat16",
        "pre_activation": "float32",
        "slopes": "float32",
        "branches": "float32",
        "product": "bfloat16",
        "output": "bfloat16",
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_formats_stay_near_the_oracle(dtype):
    spec = variant("swiglu", d_model=64, d_ff=96)
    params, x = random_params(spec), random_rows(16, 64)
    numerics = dataclasses.replace(Numerics(), compute_dtype=dtype)
    got = ffn.apply(params, x, spec, numerics=numerics)
    assert got.dtype == dtype
    exact = {k: np.asarray(v).astype(dtype).astype(np.float64) for k, v in params.items()}
    want = oracle.ffn(exact, np.asarray(x).astype(dtype).astype(np.float64), spec)
    # Sums are float32; the hidden state is rounded once and the output once.
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=4 * eps * np.abs(want).max())


@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 1, 3)])
def test_leading_dimensions_are_any(leading):
    spec = variant("swiglu", d_model=D, d_ff=F, bias=True)
    params, x = random_params(spec), random_rows(*leading, D)
    got = ffn.apply(params, x, spec, numerics=F64)
    assert got.shape == x.shape
    np.testing.assert_allclose(got, oracle.ffn(params, x, spec), rtol=1e-12)


def test_taps_show_each_intermediate_in_order():
    spec = everything("gpt_oss").replace(hidden_dropout=0.5)
    params, x = random_params(spec), random_rows(2, 3, D)
    seen = []
    y = ffn.apply(
        params,
        x,
        spec,
        numerics=F64,
        dropout_key=jax.random.key(0),
        tap=lambda name, value: seen.append((name, value)),
    )
    assert [name for name, _ in seen] == list(ffn.TAPS)
    values = dict(seen)
    assert {n: v.shape for n, v in values.items()} == {
        "input": (2, 3, D),
        "pre_activation": (2, 3, 2, F),
        "slopes": (2, 3, 2, F),
        "branches": (2, 3, 2, F),
        "product": (2, 3, F),
        "output": (2, 3, D),
    }
    np.testing.assert_array_equal(values["input"], x)
    np.testing.assert_array_equal(values["output"], y)
    # Before dropout, and after the product's bias.
    np.testing.assert_allclose(
        values["product"],
        np.asarray(values["branches"]).prod(axis=-2) + np.asarray(params["bp"]),
        rtol=1e-14,
    )
    gate = 1.3 * (np.asarray(x) @ np.asarray(params["wi"])[:, 0] + np.asarray(params["bi_0"]))
    np.testing.assert_allclose(
        values["pre_activation"][..., 0, :], np.clip(gate, -1.5, 2.0), rtol=1e-12
    )


def test_wrong_widths_and_wrong_parameters_are_refused():
    spec = variant("swiglu", d_model=D, d_ff=F)
    params = random_params(spec)
    with pytest.raises(ValueError, match=f"its last dimension must be d_model={D}"):
        ffn.apply(params, random_rows(3, D + 1), spec)
    with pytest.raises(ValueError, match="do not fit the Spec"):
        ffn.apply({**params, "bo": jnp.zeros(D)}, random_rows(3, D), spec)
    with pytest.raises(ValueError, match="do not fit the Spec"):
        ffn.apply({"wi": params["wi"]}, random_rows(3, D), spec)


def test_parameters_of_another_spec_are_refused_by_shape():
    """An index past the last branch would be clamped, and compute another function."""
    one = ffn.init(jax.random.key(0), variant("silu", d_model=D, d_ff=F))
    with pytest.raises(ValueError, match="shape"):
        ffn.apply(one, jnp.ones((2, D)), variant("swiglu", d_model=D, d_ff=F))
    with pytest.raises(ValueError, match="shape"):
        ffn.apply(one, jnp.ones((2, D)), variant("silu", d_model=D, d_ff=F + 1))

"""The table of tolerances: tight enough to catch faults, wide enough for honest rounding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layers import ffn
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle.tolerances import TERMS, UNIT_ROUNDOFF, share, tolerance
from glu_lab.spec import variant
from glu_lab.spec.numerics import DTYPE_BYTES, Numerics
from tests.oracle.cases import SPECS, D, random_params, random_rows

DTYPES = tuple(UNIT_ROUNDOFF)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def numerics(dtype):
    if dtype == "float64":
        return Numerics.uniform("float64")
    return dataclasses.replace(Numerics(), compute_dtype=dtype)


def bound_of(spec, how):
    n = max(spec.d_model, spec.d_ff)
    return tolerance(how.compute_dtype, how.accumulation_dtype, n)


def network(text, d_model, d_ff, dtype, rows=24, seed=0, positive=False):
    """Spec, parameters and rows already rounded to a dtype: no error in reading them."""
    spec = variant(text, d_model=d_model, d_ff=d_ff)
    rng = np.random.default_rng(seed)

    def draw(shape, scale):
        values = rng.normal(size=shape) * scale
        return jnp.asarray(np.abs(values) if positive else values).astype(dtype)

    fans = {"wi": d_model, "wo": d_ff}
    params = {
        name: draw(shape, fans.get(name, 1.0) ** -0.5)
        for name, shape in oracle.shapes(spec).items()
    }
    return spec, params, draw((rows, d_model), 1.0)


@functools.cache
def layers(spec, how):
    """The layers under jit: one compilation, where single operations would be dozens."""
    return jax.jit(lambda params, x: ffn.apply(params, x, spec, numerics=how))


def measured(spec, params, x, how, got=None):
    if got is None:
        got = layers(spec, how)(params, x)
    want, spread = oracle.forward(params, x, spec), oracle.spread(params, x, spec)
    return share(got, want, spread, bound_of(spec, how))


def test_the_table_has_every_dtype_and_each_roundoff_is_where_one_plus_u_rounds():
    assert UNIT_ROUNDOFF.keys() == DTYPE_BYTES.keys()
    for name, u in UNIT_ROUNDOFF.items():
        one = np.asarray(1.0, jnp.dtype(name))
        # Halfway goes to the even 1; above it, up.
        assert np.asarray(1 + u).astype(one.dtype) == one
        assert np.asarray(1 + u * 1.5).astype(one.dtype) > one


def test_each_number_comes_with_its_reason():
    rtol, atol, reason = tolerance("bfloat16", "float32", 1024)
    assert rtol == 2.0**-8 + 64 * 2.0**-24
    assert atol == 3 * 2.0**-8 + 3 * 2.0**-24 + 64 * 2.0**-24
    assert "n = 1024" in reason and all(term.reason in reason for term in TERMS)
    assert "√n·u(float32)" in reason and "u(bfloat16)" in reason


@pytest.mark.parametrize("name", [name for name in SPECS if "everything" in name])
def test_the_layers_pass_in_float64_with_every_term_of_the_formula(name):
    spec = SPECS[name].replace(hidden_dropout=0.0)
    params = {key: jnp.asarray(value) for key, value in random_params(spec).items()}
    assert measured(spec, params, jnp.asarray(random_rows(3, D)), numerics("float64")) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("text", "d_model", "d_ff"),
    [("swiglu", 8, 16), ("gelu_erf", 33, 97), ("gpt_oss", 64, 256), ("relu2", 768, 128)],
)
def test_honest_rounding_passes_with_room_and_not_with_much(dtype, text, d_model, d_ff):
    worst = [
        measured(*network(text, d_model, d_ff, dtype, rows=16, seed=seed), numerics(dtype))
        for seed in range(2)
    ]
    assert max(worst) <= 0.8, worst
    if dtype != "float64" and text != "relu2":
        # A bound ten times wider than the errors would let real faults through.
        assert max(worst) >= 0.1, worst


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_one_sign_pass(dtype):
    spec, params, x = network("reglu", 256, 512, dtype, positive=True)
    assert measured(spec, params, x, numerics(dtype)) <= 1


def test_everything_in_bfloat16_passes_where_sums_are_short():
    spec, params, x = network("swiglu", 16, 32, "bfloat16")
    assert measured(spec, params, x, Numerics.uniform("bfloat16")) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_relative_error_of_four_times_the_bound_is_caught(dtype):
    spec, params, x = network("swiglu", 64, 96, dtype)
    rtol, atol, _ = bound_of(spec, numerics(dtype))
    exact = oracle.forward(params, x, spec)
    for sign in (1, -1):
        wrong = exact * (1 + sign * 4 * (rtol + atol))
        assert measured(spec, params, x, numerics(dtype), wrong) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_lost_channel_of_many_is_caught(dtype):
    spec, params, x = network("swiglu", 64, 96, dtype)
    lost = {**params, "wo": params["wo"].at[17].set(0)}
    assert measured(spec, params, x, numerics(dtype), oracle.forward(lost, x, spec)) > 1


@pytest.mark.parametrize(("d_model", "d_ff"), [(16, 32), (512, 1376)])
@pytest.mark.parametrize("gated", ["", "*linear"])
def test_tanh_gelu_for_erf_gelu_is_caught_in_float32_and_not_in_bfloat16(gated, d_model, d_ff):
    """They differ by 4.73e-4 at most, less than one rounding to bfloat16 of what is above 0.1."""
    for dtype, caught in [("float32", True), ("bfloat16", False)]:
        spec, params, x = network(f"gelu_erf{gated}", d_model, d_ff, dtype, rows=8)
        swapped = variant(f"gelu_tanh{gated}", d_model=d_model, d_ff=d_ff)
        got = layers(swapped, numerics(dtype))(params, x)
        assert (measured(spec, params, x, numerics(dtype), got) > 1) == caught


def test_quick_gelu_for_erf_gelu_is_caught_even_in_bfloat16():
    spec, params, x = network("gelu_erf", 512, 1376, "bfloat16", rows=8)
    quick = variant("quick_gelu", d_model=512, d_ff=1376)
    got = layers(quick, numerics("bfloat16"))(params, x)
    assert measured(spec, params, x, numerics("bfloat16"), got) > 1


def test_exchanged_branches_are_caught_in_every_dtype():
    for dtype in DTYPES:
        spec, params, x = network("swiglu", 64, 96, dtype)
        swapped = {**params, "wi": params["wi"][:, ::-1]}
        got = oracle.forward(swapped, x, spec)
        assert measured(spec, params, x, numerics(dtype), got) > 10


def test_what_is_not_finite_passes_only_where_both_are_the_same():
    bound = tolerance("float32", "float32", 8)
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    ones = np.ones(4)
    assert share(values, values, ones, bound) == 0
    assert share(values, values, np.full(4, np.nan), bound) == 0
    for wrong in ([0, np.inf, -np.inf, 1], [np.nan, -np.inf, -np.inf, 1], [np.nan, np.inf, 0, 1]):
        assert share(np.array(wrong), values, ones, bound) == np.inf
    assert share(np.array([np.nan]), np.array([1.0]), np.ones(1), bound) == np.inf
    assert share(np.array([2.0]), np.array([1.0]), np.full(1, np.nan), bound) == np.inf


def test_too_small_is_as_wrong_as_too_large():
    bound = tolerance("float32", "float32", 8)
    one = np.ones(1)
    assert share(one - 1e-3, one, one, bound) == pytest.approx(
        share(one + 1e-3, one, one, bound), rel=1e-9
    )
    assert share(one - 1e-3, one, one, bound) > 100


def test_where_nothing_can_round_nothing_may_differ():
    bound = tolerance("float32", "float32", 8)
    zero = np.zeros(1)
    assert share(zero, zero, zero, bound) == 0
    assert share(np.array([1e-30]), zero, zero, bound) == np.inf


def test_other_shapes_are_refused_and_not_broadcast():
    with pytest.raises(SpecError, match=r"result \(3, 1\), reference \(3,\)"):
        share(np.ones((3, 1)), np.ones(3), np.ones(3), tolerance("float32", "float32", 8))


@pytest.mark.parametrize("contraction", [0, -1, 2.0, True, None])
def test_a_contraction_that_is_no_length_is_refused(contraction):
    with pytest.raises(SpecError, match="integer ≥ 1"):
        tolerance("float32", "float32", contraction)


def test_unknown_dtypes_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        tolerance("bfloat", "float32", 8)
    with pytest.raises(UnknownNameError, match="accumulate of a tolerance 'tf32'"):
        tolerance("float32", "tf32", 8)


def test_sums_too_long_for_their_dtype_have_no_tolerance():
    with pytest.raises(SpecError, match="accumulate in float32, or sum at most 841 terms"):
        tolerance("bfloat16", "bfloat16", 4096)
    with pytest.raises(SpecError, match="841"):
        tolerance("bfloat16", "bfloat16", 842)
    assert tolerance("bfloat16", "bfloat16", 841).atol <= 0.25
    assert tolerance("bfloat16", "float32", 2**20).atol < 0.02

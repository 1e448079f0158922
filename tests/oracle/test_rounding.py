"""The scale of rounding errors in gradients, and whether the tolerances fit what is measured."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import functions, rounding
from glu_lab.oracle.tolerances import FLOOR, LARGEST, UNIT_ROUNDOFF, precision, share, tolerance
from glu_lab.spec import variant
from glu_lab.spec.numerics import Numerics
from tests.oracle.cases import SPECS, D, random_mask, random_params, random_rows

DTYPES = tuple(UNIT_ROUNDOFF)
T = 5


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def numerics(dtype):
    if dtype == "float64":
        return Numerics.uniform("float64")
    return dataclasses.replace(Numerics(), compute_dtype=dtype)


# The definition, by simulation: every term and intermediate with a relative error of its own.


def simulated(spec, params, x, upstream, keep, draws, size):
    """The output and the gradients of rows (T, D) with errors, by name; each (draws, …)."""
    rng = np.random.default_rng(1)

    def noisy(values):
        """Of every draw; an exact array has a first axis of 1."""
        return values * (1 + size * rng.normal(size=(draws, *values.shape[1:])))

    def every_row(vector):
        return np.broadcast_to(vector, (1, len(x), spec.d_ff))

    factors, slopes, by_scalar = [], [], []
    for i, branch in enumerate(spec.branches):
        z = noisy(x[None, :, :, None] * params["wi"][None, None, :, i]).sum(axis=2)
        z = noisy(z + (noisy(every_row(params[f"bi_{i}"])) if branch.bias else 0.0))
        learned = {n: params[f"phi_{i}_{n}"] for n in branch.activation.row.learned}
        scaled = branch.scale * z
        a = functions.clamp(scaled, *branch.pre) if branch.pre else scaled
        phi = functions.value(branch.activation, a, learned)
        inside = (a == scaled).astype(float)
        if branch.post:
            clamped = functions.clamp(phi, *branch.post)
            inside, phi = inside * (clamped == phi), clamped
        factors.append((noisy(phi) if branch.offset else phi) + branch.offset)
        slopes.append(inside * functions.derivative(branch.activation, a, learned) * branch.scale)
        parts = functions.by_learned(branch.activation, a, learned)
        passed = (
            1.0 if not branch.post else clamped == functions.value(branch.activation, a, learned)
        )
        by_scalar.append({n: part * passed for n, part in parts.items()})
    product = math.prod(factors)
    if spec.product_bias:
        product = noisy(product) + noisy(every_row(params["bp"]))
    kept = 1.0 if keep is None else keep / (1 - spec.hidden_dropout)
    u = spec.output_scale * upstream
    by_hidden = noisy(u[None, :, None] * params["wo"][None, None]).sum(axis=3)
    by_hidden = noisy(kept * by_hidden)

    hidden = kept * noisy(product)
    y = hidden @ params["wo"]
    if spec.output_bias:
        y = y + noisy(np.broadcast_to(params["bo"], (1, *x.shape)))
    out = {"output": spec.output_scale * y, "wo": np.einsum("ktf,td->kfd", hidden, u)}
    by_x, by_wi = 0.0, []
    for i, branch in enumerate(spec.branches):
        before = noisy(by_hidden * math.prod(f for j, f in enumerate(factors) if j != i))
        for name, part in by_scalar[i].items():
            out[f"phi_{i}_{name}"] = np.sum(noisy(before * part), axis=(1, 2))
        by_affine = noisy(before * slopes[i])
        by_wi.append(np.einsum("td,ktf->kdf", x, by_affine))
        by_x = by_x + noisy(np.einsum("ktf,df->ktd", by_affine, params["wi"][:, i]))
        if branch.bias:
            out[f"bi_{i}"] = by_affine.sum(axis=1)
    return {**out, "x": by_x, "wi": np.stack(by_wi, axis=2)}


@pytest.mark.parametrize("name", [*(n for n in SPECS if "everything" in n), "swiglu", "gpt_oss"])
def test_the_spread_is_the_deviation_of_gradients_whose_steps_all_err(name):
    spec = SPECS[name]
    params, x, upstream = random_params(spec), random_rows(T, D), random_rows(T, D, seed=5)
    keep = random_mask(spec, T) if spec.hidden_dropout else None
    # So small that errors add to first order, and that none crosses a kink.
    size = 1e-7
    got = rounding.spread_backward(params, x, spec, upstream, keep=keep)
    output = oracle.spread(params, x, spec, keep=keep)
    scales = {**got.by_params, "x": got.by_x, "output": output}
    for key, samples in simulated(spec, params, x, upstream, keep, 1500, size).items():
        deviation = np.std(samples, axis=0) / size
        scale = scales[key]
        assert scale.shape == deviation.shape
        moving = deviation > 1e-6 * np.max(deviation, initial=0.0)
        # A deviation of 1500 samples is 2 % uncertain; that of the worst of hundreds 8 %.
        np.testing.assert_allclose(scale[moving], deviation[moving], rtol=0.1, err_msg=key)
        np.testing.assert_allclose(scale[~moving], 0, atol=1e-6 * np.max(scale, initial=1.0))


def test_of_one_number_the_spread_is_its_formula():
    """y = (w x)·v under an upstream gradient of 2: every line by hand."""
    spec = variant("linear", d_model=1, d_ff=1)
    params = {"wi": np.array([[[3.0]]]), "wo": np.array([[5.0]])}
    got = rounding.spread_backward(params, [[7.0]], spec, [[2.0]])
    # G: its one term, and itself. G·1: that, and itself. A: that, and itself. Of a size 10 each.
    A = 10 * 4**0.5
    assert got.by_params["wi"].item() == pytest.approx(7 * A)
    # x W: its term and itself; H itself: 21 each; by 2.
    assert got.by_params["wo"].item() == pytest.approx(2 * 21 * 3**0.5)
    # And the branch's own sum, 10·3.
    assert got.by_x.item() == pytest.approx(3 * 10 * 5**0.5)
    assert got.largest == 7 * 3 * 5  # the output


@functools.cache
def layers(spec, how):
    """Output and every gradient, compiled once."""

    def run(params, x, upstream):
        y, back = jax.vjp(lambda p, x: ffn.apply(p, x, spec, numerics=how), params, x)
        by_params, by_x = back(upstream)
        return {"output": y, "x": by_x, **by_params}

    return jax.jit(run)


def drawn(spec, dtype, rows, seed, positive=False):
    """Parameters (stored wide), rows and upstream, rounded to a dtype."""
    rng = np.random.default_rng(seed)
    how = numerics(dtype)

    def draw(shape, scale, stored):
        values = scale * rng.normal(size=shape)
        return jnp.asarray(np.abs(values) if positive else values).astype(dtype).astype(stored)

    scales = {"wi": spec.d_model**-0.5, "wo": spec.d_ff**-0.5}
    params = {
        name: draw(shape, scales.get(name, 0.5), how.parameter_dtype)
        for name, shape in oracle.shapes(spec).items()
    }
    x, upstream = (draw((rows, spec.d_model), 1.0, dtype) for _ in range(2))
    return params, x, upstream


def shares(got, spec, how, params, x, upstream):
    """Each result's error as a share of what is allowed."""
    dtype, accumulate = how.compute_dtype, how.accumulation_dtype
    n = max(spec.d_model, spec.d_ff)
    near = precision(dtype, accumulate, n)
    by_x, by_params = oracle.backward(params, x, spec, upstream)
    scale = rounding.spread_backward(params, x, spec, upstream, near=near)
    want = {"x": by_x, **by_params}
    scales = {"x": scale.by_x, **scale.by_params}
    out = {}
    for name, reference in want.items():
        longest = rounding.longest_sum(spec, len(x), "" if name == "x" else name)
        bound = tolerance(dtype, accumulate, longest)
        out[name] = share(got[name], reference, scales[name], bound)
    return out


def everything(text, d_model, d_ff):
    spec = variant(text, d_model=d_model, d_ff=d_ff, bias=True, product_bias=True, output_scale=0.7)
    first, *others = spec.branches
    first = dataclasses.replace(first, scale=1.3, pre=(-1.5, 2.0), post=(-0.2, 1.4), offset=0.25)
    return spec.replace(branches=(first, *others))


MEASURED = (
    (variant("swiglu", d_model=8, d_ff=16, bias=True), 24),
    (variant("gelu_erf", d_model=33, d_ff=97), 1),
    (variant("drelu", d_model=64, d_ff=128), 9),
    (everything("xielu*swish_learned", 16, 32), 12),
)


#: First letters of a name → what kind of sum its gradient is.
KINDS = {
    "x": "rows",
    "wi": "weights",
    "wo": "weights",
    "bi": "hidden biases",
    "bp": "hidden biases",
    "bo": "output bias",
    "ph": "scalars",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_measured_errors_stay_within_and_the_tolerance_is_no_hundred_times_theirs(dtype):
    how, worst = numerics(dtype), {}
    for spec, rows in MEASURED:
        for seed in range(6):
            arrays = drawn(spec, dtype, rows, seed)
            found = shares(layers(spec, how)(*arrays), spec, how, *arrays)
            for name, size in found.items():
                assert size <= 1, (name, seed, size)
                worst[KINDS[name[:2]]] = max(worst.get(KINDS[name[:2]], 0.0), size)
    # Nothing of the output bias's gradient is rounded to a narrow dtype, only its sum errs: the
    # tolerance is that of an execution which rounds output_scale · ∂loss/∂Y.
    if dtype in ("bfloat16", "float16"):
        del worst["output bias"]
    assert min(worst.values()) > 0.01, worst
    assert 0.1 < max(worst.values())


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_gradients_of_many_rows_of_one_sign_pass_by_their_own_length(dtype):
    """The worst case of a sum: T terms that all add up, for which D and F would be no measure."""
    spec = variant("reglu", d_model=4, d_ff=8)
    arrays = drawn(spec, dtype, 4096, 0, positive=True)
    found = shares(layers(spec, numerics(dtype))(*arrays), spec, numerics(dtype), *arrays)
    assert max(found.values()) <= 1
    assert rounding.longest_sum(spec, 4096, "wi") == 4096
    assert rounding.longest_sum(spec, 4096) == 16  # by the rows: both branches' channels
    assert rounding.longest_sum(spec, 4096, "phi_0_beta") == 4096 * 8


def _swapped(exact, params, spec):
    """Backward of SwiGLU with its two slots exchanged, a fault seen in kernels."""
    return {**exact, "wi": exact["wi"][:, ::-1]}


def _one_row_lost(exact, params, spec):
    return {**exact, "wi": exact["wi"] * (1 - 1 / 12)}


def _bias_twice(exact, params, spec):
    return {**exact, "bo": 2 * exact["bo"]}


def _a_ranks_channels_left_out(exact, params, spec):
    half = spec.d_ff // 2
    by_x, _ = oracle.backward(
        {
            n: v if n == "bo" else v[:half] if n == "wo" else v[..., :half]
            for n, v in params.items()
        },
        exact["rows"],
        spec.replace(d_ff=half),
        exact["upstream"],
    )
    return {**exact, "x": by_x}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "fault", [_swapped, _one_row_lost, _bias_twice, _a_ranks_channels_left_out]
)
def test_wrong_gradients_are_caught_in_every_dtype(fault, dtype):
    spec = variant("swiglu", d_model=16, d_ff=32, bias=True)
    params, x, upstream = drawn(spec, dtype, 12, 0)
    by_x, by_params = oracle.backward(params, x, spec, upstream)
    exact = {"x": by_x, **by_params, "rows": x, "upstream": upstream}
    how = numerics(dtype)
    assert max(shares(exact, spec, how, params, x, upstream).values()) == 0
    wrong = fault(exact, {n: np.asarray(v, np.float64) for n, v in params.items()}, spec)
    assert max(shares(wrong, spec, how, params, x, upstream).values()) > 2


def test_either_side_of_a_kink_passes_within_rounding_and_only_there():
    """The pre-activation is near a clamp's 1: the slope is 1 on one side and 0 on the other."""
    branch = dataclasses.replace(variant("linear", d_model=2, d_ff=1).branches[0], pre=(-1.0, 1.0))
    spec = variant("linear", d_model=2, d_ff=1).replace(branches=(branch,))
    x, upstream = np.array([[1.0, 1.0]]), np.array([[1.0, 0.0]])
    near = precision("bfloat16", "float32", 2)
    bound = tolerance("bfloat16", "float32", 2)
    for gap, passes in ((2.0**-9, True), (2.0**-5, False)):
        for inside in (True, False):
            w = 1 - gap if inside else 1 + gap
            params = {"wi": np.array([[[w]], [[0.0]]]), "wo": np.array([[1.0, 0.0]])}
            by_x, _ = oracle.backward(params, x, spec, upstream)
            assert by_x[0, 0] == (w if inside else 0.0)
            scale = rounding.spread_backward(params, x, spec, upstream, near=near)
            other = np.array([[0.0 if inside else w, 0.0]])
            assert (share(other, by_x, scale.by_x, bound) <= 1) == passes
            # Half of it is what JAX makes of an argument on the bound itself.
            assert (share(other / 2 + by_x / 2, by_x, scale.by_x, bound) <= 1) == passes
            # More than the whole slope is never right.
            beyond = by_x + np.array([[1.2 * w, 0.0]])
            assert share(beyond, by_x, scale.by_x, bound) > 1


def test_where_the_argument_is_exact_a_kink_is_a_convention():
    """x = 0 exactly: every execution has ReLU's slope 0 there, and another is a fault."""
    spec = variant("relu", d_model=1, d_ff=1)
    params = {"wi": np.ones((1, 1, 1)), "wo": np.ones((1, 1))}
    near = precision("float32", "float32", 1)
    scale = rounding.spread_backward(params, [[0.0]], spec, [[1.0]], near=near)
    bound = tolerance("float32", "float32", 1)
    assert share(np.array([[1.0]]), np.array([[0.0]]), scale.by_x, bound) > 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_range_of_each_dtype_is_that_of_its_numbers(dtype):
    limits = jnp.finfo(dtype)
    assert LARGEST[dtype] == float(limits.max)
    if dtype == "float16":
        assert FLOOR[dtype] == float(limits.tiny)
    else:
        assert FLOOR[dtype] * UNIT_ROUNDOFF[dtype] >= float(limits.tiny)
        assert FLOOR[dtype] < 1e-29


def test_the_largest_intermediate_tells_what_overflows():
    spec = variant("bilinear", d_model=1, d_ff=1)
    params = {"wi": np.full((1, 2, 1), 300.0), "wo": np.full((1, 1), 1e-3)}
    largest = rounding.spread_backward(params, [[1.0]], spec, [[1.0]]).largest
    assert largest == 9e4 > LARGEST["float16"]
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(300) * np.float16(300))


def test_a_precision_is_of_known_dtypes_alone():
    with pytest.raises(SpecError, match="unknown dtype"):
        precision("tf32", "float32", 8)

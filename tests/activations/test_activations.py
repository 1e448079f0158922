"""Values, derivatives and tails of every activation, against NumPy, SciPy and torch."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from glu_lab import activations
from glu_lab.spec.activation import ACTIVATIONS, Activation
from tests.activations.reference import FORMULAS, LEARNED, derivative

torch = pytest.importorskip("torch")

NAMES = tuple(FORMULAS)
DTYPES = ("float64", "float32", "bfloat16", "float16")

#: 1 ulp of the dtype, relative, for normal results.
EPS = {name: float(ml_dtypes.finfo(name).eps) for name in DTYPES}
TINY = {name: float(ml_dtypes.finfo(name).tiny) for name in DTYPES}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def learned(name, dtype="float64"):
    values = LEARNED.get(name, {})
    return {key: jnp.asarray(value, dtype) for key, value in values.items()}


def numbers(name):
    return tuple(LEARNED.get(name, {}).values())


def grid():
    dense = np.linspace(-12, 12, 2001)
    return np.concatenate([dense, [-20.0, 20.0], np.geomspace(1e-8, 1, 40)])


def test_every_activation_of_the_table_has_a_reference():
    assert {Activation.parse(name).name for name in NAMES} | {"swish"} >= ACTIVATIONS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_value_is_the_formula(name):
    x = grid()
    got = activations.value(Activation.parse(name), jnp.asarray(x), learned(name))
    # exp(t) carries |t| ulp; at −20 the cubic of tanh-GELU makes t = −600: 1.3e-13, twice over.
    # xIELU alone subtracts (expm1(x) − x) and so has an absolute error of an ulp of 1.
    atol = 1e-15 if name == "xielu" else 0.0
    np.testing.assert_allclose(got, FORMULAS[name](x, *numbers(name)), rtol=3e-13, atol=atol)


@pytest.mark.parametrize("name", NAMES)
def test_derivative_is_the_complex_step_of_the_formula(name):
    x = grid()
    got = activations.derivative(Activation.parse(name), jnp.asarray(x), learned(name))
    # Near a zero of φ′ two terms cancel, so the bound is absolute there.
    want = derivative(name, x, *numbers(name))
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_grad_and_jvp_are_the_derivative(name):
    activation, scalars = Activation.parse(name), learned(name)
    x = jnp.asarray(grid())
    by_grad = jax.grad(lambda x: activations.value(activation, x, scalars).sum())(x)
    _, by_jvp = jax.jvp(
        lambda x: activations.value(activation, x, scalars), (x,), (jnp.ones_like(x),)
    )
    want = activations.derivative(activation, x, scalars)
    np.testing.assert_array_equal(by_grad, want)
    np.testing.assert_array_equal(by_jvp, want)


@pytest.mark.parametrize("name", ["silu", "quick_gelu", "gelu_erf", "gelu_tanh", "sigmoid", "tanh"])
def test_second_derivative_is_right_at_zero_and_elsewhere(name):
    """Hessian-vector products differentiate the derivative; |x| inside must not spoil x = 0."""
    x = np.array([-6.0, -1.0, 0.0, 0.5, 6.0])
    second = jax.vmap(jax.grad(jax.grad(lambda x: activations.value(Activation.parse(name), x))))(
        jnp.asarray(x)
    )
    step = 1e-5  # truncation h²·φ⁗/6 ≈ 1e-11, rounding 1e-16/h ≈ 1e-11
    want = (derivative(name, x + step) - derivative(name, x - step)) / (2 * step)
    np.testing.assert_allclose(second, want, atol=1e-9)


TORCH = {
    "relu": torch.nn.functional.relu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.mark.parametrize("name", TORCH)
def test_value_and_gradient_are_torchs(name):
    x = np.linspace(-5, 5, 1001)
    rows = torch.tensor(x, requires_grad=True)
    out = TORCH[name](rows)
    out.sum().backward()
    got, vjp = jax.vjp(lambda x: activations.value(Activation(name), x), jnp.asarray(x))
    # torch writes 1 + erf and 1 + tanh, which cancel to about 1e-16·|x| absolute on the left.
    np.testing.assert_allclose(got, out.detach().numpy(), rtol=1e-13, atol=3e-15)
    np.testing.assert_allclose(
        vjp(jnp.ones_like(got))[0], rows.grad.numpy(), rtol=1e-13, atol=3e-15
    )


def test_learned_swish_gradients_are_torchs():
    x, upstream = np.linspace(-5, 5, 201), np.cos(np.arange(201))
    rows = torch.tensor(x, requires_grad=True)
    beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (rows * torch.sigmoid(beta * rows)).backward(torch.tensor(upstream))
    _, vjp = jax.vjp(
        lambda x, beta: activations.value(Activation("swish_learned"), x, {"beta": beta}),
        jnp.asarray(x),
        jnp.asarray(0.7),
    )
    by_x, by_beta = vjp(jnp.asarray(upstream))
    np.testing.assert_allclose(by_x, rows.grad.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(by_beta, beta.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
def test_learned_swish_beta_gradient_has_no_hole(beta):
    """dφ/dβ = x²·σ(βx)·σ(−βx), also where βx is exactly 0."""
    x = np.array([-3.0, 0.0, 2.0])
    got = jax.vmap(
        jax.grad(lambda b, x: activations.value(Activation("swish_learned"), x, {"beta": b})),
        in_axes=(None, 0),
    )(jnp.asarray(beta), jnp.asarray(x))
    np.testing.assert_allclose(
        got, x**2 * special.expit(beta * x) * special.expit(-beta * x), rtol=1e-13
    )


def test_xielu_and_its_gradients_are_those_of_transformers():
    from transformers.activations import XIELUActivation

    module = XIELUActivation(dtype=torch.float64)
    with torch.no_grad():
        module.alpha_p.fill_(0.4)
        module.alpha_n.fill_(-0.9)
    x, upstream = np.linspace(-5, 5, 202), np.cos(np.arange(202))
    rows = torch.tensor(x, requires_grad=True)
    out = module._xielu_python(rows)
    out.backward(torch.tensor(upstream))

    def ours(x, p, n):
        return activations.value(Activation("xielu"), x, {"p": p, "n": n})

    got, vjp = jax.vjp(ours, jnp.asarray(x), jnp.asarray(0.4), jnp.asarray(-0.9))
    np.testing.assert_allclose(got, out.detach().numpy(), rtol=1e-13, atol=1e-15)
    by_x, by_p, by_n = vjp(jnp.asarray(upstream))
    np.testing.assert_allclose(by_x, rows.grad.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(by_p, module.alpha_p.grad.item(), rtol=1e-12)
    np.testing.assert_allclose(by_n, module.alpha_n.grad.item(), rtol=1e-12)


def test_learned_scalars_start_where_their_papers_start():
    row = ACTIVATIONS["xielu"].learned
    assert np.log1p(np.exp(row["p"])) == pytest.approx(0.8, rel=1e-15)
    assert 0.5 + np.log1p(np.exp(row["n"])) == pytest.approx(0.8, rel=1e-15)
    assert ACTIVATIONS["swish_learned"].learned == {"beta": 1.0}


def test_two_gelus_and_quick_gelu_differ_by_the_known_amounts():
    def at(name, x):
        return float(activations.value(Activation(name), jnp.asarray(x)))

    assert abs(at("quick_gelu", 2.27) - at("gelu_erf", 2.27)) == pytest.approx(2.03e-2, rel=5e-3)
    assert abs(at("gelu_tanh", -2.7) - at("gelu_erf", -2.7)) == pytest.approx(4.73e-4, rel=5e-3)


def test_silu_derivative_survives_in_the_far_left_tail():
    got = float(activations.derivative(Activation("silu"), jnp.asarray(-709.0)))
    assert got == pytest.approx(-8.6148e-306, rel=1e-5)
    # d = σ(x)(1 + xσ(−x)) = e^x(1 + x) to 300 digits; in float64 e^−709 is accurate to 709 ulp.
    assert got == pytest.approx(np.exp(-709.0) * -708.0, rel=1e-12)


def test_bfloat16_silu_at_minus_8_is_not_zero():
    got = activations.value(Activation("silu"), jnp.asarray(-8.0, jnp.bfloat16))
    assert float(got) == pytest.approx(-8 * special.expit(-8.0), rel=EPS["bfloat16"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_derivatives_round_once(name, dtype):
    """Any dtype gives the float64 result to its own precision, from the argument it was given."""
    x = np.linspace(-9, 9, 721).astype(dtype)
    exact = x.astype(np.float64)
    want = {
        activations.value: FORMULAS[name](exact, *numbers(name)),
        activations.derivative: derivative(name, exact, *numbers(name)),
    }
    # Half formats are evaluated in float32: one half-ulp of their own. float32 and float64 lose
    # |x| ulp in exp(x), 2·x² in the exponent of a density, and 30 in tanh-GELU's cubic.
    ulps = 0.51 if dtype in ("bfloat16", "float16") else 160
    for function, reference in want.items():
        apply = jax.jit(lambda x: function(Activation.parse(name), x, learned(name)))  # noqa: B023
        got = apply(jnp.asarray(x))
        assert got.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(got, np.float64),
            reference,
            rtol=ulps * EPS[dtype],
            # Subnormals flush; a derivative's two terms cancel where it crosses 0.
            atol=TINY[dtype] + (2 * EPS["float32"] if ulps < 1 else 4 * EPS[dtype]),
        )


@functools.lru_cache
def extremes(name, dtype):
    """Value and derivative at −∞, −largest, −100, 100, largest, ∞ and NaN, as float64."""
    largest = float(ml_dtypes.finfo(dtype).max)
    x = jnp.asarray([-np.inf, -largest, -100.0, 100.0, largest, np.inf, np.nan], dtype)
    activation, scalars = Activation.parse(name), learned(name)
    value = jax.jit(lambda x: activations.value(activation, x, scalars))(x)
    slope = jax.jit(lambda x: activations.derivative(activation, x, scalars))(x)
    return np.asarray(value, np.float64), np.asarray(slope, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_far_tails_are_finite_and_right(name, dtype):
    """±100: φ is x or its limit, and no derivative is NaN."""
    value, slope = (array[2:4] for array in extremes(name, dtype))
    assert np.isfinite(value).all() and np.isfinite(slope).all()
    if LIMITS.get(name, (None,))[0] == 0 and name not in ("sigmoid", "relu2"):
        np.testing.assert_allclose(value, [0, 100], atol=1e-20)
        np.testing.assert_allclose(slope, [0, 1], atol=1e-20)


#: φ(−∞), φ(∞), φ′(−∞), φ′(∞).
LIMITS = {
    "linear": (-np.inf, np.inf, 1, 1),
    "relu": (0, np.inf, 0, 1),
    "relu2": (0, np.inf, 0, np.inf),
    "gelu_erf": (0, np.inf, 0, 1),
    "gelu_tanh": (0, np.inf, 0, 1),
    "silu": (0, np.inf, 0, 1),
    "quick_gelu": (0, np.inf, 0, 1),
    "swish(1.5)": (0, np.inf, 0, 1),
    "swish(-0.5)": (-np.inf, 0, 1, 0),
    "sigmoid": (0, 1, 0, 0),
    "tanh": (-1, 1, 0, 0),
    "swish_learned": (0, np.inf, 0, 1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LIMITS)
def test_infinities_and_the_largest_numbers_reach_the_limit(name, dtype):
    value, slope = extremes(name, dtype)
    np.testing.assert_array_equal([value[0], value[5], slope[0], slope[5]], LIMITS[name])
    assert not np.isnan(value[:6]).any() and not np.isnan(slope[:6]).any()
    if name != "relu2":
        np.testing.assert_array_equal(slope[[1, 4]], LIMITS[name][2:])


def test_swish_with_beta_zero_is_half_of_x_everywhere():
    x = jnp.asarray([-np.inf, -3.0, 0.0, 5.0, np.inf])
    half = Activation("swish", (0.0,))
    np.testing.assert_array_equal(activations.value(half, x), x / 2)
    np.testing.assert_array_equal(activations.derivative(half, x), np.full(5, 0.5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "linear"])
def test_nan_stays_nan(name, dtype):
    value, slope = extremes(name, dtype)
    assert np.isnan(value[6]) and np.isnan(slope[6])


def test_relu_derivative_is_zero_at_both_zeros():
    x = jnp.asarray([0.0, -0.0])
    np.testing.assert_array_equal(activations.derivative(Activation("relu"), x), [0, 0])
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(lambda x: activations.value(Activation("relu"), x)))(x), [0, 0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_scalars_and_any_shape_are_taken_under_jit(name):
    activation, scalars = Activation.parse(name), learned(name)
    x = jnp.linspace(-2.0, 2.0, 24).reshape(2, 3, 4)
    whole = activations.value(activation, x, scalars)
    assert whole.shape == x.shape
    one = jax.jit(lambda x: activations.value(activation, x, scalars))(x[1, 2, 3])
    np.testing.assert_allclose(one, whole[1, 2, 3], rtol=1e-15)


def test_exact_zeros_column_is_true():
    x = jnp.linspace(-5.0, -1.0, 9)
    for name in NAMES:
        activation = Activation.parse(name)
        zeros = bool((activations.value(activation, x, learned(name)) == 0).all())
        assert zeros == activation.row.exact_zeros, name


def test_a_missing_learned_scalar_is_named():
    with pytest.raises(KeyError, match="n"):
        activations.value(Activation("xielu"), jnp.ones(2), {"p": jnp.asarray(0.1)})

"""The oracle's φ: points known in closed form, high precision, complex steps, limits."""

import math

import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.oracle import functions
from glu_lab.spec.activation import ACTIVATIONS, Activation

LEARNED = {"swish_learned": {"beta": 0.7}, "xielu": {"p": 0.4, "n": -0.9}}
NAMES = (*(name for name in ACTIVATIONS if name != "swish"), "swish(1.5)", "swish(-0.5)")


def phi(text, x, learned=None):
    return functions.value(Activation.parse(text), x, learned or LEARNED.get(text))


def slope(text, x, learned=None):
    return functions.derivative(Activation.parse(text), x, learned or LEARNED.get(text))


def grid():
    return np.concatenate([np.linspace(-12, 12, 481), np.geomspace(1e-8, 1, 20), [-30.0, 30.0]])


def test_every_activation_of_the_table_has_a_formula():
    assert functions.FORMULAS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize(
    ("text", "x", "value"),
    [
        ("quick_gelu", 2.27, 2.27 / (1 + math.exp(-1.702 * 2.27))),
        ("gelu_erf", -2.7, -2.7 * 0.5 * math.erfc(2.7 / math.sqrt(2))),
        (
            "gelu_tanh",
            -2.7,
            -1.35 * (1 - math.tanh(0.7978845608028654 * (2.7 + 0.044715 * 19.683))),
        ),
        ("silu", -1.0, -1 / (1 + math.e)),
        ("silu", -8.0, -8 / (1 + math.exp(8))),
        ("silu", -709.0, -709 * math.exp(-709)),
        # exp(−714) by itself is subnormal and has lost bits; the product is normal.
        ("silu", -714.0, -714 * math.exp(-357) * math.exp(-357)),
        ("sigmoid", math.log(3), 0.75),
        ("tanh", math.log(3) / 2, 0.5),
        ("relu", -0.0, 0.0),
        ("relu2", 3.0, 9.0),
        ("swish(-0.5)", 2 * math.log(3), 2 * math.log(3) / 4),
    ],
)
def test_known_points(text, x, value):
    # 1 − tanh of 2.85 loses 8 bits in the reference: 3e-14.
    rtol = 1e-13 if text == "gelu_tanh" else 1e-15
    np.testing.assert_allclose(phi(text, x), value, rtol=rtol)


def test_flavours_of_gelu_differ_by_what_is_published():
    x = np.linspace(-6, 6, 120001)
    for other, most, where in [("gelu_tanh", 4.73e-4, 2.70), ("quick_gelu", 2.03e-2, 2.27)]:
        gap = np.abs(phi(other, x) - phi("gelu_erf", x))
        # Three digits and two are given.
        assert gap.max() == pytest.approx(most, rel=2e-3)
        assert abs(x[gap.argmax()]) == pytest.approx(where, abs=0.011)


MPMATH = {
    "gelu_erf": lambda m, x: x * m.erfc(-x / m.sqrt(2)) / 2,
    "gelu_tanh": lambda m, x: (
        x / (1 + m.exp(-2 * m.sqrt(2 / m.pi) * (x + m.mpf("0.044715") * x**3)))
    ),
    "silu": lambda m, x: x / (1 + m.exp(-x)),
    "quick_gelu": lambda m, x: x / (1 + m.exp(-m.mpf("1.702") * x)),
    "sigmoid": lambda m, x: 1 / (1 + m.exp(-x)),
    "tanh": lambda m, x: m.tanh(x),
}


@pytest.mark.parametrize("text", MPMATH)
def test_value_and_derivative_agree_with_fifty_digits_into_the_far_tails(text):
    mpmath = pytest.importorskip("mpmath")
    tails = {"gelu_erf": [-37.0], "gelu_tanh": [-20.0], "quick_gelu": [-400.0]}
    x = np.array([-9.5, -2.7, -0.3, 1e-9, 0.8, 2.27, 7.0, 30.0, *tails.get(text, [-700.0])])
    with mpmath.workdps(50):
        function = MPMATH[text]
        values = [float(function(mpmath, mpmath.mpf(v))) for v in x]
        slopes = [float(mpmath.diff(lambda v: function(mpmath, v), mpmath.mpf(v))) for v in x]
    # An exponent t is rounded before exp: |t|·u, and |t| reaches 700.
    np.testing.assert_allclose(phi(text, x), values, rtol=3e-13)
    np.testing.assert_allclose(slope(text, x), slopes, rtol=3e-13, atol=1e-305)


@pytest.mark.parametrize("text", NAMES)
def test_derivative_is_the_complex_step_of_the_value(text):
    x, step = grid(), 1e-30
    got = slope(text, x)
    # Near a zero of φ′ two terms cancel, so the bound is absolute there.
    np.testing.assert_allclose(
        got, np.imag(phi(text, x + 1j * step)) / step, rtol=2e-13, atol=1e-15
    )


@pytest.mark.parametrize("text", NAMES)
def test_derivative_is_the_central_difference_of_the_value(text):
    step = 1e-5
    x = grid()
    x = x[np.abs(x) > 2 * step]  # away from the kinks at 0 and −10⁻⁶
    difference = (phi(text, x + step) - phi(text, x - step)) / (2 * step)
    # Truncation h²·φ‴/6 ≤ 1e-10, rounding u·|φ|/h ≤ 1e-11 times values up to 10³.
    np.testing.assert_allclose(slope(text, x), difference, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("text", NAMES)
def test_a_complex_step_of_the_derivative_is_its_central_difference(text):
    """Complex arguments go through derivatives too."""
    x, step = np.array([-3.0, -0.7, 0.4, 2.5]), 1e-5
    exact = np.imag(slope(text, x + 1e-30j)) / 1e-30
    difference = (slope(text, x + step) - slope(text, x - step)) / (2 * step)
    np.testing.assert_allclose(exact, difference, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("text", LEARNED)
def test_derivatives_by_learned_scalars_are_complex_steps(text):
    x, step = grid(), 1e-30
    by_learned = functions.by_learned(Activation(text), x, LEARNED[text])
    assert by_learned.keys() == ACTIVATIONS[text].learned.keys()
    for name, got in by_learned.items():
        moved = {**LEARNED[text], name: LEARNED[text][name] + 1j * step}
        # expm1(x) − x cancels near 0 to an ulp of x.
        want = np.imag(phi(text, x, moved)) / step
        np.testing.assert_allclose(got, want, rtol=2e-13, atol=1e-15, err_msg=name)


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("linear", (-np.inf, 1), (np.inf, 1)),
        ("relu", (0, 0), (np.inf, 1)),
        ("relu2", (0, 0), (np.inf, np.inf)),
        *((name, (0, 0), (np.inf, 1)) for name in ("silu", "quick_gelu", "swish(1.5)")),
        *((name, (0, 0), (np.inf, 1)) for name in ("gelu_erf", "gelu_tanh", "swish_learned")),
        ("sigmoid", (0, 0), (1, 0)),
        ("tanh", (-1, 0), (1, 0)),
        ("xielu", (np.inf, -math.log1p(math.exp(-0.9))), (np.inf, np.inf)),
    ],
)
def test_infinities_and_the_largest_numbers_give_limits(text, left, right):
    for x, (value, derivative) in [(-np.inf, left), (np.inf, right)]:
        assert phi(text, x) == value
        np.testing.assert_allclose(slope(text, x), derivative, rtol=1e-15)
    largest = np.finfo(np.float64).max
    assert not np.any(np.isnan([phi(text, [-largest, largest]), slope(text, [-largest, largest])]))


@pytest.mark.parametrize("text", NAMES)
def test_nan_stays_nan(text):
    assert np.isnan(phi(text, np.nan)) and np.isnan(slope(text, np.nan)) == (text != "linear")


def test_relu_has_derivative_zero_at_both_zeros():
    np.testing.assert_array_equal(slope("relu", [0.0, -0.0]), [0.0, 0.0])


def test_derivatives_are_those_of_torchs_autograd():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    theirs = {
        "relu": functional.relu,
        "gelu_erf": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
    }
    x = np.linspace(-5, 5, 401)
    for text, function in theirs.items():
        rows = torch.tensor(x, requires_grad=True)
        out = function(rows)
        out.sum().backward()
        # torch writes 1 + erf and 1 + tanh, which cancel to about 1e-16·|x| on the left.
        want, gradient = out.detach().numpy(), rows.grad.numpy()
        np.testing.assert_allclose(phi(text, x), want, rtol=1e-13, atol=3e-15, err_msg=text)
        np.testing.assert_allclose(slope(text, x), gradient, rtol=1e-13, atol=3e-15, err_msg=text)


def test_learned_scalars_must_be_those_of_the_row():
    with pytest.raises(SpecError, match=r"swish_learned learns the scalars \(beta\), got \(none\)"):
        functions.value(Activation("swish_learned"), 1.0)
    with pytest.raises(SpecError, match=r"silu learns the scalars \(none\), got \(beta\)"):
        functions.value(Activation("silu"), 1.0, {"beta": 1.0})

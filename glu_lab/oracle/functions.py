"""Every φ of the activation table in float64 NumPy, with its derivatives; no JAX.

Written from the formulas and apart from `glu_lab.activations`, which it judges. Arguments may be
complex: on each side of a kink every function is continued analytically by the side that the real
part lies on, so that Im f(x + ih)/h is a derivative without cancellation. Infinities give limits,
NaN stays NaN.

Accuracy in float64: a few ulp for |x| ≤ 10. Further out the rounding of the exponent t counts, |t|
ulp for an exponential exp(t); at x = −38, where erf-GELU meets the smallest numbers, 10⁻¹³.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Inexact
from scipy import special

from glu_lab.errors import SpecError
from glu_lab.spec.activation import ACTIVATIONS, QUICK_GELU_BETA, Activation

#: Float64 or complex128, any shape.
Values = Inexact[np.ndarray, "..."]

_ROOT_2 = np.sqrt(2.0)
_GELU_SLOPE = np.sqrt(8 / np.pi)  # 2·√(2/π): ½(1 + tanh q) = σ(2q)
_GELU_CUBIC = 0.044715
#: Beyond this |x| both GELUs are x or 0 to the last bit: exp(−40²/2) is below every float64.
_GELU_SATURATED = 40.0


class _Formula(NamedTuple):
    """φ and what it is differentiated by; each takes (x, learned scalars, constants)."""

    value: Callable[..., Values]
    derivative: Callable[..., Values]
    by_learned: Callable[..., dict[str, Values]] = lambda x, learned, constants: {}


def wide(values: Any) -> Values:
    """Anything array-like as float64, or as complex128 where it is complex."""
    array = np.asarray(values)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def clamp(x: Values, low: float, high: float) -> Values:
    """min(max(x, low), high) by the real part; NaN passes."""
    return np.where(np.real(x) < low, low, np.where(np.real(x) > high, high, x))


def _finite(x: Values) -> Values:
    largest = np.finfo(np.float64).max
    return clamp(x, -largest, largest)


def _half(t: Values) -> Values:
    """exp(−|t|/2), |t| by the sign of the real part.

    Its square multiplies numbers twice, one after the other, since the square by itself leaves the
    normal numbers before x·exp(t) does.
    """
    return np.exp(np.where(np.real(t) < 0, t, -t) / 2)


def _sigmoid(t: Values) -> Values:
    h = _half(t)
    return np.where(np.real(t) < 0, h * h, 1.0) / (1 + h * h)


def _bell(t: Values) -> Values:
    """√(σ(t)·σ(−t))."""
    h = _half(t)
    return h / (1 + h * h)


def _gated_identity(x: Values, t: Values) -> Values:
    """x·σ(t)."""
    h = _half(t)
    return np.where(np.real(t) < 0, _finite(x) * h * h, x) / (1 + h * h)


def _gated_identity_derivative(x: Values, t: Values, slope: Any) -> Values:
    """σ(t) + x·t′·σ(t)·σ(−t)."""
    return _sigmoid(t) + _finite(x) * _bell(t) * slope * _bell(t)


def _positive(x: Values, positive: Any, otherwise: Any) -> Values:
    """One value right of zero and another at zero and left of it; NaN stays."""
    return np.where(np.isnan(x), x, np.where(np.real(x) > 0, positive, otherwise))


def _normal_cdf(x: Values) -> Values:
    return special.erfc(-x / _ROOT_2) / 2


def _gelu_erf(x: Values, learned: Any, constants: Any) -> Values:
    near = clamp(x, -_GELU_SATURATED, _GELU_SATURATED)
    return np.where(np.real(x) > _GELU_SATURATED, x, near * _normal_cdf(near))


def _gelu_erf_derivative(x: Values, learned: Any, constants: Any) -> Values:
    near = clamp(x, -_GELU_SATURATED, _GELU_SATURATED)
    return _normal_cdf(near) + near * np.exp(-near * near / 2) / np.sqrt(2 * np.pi)


def _gelu_tanh(x: Values, learned: Any, constants: Any) -> Values:
    near = clamp(x, -_GELU_SATURATED, _GELU_SATURATED)
    gated = _gated_identity(near, _GELU_SLOPE * (near + _GELU_CUBIC * near**3))
    return np.where(np.real(x) > _GELU_SATURATED, x, gated)


def _gelu_tanh_derivative(x: Values, learned: Any, constants: Any) -> Values:
    near = clamp(x, -_GELU_SATURATED, _GELU_SATURATED)
    return _gated_identity_derivative(
        near,
        _GELU_SLOPE * (near + _GELU_CUBIC * near**3),
        _GELU_SLOPE * (1 + 3 * _GELU_CUBIC * near**2),
    )


def _softplus(p: Values) -> Values:
    return np.where(np.real(p) > 0, p, 0.0) + np.log1p(np.exp(np.where(np.real(p) > 0, -p, p)))


def _xielu(x: Values, learned: Mapping[str, Values], constants: tuple[float, ...]) -> Values:
    beta, eps = constants
    p, n = _softplus(learned["p"]), beta + _softplus(learned["n"])
    # −αn·x and β·x in one term: at −∞ they would meet as ∞ − ∞.
    left = n * np.expm1(clamp(x, -np.inf, eps)) + (beta - n) * np.where(np.real(x) > 0, 0.0, x)
    return _positive(x, (p * x + beta) * x, left)


def _xielu_derivative(x: Values, learned: Any, constants: tuple[float, ...]) -> Values:
    beta, eps = constants
    p, n = _softplus(learned["p"]), beta + _softplus(learned["n"])
    # From ε to 0 the exponential is the constant expm1(ε), and has no slope.
    grown = np.where(np.real(x) < eps, np.exp(clamp(x, -np.inf, eps)), 0.0)
    return _positive(x, 2 * p * x, n * (grown - 1)) + beta


def _xielu_by_learned(x: Values, learned: Any, constants: tuple[float, ...]) -> dict[str, Values]:
    _, eps = constants
    left = np.expm1(clamp(x, -np.inf, eps)) - x
    return {
        "p": _positive(x, _sigmoid(learned["p"]) * x * x, 0.0),
        "n": _positive(x, 0.0, _sigmoid(learned["n"]) * left),
    }


def _swish(beta_of: Callable[..., Any], by_learned: Any = None) -> _Formula:
    def argument(x, learned, constants):
        return beta_of(learned, constants) * _finite(x)

    def value(x, learned, constants):
        return _gated_identity(x, argument(x, learned, constants))

    def derivative(x, learned, constants):
        t = argument(x, learned, constants)
        return _gated_identity_derivative(x, t, beta_of(learned, constants))

    formula = _Formula(value, derivative)
    return formula._replace(by_learned=by_learned) if by_learned else formula


def _swish_by_learned(x: Values, learned: Any, constants: Any) -> dict[str, Values]:
    # x²·σ·(1 − σ) as a square of what does not overflow.
    return {"beta": (_finite(x) * _bell(learned["beta"] * _finite(x))) ** 2}


def _plain(value: Callable[[Values], Any], derivative: Callable[[Values], Any]) -> _Formula:
    """A formula without constants or learned scalars."""
    return _Formula(lambda x, *_: value(x), lambda x, *_: derivative(x))


FORMULAS: Mapping[str, _Formula] = {
    "linear": _plain(lambda x: x, np.ones_like),
    "relu": _plain(lambda x: _positive(x, x, 0.0), lambda x: _positive(x, 1.0, 0.0)),
    "relu2": _plain(lambda x: _positive(x, x * x, 0.0), lambda x: _positive(x, 2 * x, 0.0)),
    "gelu_erf": _Formula(_gelu_erf, _gelu_erf_derivative),
    "gelu_tanh": _Formula(_gelu_tanh, _gelu_tanh_derivative),
    "silu": _swish(lambda learned, constants: 1.0),
    "quick_gelu": _swish(lambda learned, constants: QUICK_GELU_BETA),
    "swish": _swish(lambda learned, constants: constants[0]),
    "sigmoid": _plain(_sigmoid, lambda x: _bell(x) ** 2),
    "tanh": _plain(np.tanh, lambda x: (2 * _bell(2 * _finite(x))) ** 2),
    "swish_learned": _swish(lambda learned, constants: learned["beta"], _swish_by_learned),
    "xielu": _Formula(_xielu, _xielu_derivative, _xielu_by_learned),
}


def _call(part: str, activation: Activation, x: Any, learned: Mapping[str, Any] | None) -> Any:
    given = {name: wide(scalar) for name, scalar in (learned or {}).items()}
    names = ACTIVATIONS[activation.name].learned
    if given.keys() != names.keys():
        raise SpecError(
            f"{activation} learns the scalars ({', '.join(names) or 'none'}), "
            f"got ({', '.join(given) or 'none'})."
        )
    # Both sides of a kink are evaluated, and the side that is not taken may overflow.
    with np.errstate(all="ignore"):
        function = getattr(FORMULAS[activation.name], part)
        return function(wide(x), given, activation.constants)


def value(activation: Activation, x: Any, learned: Mapping[str, Any] | None = None) -> Values:
    """φ(x), elementwise.

    Args:
        activation: which function.
        x: array-like of any shape, real or complex.
        learned: the scalars of a learned activation, by the names of its table row.

    Raises:
        SpecError: when the scalars are not those of the activation.
    """
    return _call("value", activation, x, learned)


def derivative(activation: Activation, x: Any, learned: Mapping[str, Any] | None = None) -> Values:
    """φ′(x), as `value`; where φ has a kink, at 0, the derivative from the left."""
    return _call("derivative", activation, x, learned)


def by_learned(
    activation: Activation, x: Any, learned: Mapping[str, Any] | None = None
) -> dict[str, Values]:
    """∂φ/∂s at every x, for each learned scalar s, as `value`; empty where there are none."""
    return _call("by_learned", activation, x, learned)

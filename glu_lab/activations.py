"""φ and φ′ as JAX functions: exact identities, stable in both tails.

The names live in `glu_lab.spec.activation`; this table gives each its value and its analytic
derivative. Differentiation uses the derivative written here, so that a gradient is as stable as a
value. Every function keeps the dtype of its argument; float16 and bfloat16 are evaluated in float32
and rounded once (written in bfloat16, tanh-GELU would be 8 % off at x = −3). Results below the
smallest normal number of the dtype flush to zero, as the hardware does; nothing above it does.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from glu_lab.spec.activation import ACTIVATIONS, QUICK_GELU_BETA, Activation

Learned = Mapping[str, Array]

_SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654
_INV_SQRT_2PI = 0.3989422804014327
_GELU_CUBIC = 0.044715

#: Beyond this |x| tanh-GELU is exactly x or 0 in every dtype, and x³ still fits float16.
_GELU_TANH_SATURATED = 30.0
#: Beyond this |x| the normal density is 0 in every dtype.
_GELU_ERF_SATURATED = 100.0


class _Function(NamedTuple):
    """Value and derivative of φ; both take (x, learned scalars, constants)."""

    value: Callable[..., Array]
    derivative: Callable[..., Array]


def _finite(x: Array) -> Array:
    """Infinities as the largest finite numbers, so that ∞ · 0 is 0; NaN stays NaN."""
    limits = jnp.finfo(x.dtype)
    return jnp.clip(x, limits.min, limits.max)


def _half_exp(t: Array) -> Array:
    """h = exp(−|t|/2). σ(|t|) = 1/(1 + h²); σ(−|t|) = h²/(1 + h²).

    Working with h instead of h² keeps x·σ(t) normal down to the smallest normal number: h² alone
    would be subnormal, and flushed, while x·h² is not.
    """
    return jnp.exp(-0.5 * jnp.abs(t))


def _times_sigmoid(x: Array, t: Array) -> Array:
    """x · σ(t) without a subnormal intermediate."""
    h = _half_exp(t)
    below = (_finite(x) * h) * h
    return jnp.where(t < 0, below, x) / (1 + h * h)


def _times_sigmoid_derivative(x: Array, t: Array, slope: Array | float) -> Array:
    """d/dx of x · σ(t(x)) with dt/dx = slope: σ(t) · (1 + x · slope · σ(−t))."""
    h = _half_exp(t)
    h2 = h * h
    x = _finite(x)
    # h + x·h·…, not h·(1 + x·…): the second overflows at the largest x and meets h = 0 as NaN.
    below = (h + (x * h) * (slope / (1 + h2))) * h
    above = 1 + ((x * h) * h) * (slope / (1 + h2))
    return jnp.where(t < 0, below, above) / (1 + h2)


def _sigmoid(x: Array) -> Array:
    h = _half_exp(x)
    return jnp.where(x < 0, h * h, jnp.ones_like(x)) / (1 + h * h)


def _relu(x: Array) -> Array:
    # `x <= 0` is false for NaN, which therefore passes through.
    return jnp.where(x <= 0, jnp.zeros_like(x), x)


def _gelu_tanh_inner(x: Array) -> tuple[Array, Array]:
    """2·q(x) and its slope: ½(1 + tanh q) = σ(2q), which does not cancel in the left tail."""
    x2 = x * x
    t = (2 * _SQRT_2_OVER_PI) * x * (1 + _GELU_CUBIC * x2)
    return t, (2 * _SQRT_2_OVER_PI) * (1 + 3 * _GELU_CUBIC * x2)


def _gelu_tanh(x: Array) -> Array:
    clipped = jnp.clip(x, -_GELU_TANH_SATURATED, _GELU_TANH_SATURATED)
    return jnp.where(
        x > _GELU_TANH_SATURATED, x, _times_sigmoid(clipped, _gelu_tanh_inner(clipped)[0])
    )


def _gelu_tanh_derivative(x: Array) -> Array:
    x = jnp.clip(x, -_GELU_TANH_SATURATED, _GELU_TANH_SATURATED)
    return _times_sigmoid_derivative(x, *_gelu_tanh_inner(x))


def _normal_cdf(x: Array) -> Array:
    return 0.5 * jax.scipy.special.erfc(-_SQRT_HALF * x)


def _gelu_erf(x: Array) -> Array:
    below = jnp.maximum(x, -_GELU_ERF_SATURATED)
    return jnp.where(x > _GELU_ERF_SATURATED, x, below * _normal_cdf(below))


def _gelu_erf_derivative(x: Array) -> Array:
    x = jnp.clip(x, -_GELU_ERF_SATURATED, _GELU_ERF_SATURATED)
    return _normal_cdf(x) + x * (_INV_SQRT_2PI * jnp.exp(-0.5 * (x * x)))


def _sech2(x: Array) -> Array:
    """1 − tanh², written so that it does not cancel."""
    h2 = jnp.exp(-2 * jnp.abs(x))
    return 4 * h2 / ((1 + h2) * (1 + h2))


def _xielu(x: Array, learned: Learned, constants: tuple[float, ...]) -> Array:
    beta, eps = constants
    alpha_p = jax.nn.softplus(learned["p"]).astype(x.dtype)
    alpha_n = beta + jax.nn.softplus(learned["n"]).astype(x.dtype)
    # αn·(expm1 − x) + βx with the linear terms joined, so that −∞ does not meet +∞.
    below = alpha_n * jnp.expm1(jnp.minimum(x, eps)) + (beta - alpha_n) * x
    return jnp.where(x <= 0, below, (alpha_p * x + beta) * x)


def _xielu_derivative(x: Array, learned: Learned, constants: tuple[float, ...]) -> Array:
    beta, eps = constants
    alpha_p = jax.nn.softplus(learned["p"]).astype(x.dtype)
    alpha_n = beta + jax.nn.softplus(learned["n"]).astype(x.dtype)
    grown = jnp.where(x < eps, jnp.exp(jnp.minimum(x, eps)), jnp.zeros_like(x))
    return jnp.where(x <= 0, alpha_n * (grown - 1), 2 * alpha_p * x) + beta


def _plain(value: Callable[[Array], Array], derivative: Callable[[Array], Array]) -> _Function:
    """A function without constants or learned scalars."""
    return _Function(
        lambda x, learned, constants: value(x), lambda x, learned, constants: derivative(x)
    )


def _swish(beta_of: Callable[[Array, Learned, tuple[float, ...]], Array | float]) -> _Function:
    def value(x, learned, constants):
        return _times_sigmoid(x, beta_of(x, learned, constants) * _finite(x))

    def derivative(x, learned, constants):
        beta = beta_of(x, learned, constants)
        return _times_sigmoid_derivative(x, beta * _finite(x), beta)

    return _Function(value, derivative)


_FUNCTIONS: dict[str, _Function] = {
    "linear": _plain(lambda x: x, jnp.ones_like),
    "relu": _plain(
        _relu, lambda x: jnp.where(x <= 0, jnp.zeros_like(x), jnp.where(x > 0, jnp.ones_like(x), x))
    ),
    "relu2": _plain(lambda x: _relu(x) * _relu(x), lambda x: 2 * _relu(x)),
    "gelu_erf": _plain(_gelu_erf, _gelu_erf_derivative),
    "gelu_tanh": _plain(_gelu_tanh, _gelu_tanh_derivative),
    "silu": _swish(lambda x, learned, constants: 1.0),
    "quick_gelu": _swish(lambda x, learned, constants: QUICK_GELU_BETA),
    "swish": _swish(lambda x, learned, constants: constants[0]),
    "swish_learned": _swish(lambda x, learned, constants: learned["beta"].astype(x.dtype)),
    "sigmoid": _plain(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "tanh": _plain(jnp.tanh, _sech2),
    "xielu": _Function(_xielu, _xielu_derivative),
}

assert _FUNCTIONS.keys() == ACTIVATIONS.keys()


def value(
    activation: Activation, x: Float[Array, "..."], learned: Learned | None = None
) -> Float[Array, "..."]:
    """φ(x), elementwise, in the dtype of x.

    Args:
        activation: which function.
        x: any shape, a floating dtype.
        learned: the scalars of a learned activation, by the names of its table row.

    Returns:
        φ(x); its derivative under `jax.grad` is `derivative`.

    Raises:
        KeyError: when a learned scalar is missing.
    """
    learned = _learned(activation, learned)
    function = _FUNCTIONS[activation.name]

    def evaluate(x, learned):
        return _in_float32(function.value, x, learned, activation.constants)

    @jax.custom_jvp
    def phi(x, learned):
        return evaluate(x, learned)

    @phi.defjvp
    def phi_jvp(primals, tangents):
        x, learned = primals
        dx, dlearned = tangents
        out = evaluate(x, learned)
        slope = _in_float32(function.derivative, x, learned, activation.constants)
        tangent = slope * dx
        if learned:
            _, by_learned = jax.jvp(lambda scalars: evaluate(x, scalars), (learned,), (dlearned,))
            tangent = tangent + by_learned
        return out, tangent

    return phi(x, learned)


def derivative(
    activation: Activation, x: Float[Array, "..."], learned: Learned | None = None
) -> Float[Array, "..."]:
    """φ′(x), elementwise and analytic; 0 for ReLU at 0 and −0."""
    learned = _learned(activation, learned)
    function = _FUNCTIONS[activation.name].derivative
    return _in_float32(function, x, learned, activation.constants)


def _in_float32(
    function: Callable[..., Array], x: Array, learned: Learned, constants: tuple[float, ...]
) -> Array:
    """A function evaluated in float32 at least, rounded once to the dtype of x."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return function(wide, learned, constants).astype(x.dtype)


def _learned(activation: Activation, learned: Learned | None) -> dict[str, Array]:
    """The scalars that the activation's row declares, out of those given."""
    given = learned or {}
    return {name: given[name] for name in activation.row.learned}

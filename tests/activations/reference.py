"""Every φ as a NumPy formula for real and complex arguments, written apart from the library's."""

import numpy as np
from scipy import special

SQRT_2_OVER_PI = np.sqrt(2 / np.pi)


def _sigmoid(t):
    return 1 / (1 + np.exp(-t))


def _where_positive(x, positive, negative):
    return np.where(np.real(x) > 0, positive, negative)


def _xielu(x, p, n, beta=0.5, eps=-1e-6):
    alpha_p, alpha_n = np.log1p(np.exp(p)), beta + np.log1p(np.exp(n))
    capped = np.where(np.real(x) < eps, x, eps)
    return _where_positive(
        x, alpha_p * x**2 + beta * x, (np.expm1(capped) - x) * alpha_n + beta * x
    )


#: Name → φ(x, *learned scalars), valid for |x| ≤ 30 and for complex steps.
FORMULAS = {
    "linear": lambda x: x,
    "relu": lambda x: _where_positive(x, x, 0 * x),
    "relu2": lambda x: _where_positive(x, x**2, 0 * x),
    "gelu_erf": lambda x: x / 2 * special.erfc(-x / np.sqrt(2)),
    "gelu_tanh": lambda x: x * _sigmoid(2 * SQRT_2_OVER_PI * (x + 0.044715 * x**3)),
    "silu": lambda x: x * _sigmoid(x),
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "swish(1.5)": lambda x: x * _sigmoid(1.5 * x),
    "swish(-0.5)": lambda x: x * _sigmoid(-0.5 * x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "swish_learned": lambda x, beta: x * _sigmoid(beta * x),
    "xielu": _xielu,
}

#: Values of the learned scalars, away from their initial ones.
LEARNED = {"swish_learned": {"beta": 0.7}, "xielu": {"p": 0.4, "n": -0.9}}


def derivative(name, x, *learned):
    """φ′ by a complex step: exact to rounding, and no formula of a derivative in it."""
    step = 1e-30
    return np.imag(FORMULAS[name](x + 1j * step, *learned)) / step

"""What is held against functions: the oracle, the properties, the Spec's own table of parameters.

Dimension letters: T rows, D d_model, N branches, F d_ff.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from glu_lab.conformance.failures.functions import PAIR, FusedGate, Sublayer
from glu_lab.conformance.failures.row import Finding
from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import functions, properties
from glu_lab.oracle.rounding import longest_sum, spread_backward
from glu_lab.oracle.tolerances import FLOOR, precision, share, tolerance

#: Shares above it say no more than that something is wrong.
_FAR = 1e6


def _measured(value: float, what: str) -> Finding:
    """A finding from an error as a share of what is allowed."""
    if value <= 1:
        return Finding(True, f"{what}: within tolerance", float(f"{value:.1g}"))
    if math.isinf(value):
        return Finding(False, f"{what}: broken, whatever the tolerance")
    far = "far beyond" if value > _FAR else f"{value:,.3g} times"
    return Finding(False, f"{what}: {far} the tolerance", float(f"{value:.1e}"))


def against_oracle(made: Sublayer) -> Finding:
    """Its outputs are the oracle's, in its own number formats."""
    y = made.forward(made.params, made.x, made.spec)
    params, x = made.inputs()
    want = oracle.forward(params, x, made.spec, keep=made.keep)
    spread = oracle.spread(params, x, made.spec, keep=made.keep, floor=FLOOR[made.dtype])
    bound = tolerance(made.dtype, made.accumulate, max(made.spec.d_model, made.spec.d_ff))
    error, size = float(np.max(np.abs(y - want))), float(np.max(np.abs(want)))
    value = share(y, want, spread, bound)
    if value <= 1:
        return _measured(value, f"{made.dtype} outputs")
    return _measured(value, f"off by {error:.2g} where outputs reach {size:.2g}")


def gradients(made: Sublayer) -> Finding:
    """The gradient by the rows and by every parameter is the oracle's."""
    upstream = np.random.default_rng(5).normal(size=made.x.shape)
    got = _by_name(*made.backward(made.params, made.x, made.spec, upstream))
    params, x = made.inputs()
    want = _by_name(*oracle.backward(params, x, made.spec, upstream, keep=made.keep))
    spread = spread_backward(params, x, made.spec, upstream, keep=made.keep)
    scales = _by_name(spread.by_x, spread.by_params)
    shares = {}
    for name, value in want.items():
        whole = "" if name == "x" else name.split()[0]
        terms = longest_sum(made.spec, len(x), whole)
        bound = tolerance(made.dtype, made.accumulate, terms)
        shares[name] = share(got[name], value, scales[name], bound)
    wrong = [name for name, value in shares.items() if value > 1]
    right = [name for name in shares if name not in wrong]
    what = f"gradient by {', '.join(wrong)} (right by {', '.join(right) or 'none'})"
    return _measured(max(shares.values()), what if wrong else "every gradient")


def _by_name(by_x: Any, by_params: Any) -> dict[str, Any]:
    """Gradients by name, those of the input projections branch by branch."""
    named = {"x": by_x, **by_params}
    wi = np.asarray(named.pop("wi"))
    return named | {f"wi {i}": wi[:, i, :] for i in range(wi.shape[1])}


def holds(name: str) -> Callable[[Sublayer], Finding]:
    """A property of `glu_lab.oracle.properties` holds."""

    def run(made: Sublayer) -> Finding:
        value = properties.measure(name, made.subject, made.params, made.x, made.spec)
        if value is None:
            raise SpecError(f"the property {name!r} says nothing of {made.spec}.")
        return _measured(value, f"property {name}")

    return run


def bends(made: Sublayer) -> Finding:
    """Along a line it is more than the polynomial that it would be without φ."""
    step = np.random.default_rng(3).normal(size=made.x.shape) * 2
    order = made.spec.num_branches + 1
    found, rounding = properties.differences(
        made.subject, made.params, made.x, step, made.spec, order
    )
    largest = float(np.max(np.abs(found)))
    if largest > rounding:
        return Finding(True, f"differences of order {order} along a line reach {largest:.2g}")
    degree = "an affine map" if order == 2 else f"a polynomial of degree {order - 1}"
    return Finding(False, f"along a line it is {degree}, to the last bits")


def parameters(made: Sublayer) -> Finding:
    """Rows and parameters have the names and shapes of the Spec's table."""
    try:
        ffn.check(made.params, made.x, made.spec)
    except ValueError as error:
        return Finding(False, f"refused: {error}")
    return Finding(True, "names and shapes are those of the Spec")


# A fused gate.

#: Pre-activations of order 1 and near zero, among them those at which the GELUs differ most.
_NEAR = (0.0, -0.0, 1e-3, -1e-3, 0.5, -0.5, 1.0, -1.0, 2.265625, -2.703125, 4.0, -4.0)
#: On and beyond a clamp at 7, where a sigmoid rounds to 1 in bfloat16, and where exp overflows.
_GATES = (*_NEAR, 7.0, -7.0, 8.0, -8.0, 20.0, -20.0, 80.0, -80.0, 100.0, -100.0)
_UPS = (0.0, 1.0, -1.296875, 3.0, -20.0)
_BEYOND = (math.inf, -math.inf, math.nan)


def _pairs(gates: Any, ups: Any) -> np.ndarray:
    grid = np.meshgrid(np.array(gates), np.array(ups), indexing="ij")
    return np.stack([axis.ravel() for axis in grid], axis=-1)


def fused_values(made: FusedGate) -> Finding:
    """H is the oracle's in float32 and in the dtype that ships, far out and beyond the finite."""
    finite = _pairs(_GATES, _UPS)
    beyond = np.concatenate([_pairs(_BEYOND, (*_UPS, *_BEYOND)), _pairs(_NEAR, _BEYOND)])
    return _worst(made, np.concatenate([finite, beyond]), _values)


def fused_slopes(made: FusedGate) -> Finding:
    """∂gate and ∂up are the oracle's in float32 and in the dtype that ships, far out too."""
    return _worst(made, _pairs(_GATES, _UPS), _slopes)


def _values(made: FusedGate, pairs: np.ndarray, dtype: str) -> Any:
    """(what, got, want, spread) of H."""
    gate, up = pairs[:, :1], pairs[:, 1:]
    with np.errstate(invalid="ignore"):
        want = oracle.hidden({}, [gate, up], made.spec)[:, 0]
    there = np.isfinite(pairs).all(axis=1)
    spread = np.abs(want)  # of what an infinity saturates to
    spread[there] = oracle.spread(PAIR, pairs[there], made.spec, floor=FLOOR[dtype])[:, 0]
    return [("H", made.run(gate[:, 0], up[:, 0], dtype), want, spread)]


def _slopes(made: FusedGate, pairs: np.ndarray, dtype: str) -> Any:
    """(what, got, want, spread) of ∂gate and ∂up."""
    upstream = np.ones((len(pairs), 2))
    got = made.pull_back(pairs[:, 0], pairs[:, 1], upstream[:, 0], dtype)
    want, _ = oracle.backward(PAIR, pairs, made.spec, upstream)
    near = precision(dtype, "float32", 1)
    spread = spread_backward(PAIR, pairs, made.spec, upstream, near=near).by_x
    return [(name, got[:, i], want[:, i], spread[:, i]) for i, name in enumerate(("∂gate", "∂up"))]


def _worst(made: FusedGate, pairs: np.ndarray, compare: Callable[..., Any]) -> Finding:
    """The worst pair: a finite one if any is wrong, and of the dtype that ships."""
    failures = []
    for dtype in dict.fromkeys(("float32", made.dtype)):
        bound = tolerance(dtype, "float32", 1)
        for what, got, want, spread in compare(made, pairs, dtype):
            for pair, g, w, s in zip(pairs, got, want, spread, strict=True):
                value = share(g, w, s, bound)
                if value > 1:
                    where = f"{dtype}, gate {pair[0]:g}, up {pair[1]:g}"
                    text = f"{where}: {what} is {g:.3g}, not {w:.3g}"
                    rank = bool(np.isfinite(pair).all()), dtype == made.dtype, value
                    failures.append((rank, text))
    if not failures:
        return Finding(True, f"{len(pairs)} pairs in float32 and {made.dtype}: within tolerance")
    (_, _, value), text = max(failures)
    measured = float(f"{value:.1e}") if math.isfinite(value) else None
    return Finding(False, f"{text} ({len(failures)} wrong)", measured)


#: Elements that may round to the other side of a tie: φ itself has an error of a few units in the
#: last place of float32, 2⁻¹⁶ of those of bfloat16.
_OTHER_SIDE = 0.01


def fused_rounding(made: FusedGate) -> Finding:
    """H is rounded where the kernel says that it is."""
    gate, up = np.random.default_rng(4).normal(size=(2, 512, 512)).astype(np.float32)
    narrow = jnp.dtype(made.dtype)
    gate, up = gate.astype(narrow), up.astype(narrow)
    factors = [
        functions.value(branch.activation, x)
        for branch, x in zip(made.spec.branches, (gate, up), strict=True)
    ]
    if made.rounding_point == "branch":
        factors = [factor.astype(narrow).astype(np.float64) for factor in factors]
    want = (factors[0] * factors[1]).astype(narrow).astype(np.float64)
    differing = float(np.mean(made.run(gate, up, made.dtype) != want))
    text = f"{differing:.0%} of {made.dtype} elements differ from rounding by {made.rounding_point}"
    return Finding(differing <= _OTHER_SIDE, text, float(f"{differing / _OTHER_SIDE:.1g}"))

"""How far rounding can move an FFN's gradients: their spread, to first order.

As `glu_lab.oracle.ffn.spread` for the output: the standard deviation that each gradient would have
if every term of every sum, and every intermediate, had an independent relative error of standard
deviation 1. With z_i = x W_i + b_i, H the hidden state and G = ∂loss/∂H, forward and backward go

    A_i = G · ∂H/∂z_i        by x: Σ_i A_i W_iᵀ        by W_i: xᵀ A_i        by W_o: Hᵀ ∂loss/∂Y

and an error of z_k moves A_i by G · ∂²H/∂z_i∂z_k. Second derivatives of φ are complex steps of the
oracle's first ones. Written apart from `glu_lab.oracle.ffn.backward`, of which it takes nothing.

A first-order scale knows no kinks. Where rounding decides on which side of a kink or of a clamp's
bound an argument lies, both sides are right, and the slope's whole jump counts as an error.

Dimension letters: T rows, D d_model, F d_ff, N branches.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from glu_lab.oracle import functions
from glu_lab.oracle.ffn import affine
from glu_lab.oracle.functions import wide
from glu_lab.oracle.tolerances import Precision
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN, Branch, Clamp

_STEP = 1e-30

Hidden = Float64[np.ndarray, "T F"]


class Spread(NamedTuple):
    """Of every gradient, shaped as it is.

    Attributes:
        by_x: of that by the rows.
        by_params: of those by the parameters, by name.
        largest: the largest finite intermediate of forward and backward: a number format that ends
            below it overflows.
    """

    by_x: np.ndarray
    by_params: dict[str, np.ndarray]
    largest: float


def longest_sum(spec: FFN, rows: int, name: str = "") -> int:
    """The length of the longest sum that a gradient goes through.

    Args:
        spec: which function.
        rows: T.
        name: the parameter that the gradient is by; empty for that by the rows.
    """
    within = max(spec.d_model, spec.d_ff)
    if not name:
        return max(spec.d_model, spec.num_branches * spec.d_ff)
    # A learned scalar is one number for all channels of all rows.
    return max(within, rows * spec.d_ff if name.startswith("phi_") else rows)


def kinks(activation: Activation) -> tuple[float, ...]:
    """Where φ′ jumps."""
    if activation.name == "relu":
        return (0.0,)
    if activation.name == "xielu":
        return (activation.constants[1], 0.0)
    return ()


class _Channel(NamedTuple):
    """One branch at every row and channel; variances in squares of the unit roundoff."""

    value: Hidden
    own: Hidden  # variance of the value that no other line has: φ's before an offset, and underflow
    slope: Hidden
    bend: Hidden  # ∂²/∂z²
    z_variance: Hidden
    jump: Hidden  # the slope that may come or go; 0 where the side of every kink is known
    by_learned: dict[str, tuple[Hidden, Hidden, Hidden]]  # ∂/∂s, ∂²/∂s∂z and what may come or go
    largest: float


def _times(values: Any, variance: Any) -> Any:
    """A product in which nothing passes a factor of 0, not even an infinity."""
    return np.where((values == 0) | (variance == 0), 0.0, values * variance)


def _largest(*arrays: Any) -> float:
    sizes = [np.abs(np.where(np.isfinite(a), a, 0.0)) for a in map(np.asarray, arrays)]
    return max(float(np.max(size, initial=0.0)) for size in sizes)


def _bend(branch: Branch, a: Hidden, learned: Mapping[str, Any]) -> Hidden:
    stepped = np.where(np.isfinite(a), a, 0.0) + 1j * _STEP
    return np.where(
        np.isfinite(a),
        np.imag(functions.derivative(branch.activation, stepped, learned)) / _STEP,
        0.0,
    )


def _inside(values: Hidden, bounds: Clamp | None) -> Any:
    """What a clamp lets through."""
    if bounds is None:
        return 1.0
    return np.where(np.isnan(values), values, (values > bounds[0]) & (values < bounds[1]))


def _channel(
    params: Mapping[str, Any], x: Any, z: Hidden, i: int, branch: Branch, near: Precision | None
) -> _Channel:
    floor = near.floor if near else 0.0
    learned = {
        name: params[f"phi_{i}_{name}"]
        for name in functions.ACTIVATIONS[branch.activation.name].learned
    }
    bias = params[f"bi_{i}"] if branch.bias else 0.0
    terms = (x**2) @ params["wi"][:, i, :] ** 2 + bias**2
    scaled = branch.scale * z
    a = functions.clamp(scaled, *branch.pre) if branch.pre else scaled
    phi = functions.value(branch.activation, a, learned)
    slope = functions.derivative(branch.activation, a, learned)
    factor = functions.clamp(phi, *branch.post) if branch.post else phi

    before, after = _inside(scaled, branch.pre), _inside(phi, branch.post)
    jump, lost = np.zeros_like(z), np.zeros(z.shape, bool)
    if near:
        reach = abs(branch.scale) * (near.unit * np.abs(z) + near.sums * np.sqrt(terms))
        unsure = _close(a, kinks(branch.activation), reach)
        unsure |= _close(scaled, branch.pre or (), reach)
        lost = _close(phi, branch.post or (), reach * np.abs(slope) + near.unit * np.abs(phi))
        unsure |= lost
        sides = [
            np.abs(functions.derivative(branch.activation, a + side * reach, learned))
            for side in (-2, 0, 2)
        ]
        jump = np.where(unsure, abs(branch.scale) * np.max(sides, axis=0), 0.0)
    stepped = functions.by_learned(branch.activation, a + 1j * _STEP, learned)
    return _Channel(
        value=factor + branch.offset,
        own=(factor**2 if branch.offset else 0.0) + np.full_like(z, floor**2),
        slope=after * slope * before * branch.scale,
        bend=after * _bend(branch, a, learned) * before * branch.scale**2,
        z_variance=terms + z**2 + floor**2,
        jump=jump,
        by_learned={
            name: (
                after * np.real(part),
                after * np.imag(part) / _STEP * before * branch.scale,
                np.where(lost, np.abs(np.real(part)), 0.0),
            )
            for name, part in stepped.items()
        },
        largest=_largest(z, scaled, phi, factor),
    )


def _close(values: Hidden, points: tuple[float, ...], reach: Hidden) -> Any:
    """Whether a point lies within reach; nothing is in reach of what is exact, or infinite."""
    some = (reach > 0) & np.isfinite(reach)
    near = [(np.abs(values - point) <= reach) & some for point in points]
    return np.any(near, axis=0) if near else np.zeros(values.shape, bool)


def spread_backward(
    params: Mapping[str, Any],
    x: Any,
    spec: FFN,
    upstream: Any,
    *,
    keep: Any = None,
    near: Precision | None = None,
) -> Spread:
    """The scale of rounding errors in the gradients that `glu_lab.oracle.ffn.backward` gives.

    Args:
        params, x, spec, upstream, keep: as there.
        near: for one number format, so that kinks within its reach and numbers that it cannot hold
            count too; None is the first-order scale alone.

    Raises:
        SpecError: as `glu_lab.oracle.ffn.affine`.
    """
    results = affine(params, x, spec)
    held = {name: wide(value) for name, value in params.items()}
    rows = wide(x).reshape(-1, spec.d_model)
    u = spec.output_scale * wide(upstream).reshape(-1, spec.d_model)
    kept: Any = 1.0
    if keep is not None:
        whole = np.broadcast_to(np.asarray(keep, bool), (*np.shape(x)[:-1], spec.d_ff))
        kept = whole.reshape(-1, spec.d_ff) / (1 - spec.hidden_dropout)
    with np.errstate(all="ignore"):
        channels = [
            _channel(held, rows, z.reshape(-1, spec.d_ff), i, branch, near)
            for i, (z, branch) in enumerate(zip(results, spec.branches, strict=True))
        ]
        return _combine(held, rows, u, spec, kept, channels, near, np.shape(x))


def _combine(
    params: Mapping[str, Any],
    x: Any,
    u: Any,
    spec: FFN,
    kept: Any,
    channels: list[_Channel],
    near: Precision | None,
    shape: tuple[int, ...],
) -> Spread:
    N, floor = len(channels), near.floor if near else 0.0

    def others(*indices: int) -> Any:
        return math.prod(c.value for j, c in enumerate(channels) if j not in indices)

    product = others()
    H, H_variance = product, np.full_like(product, floor**2)
    if spec.product_bias:
        H = product + params["bp"]
        H_variance = H_variance + product**2 + params["bp"] ** 2
    H_variance = H_variance + H**2
    for i, c in enumerate(channels):
        moved = _times(c.slope**2, c.z_variance) + c.own
        H_variance = H_variance + _times(others(i) ** 2, moved)
    G = kept * (u @ params["wo"].T)
    G_variance = _times(kept**2, (u**2) @ (params["wo"] ** 2).T) + G**2 + floor**2

    # What errs, and how far a unit of it moves each A_i. Branches share most of it, and so their
    # parts of the gradient by the rows do not err apart.
    covariance: dict[tuple[int, int], Any] = dict.fromkeys(np.ndindex(N, N), 0.0)

    def errs(variance: Any, moves: Mapping[int, Any]) -> None:
        for i, j in itertools.product(moves, repeat=2):
            covariance[i, j] = covariance[i, j] + _times(moves[i] * moves[j], variance)

    before = [G_variance * 0.0] * N  # variances of G·Π_{j≠i} f_j
    errs(G_variance, {i: c.slope * others(i) for i, c in enumerate(channels)})
    for k, c in enumerate(channels):
        rest = others(k)
        mixed = {i: G * channels[i].slope * others(i, k) for i in range(N) if i != k}
        errs(c.z_variance, {k: G * c.bend * rest, **{i: m * c.slope for i, m in mixed.items()}})
        errs(c.own, mixed)
        own = (G * rest) ** 2 + floor**2
        errs(own, {k: c.slope})
        errs(floor**2, {k: G * rest})
        errs((G * c.slope * rest) ** 2 + floor**2, {k: 1.0})
        before[k] = before[k] + _times(rest**2, G_variance) + own
        moved = _times(c.slope**2, c.z_variance) + c.own
        for i in mixed:
            before[i] = before[i] + _times((G * others(i, k)) ** 2, moved)

    by_params = {
        "wo": _times(kept**2, H_variance).T @ u**2,
        "bo": np.sum(u**2, axis=0),
        "bp": np.sum(G_variance, axis=0),
    }
    by_x, x_jump = floor**2, 0.0
    by_wi, wi_jump, jumps = [], [], {}
    largest = [c.largest for c in channels]
    sizes = np.where(np.isfinite(x), np.abs(x), 0.0)
    for i, c in enumerate(channels):
        rest, wi = others(i), params["wi"][:, i, :]
        # Errors that are all or nothing add up, where others add as squares.
        jump = _times(c.jump, np.abs(G * rest))
        covariance[i, i] = covariance[i, i] + _times(c.jump**2, before[i]) + jump**2
        A, A_variance = G * c.slope * rest, covariance[i, i]
        for j in range(N):
            by_x = by_x + covariance[i, j] @ (wi * params["wi"][:, j, :]).T
        # A branch's part of the sum over all branches may be rounded by itself.
        by_x = by_x + (A @ wi.T) ** 2
        by_wi.append((x**2).T @ A_variance)
        by_params[f"bi_{i}"] = np.sum(A_variance, axis=0)
        x_jump = x_jump + jump @ np.abs(wi).T
        wi_jump.append(sizes.T @ jump)
        jumps[f"bi_{i}"] = np.sum(jump, axis=0)
        for name, (part, mixed, lost) in c.by_learned.items():
            variance = _times(part**2, before[i]) + (G * rest * part) ** 2
            variance = variance + _times((G * rest * mixed) ** 2, c.z_variance)
            by_params[f"phi_{i}_{name}"] = np.sum(variance)
            jumps[f"phi_{i}_{name}"] = np.sum(_times(lost, np.abs(G * rest)))
        largest.append(_largest(rest, A, A @ wi.T, x.T @ A))
    by_params["wi"], jumps["wi"] = np.stack(by_wi, axis=1), np.stack(wi_jump, axis=1)
    # The whole jump is allowed: atol times this.
    share = 1 / near.atol if near else 0.0
    roots = {
        name: np.sqrt(by_params[name] + floor**2) + share * jumps.get(name, 0.0) for name in params
    }
    # A sum of squares, whose terms of both signs may leave a rounding below 0.
    by_x = np.sqrt(np.maximum(by_x, 0.0)) + share * x_jump
    y = spec.output_scale * (kept * H) @ params["wo"]
    largest.append(_largest(H * kept, G, y, (H * kept).T @ u, u))
    return Spread(by_x.reshape(shape), roots, max(largest))

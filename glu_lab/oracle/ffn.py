"""The feed-forward sublayer and its backward in float64 NumPy; no JAX, no code of the layers.

    a_i = pre_i( scale_i · (x W_i + b_i) )
    H   = Π_i ( post_i( φ_i(a_i) ) + offset_i ) + b_product
    Y   = output_scale · ( dropout(H) W_o + b_o )

Parameters have the canonical names and shapes: ``wi (D, N, F)``, ``wo (F, D)``, and where the Spec
asks for them ``bi_<i> (F,)``, ``bp (F,)``, ``bo (D,)``, ``phi_<i>_<name> ()``. Anything that NumPy
can read is widened to float64. Complex rows and parameters are continued analytically and nothing
is conjugated, so that a complex step differentiates everything here, gradients included.

On the bound of a clamp the derivative is taken as 0, a convention: both sides have their own.

Dimension letters: D d_model, F d_ff, N branches, P slices of tensor parallelism; leading dimensions
(...) are any, T is their product.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Inexact

from glu_lab.errors import SpecError
from glu_lab.oracle import functions
from glu_lab.oracle.functions import Values, wide
from glu_lab.spec.activation import ACTIVATIONS
from glu_lab.spec.ffn import FFN, Branch, Clamp

Params = Mapping[str, Any]


def shapes(spec: FFN) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Spec's parameters."""
    D, N, F = spec.d_model, len(spec.branches), spec.d_ff
    table: dict[str, tuple[int, ...]] = {"wi": (D, N, F), "wo": (F, D)}
    for i, branch in enumerate(spec.branches):
        if branch.bias:
            table[f"bi_{i}"] = (F,)
        for name in ACTIVATIONS[branch.activation.name].learned:
            table[f"phi_{i}_{name}"] = ()
    if spec.product_bias:
        table["bp"] = (F,)
    if spec.output_bias:
        table["bo"] = (D,)
    return table


def _read(params: Params, x: Any, spec: FFN, keep: Any = None) -> tuple[dict[str, Any], Values]:
    """Parameters and rows, checked and widened."""
    if not isinstance(spec, FFN):
        raise SpecError(f"the oracle computes an FFN Spec, got {type(spec).__name__}.")
    expected = shapes(spec)
    if params.keys() != expected.keys():
        raise SpecError(f"the Spec has parameters {sorted(expected)}, got {sorted(params)}.")
    read = {name: wide(value) for name, value in params.items()}
    for name, shape in expected.items():
        if read[name].shape != shape:
            raise SpecError(f"parameter {name!r} must have shape {shape}, got {read[name].shape}.")
    rows = wide(x)
    if rows.ndim < 1 or rows.shape[-1] != spec.d_model:
        raise SpecError(f"rows must have width d_model={spec.d_model}, got shape {rows.shape}.")
    if keep is not None:
        hidden, mask = (*rows.shape[:-1], spec.d_ff), np.shape(keep)
        sizes = zip(mask[::-1], hidden[::-1], strict=False)
        if len(mask) > len(hidden) or any(size not in (1, full) for size, full in sizes):
            raise SpecError(f"a mask of the hidden state must spread to {hidden}, got {mask}.")
    return read, rows


def _within(x: Values, bounds: Clamp | None) -> Any:
    """The derivative of a clamp."""
    if bounds is None:
        return 1.0
    inside = ((np.real(x) > bounds[0]) & (np.real(x) < bounds[1])).astype(np.float64)
    return np.where(np.isnan(x), x, inside)


def _clamped(x: Values, bounds: Clamp | None) -> Values:
    return x if bounds is None else functions.clamp(x, *bounds)


def _learned(params: Params, index: int, branch: Branch) -> dict[str, Any]:
    names = ACTIVATIONS[branch.activation.name].learned
    return {name: params[f"phi_{index}_{name}"] for name in names}


class _Factor(NamedTuple):
    """One branch at an affine result z = xW + b: its factor, and what backward multiplies by."""

    value: Values
    by_affine: Values
    by_learned: dict[str, Values]


def _factor(params: Params, z: Values, index: int, branch: Branch) -> _Factor:
    learned = _learned(params, index, branch)
    scaled = branch.scale * z
    a = _clamped(scaled, branch.pre)
    phi = functions.value(branch.activation, a, learned)
    passed = _within(phi, branch.post)
    slope = functions.derivative(branch.activation, a, learned)
    by_learned = functions.by_learned(branch.activation, a, learned)
    return _Factor(
        value=_clamped(phi, branch.post) + branch.offset,
        by_affine=passed * slope * _within(scaled, branch.pre) * branch.scale,
        by_learned={name: passed * part for name, part in by_learned.items()},
    )


def affine(params: Params, x: Any, spec: FFN) -> list[Inexact[np.ndarray, "... F"]]:
    """x W_i + b_i of every branch, before scale and clamp.

    Raises:
        SpecError: as `forward`.
    """
    return _affine(*_read(params, x, spec), spec)


def _affine(params: Params, x: Values, spec: FFN) -> list[Values]:
    return [
        x @ params["wi"][:, i, :] + (params[f"bi_{i}"] if branch.bias else 0.0)
        for i, branch in enumerate(spec.branches)
    ]


def _factors(params: Params, results: Sequence[Values], spec: FFN) -> list[_Factor]:
    return [
        _factor(params, z, i, branch)
        for i, (z, branch) in enumerate(zip(results, spec.branches, strict=True))
    ]


def _hidden(params: Params, factors: Sequence[_Factor], spec: FFN) -> Values:
    hidden = math.prod((factor.value for factor in factors[1:]), start=factors[0].value)
    return hidden + params["bp"] if spec.product_bias else hidden


def _others(factors: Sequence[_Factor], index: int) -> Any:
    """The product of all factors but one; a quotient would fail where that one is 0."""
    return math.prod(factor.value for j, factor in enumerate(factors) if j != index)


def _drop(values: Values, keep: Any, spec: FFN) -> Values:
    if keep is None:
        return values
    return np.where(np.asarray(keep, bool), values / (1 - spec.hidden_dropout), 0.0)


def _finish(params: Params, summed: Values, spec: FFN) -> Values:
    return spec.output_scale * (summed + params["bo"] if spec.output_bias else summed)


def hidden(params: Params, results: Sequence[Any], spec: FFN) -> Inexact[np.ndarray, "... F"]:
    """H before dropout, from what `affine` gives or another way to compute it gave."""
    widened = {name: wide(value) for name, value in params.items()}
    return _hidden(widened, _factors(widened, [wide(z) for z in results], spec), spec)


def forward(params: Params, x: Any, spec: FFN, *, keep: Any = None) -> Inexact[np.ndarray, "... D"]:
    """Y for rows x.

    Args:
        params: arrays by their canonical names.
        x: rows (..., D).
        spec: which function.
        keep: the dropout mask, True where an element of H (..., F) stays; sizes 1 are shared. None
            drops nothing (the inference mode).

    Raises:
        SpecError: for another kind of Spec, or arrays that are not those of the Spec.
    """
    params, x = _read(params, x, spec, keep)
    H = _hidden(params, _factors(params, _affine(params, x, spec), spec), spec)
    return _finish(params, _drop(H, keep, spec) @ params["wo"], spec)


def _rows(values: Values) -> Values:
    """(..., K) as (T, K)."""
    return values.reshape(-1, values.shape[-1])


def backward(
    params: Params, x: Any, spec: FFN, upstream: Any, *, keep: Any = None
) -> tuple[Inexact[np.ndarray, "... D"], dict[str, np.ndarray]]:
    """The gradients of Σ Y·upstream by the rows and by every parameter.

    Args:
        params, x, spec, keep: as in `forward`.
        upstream: the gradient by Y, (..., D).

    Returns:
        The gradient by x, and those by the parameters, named and shaped as they are.

    Raises:
        SpecError: as `forward`, and for an upstream gradient that has not Y's shape.
    """
    params, x = _read(params, x, spec, keep)
    upstream = wide(upstream)
    if upstream.shape != x.shape:
        raise SpecError(f"the upstream gradient must have shape {x.shape}, got {upstream.shape}.")
    factors = _factors(params, _affine(params, x, spec), spec)
    by_sum = spec.output_scale * upstream
    kept = _drop(_hidden(params, factors, spec), keep, spec)
    by_hidden = _drop(by_sum @ params["wo"].T, keep, spec)

    grads = {"wo": _rows(kept).T @ _rows(by_sum)}
    if spec.output_bias:
        grads["bo"] = _rows(by_sum).sum(axis=0)
    if spec.product_bias:
        grads["bp"] = _rows(by_hidden).sum(axis=0)
    by_wi, by_x = [], 0.0
    for i, (factor, branch) in enumerate(zip(factors, spec.branches, strict=True)):
        by_factor = by_hidden * _others(factors, i)
        for name, part in factor.by_learned.items():
            grads[f"phi_{i}_{name}"] = np.sum(by_factor * part)
        by_affine = by_factor * factor.by_affine
        by_wi.append(_rows(x).T @ _rows(by_affine))
        if branch.bias:
            grads[f"bi_{i}"] = _rows(by_affine).sum(axis=0)
        by_x = by_x + by_affine @ params["wi"][:, i, :].T
    grads["wi"] = np.stack(by_wi, axis=1)
    return np.asarray(by_x), grads


def jacobian(params: Params, x: Any, spec: FFN) -> Inexact[np.ndarray, "... D D"]:
    """∂Y_t/∂x_t of every row t, [input, output]; rows do not depend on each other.

    For two branches (φ, linear), without biases and scales, this is
    [W_g diag(U ⊙ φ′(G)) + W_u diag(φ(G))] W_o; in general the sum over branches of
    W_i diag(∂H/∂z_i) W_o.
    """
    params, x = _read(params, x, spec)
    factors = _factors(params, _affine(params, x, spec), spec)
    paths = sum(
        params["wi"][:, i, :] * (factor.by_affine * _others(factors, i))[..., None, :]
        for i, factor in enumerate(factors)
    )
    return spec.output_scale * (np.asarray(paths) @ params["wo"])


def spread(
    params: Params, x: Any, spec: FFN, *, keep: Any = None, floor: float = 0.0
) -> Inexact[np.ndarray, "... D"]:
    """The scale of rounding errors in Y: where it is large, terms cancel or are amplified.

    The standard deviation that Y would have if every term of every sum, and every intermediate,
    had an independent relative error of standard deviation 1, to first order. An error of
    arithmetic is this times the unit roundoff times a growth, see `glu_lab.oracle.tolerances`.

    Args:
        params, x, spec, keep: as in `forward`.
        floor: intermediates below this size have the error of one of this size; a row of
            `glu_lab.oracle.tolerances.FLOOR` where a number format underflows.
    """
    params, x = _read(params, x, spec, keep)
    results = _affine(params, x, spec)
    factors = _factors(params, results, spec)
    # Where x is infinite, what a saturated φ lets through of it is nothing.
    with np.errstate(all="ignore"):
        H = _hidden(params, factors, spec)
        variance = H**2 + floor**2
        if spec.product_bias:
            variance = variance + params["bp"] ** 2 + (H - params["bp"]) ** 2
        for i, (z, factor, branch) in enumerate(zip(results, factors, spec.branches, strict=True)):
            bias = params[f"bi_{i}"] if branch.bias else 0.0
            terms = (x**2) @ params["wi"][:, i, :] ** 2 + bias**2 + z**2 + floor**2
            own = (factor.value - branch.offset) ** 2 if branch.offset else 0.0
            moved = np.where(factor.by_affine == 0, 0.0, terms * factor.by_affine**2)
            others = _others(factors, i) ** 2
            variance = variance + np.where(others == 0, 0.0, (moved + own + floor**2) * others)
        if keep is not None:
            variance = np.where(keep, variance / (1 - spec.hidden_dropout) ** 2, 0.0)
        summed = variance @ params["wo"] ** 2 + floor**2
    if spec.output_bias:
        summed = summed + params["bo"] ** 2
    return abs(spec.output_scale) * np.sqrt(summed)


# Tensor parallelism: every rank holds F/P channels of all branches, and the rows whole.


def shard(params: Params, spec: FFN, parts: int) -> list[dict[str, Any]]:
    """What each of P ranks holds: its channels; learned scalars and the output bias are copies.

    Raises:
        SpecError: when P does not divide F, with the numbers that do.
    """
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1 or spec.d_ff % parts:
        divisors = [str(p) for p in range(1, spec.d_ff + 1) if spec.d_ff % p == 0]
        raise SpecError(
            f"{parts!r} slices do not divide d_ff={spec.d_ff}; choose from {', '.join(divisors)}."
        )
    width = spec.d_ff // parts
    ranks = []
    for rank in range(parts):
        mine = slice(rank * width, (rank + 1) * width)
        held = {}
        for name, value in params.items():
            if name == "wo":
                held[name] = value[mine, :]
            elif name == "bo" or name.startswith("phi_"):
                held[name] = value
            else:
                held[name] = value[..., mine]
        ranks.append(held)
    return ranks


def _ranks(params: Params, spec: FFN, parts: int, keep: Any) -> list[tuple[dict, FFN, Any]]:
    """Parameters, Spec and mask of each rank; without what is added after the sum."""
    ranks = shard(params, spec, parts)
    width = spec.d_ff // parts
    local = spec.replace(d_ff=width, output_bias=False)
    out = []
    for rank, held in enumerate(ranks):
        held = {name: value for name, value in held.items() if name != "bo"}
        mask = keep
        if keep is not None and np.shape(keep)[-1] != 1:
            mask = np.asarray(keep)[..., rank * width : (rank + 1) * width]
        out.append((held, local, mask))
    return out


def parallel_forward(
    params: Params, x: Any, spec: FFN, parts: int, *, keep: Any = None
) -> Inexact[np.ndarray, "... D"]:
    """Y as the sum over P slices of F, each through the formula; the output bias added once.

    Args:
        params, x, spec, keep: as in `forward`, whole.
        parts: P.

    Raises:
        SpecError: as `forward` and `shard`.
    """
    params, x = _read(params, x, spec, keep)
    y: Any = sum(
        forward(held, x, local, keep=mask)
        for held, local, mask in _ranks(params, spec, parts, keep)
    )
    return y + spec.output_scale * params["bo"] if spec.output_bias else y


def parallel_backward(
    params: Params, x: Any, spec: FFN, upstream: Any, parts: int, *, keep: Any = None
) -> tuple[Inexact[np.ndarray, "... D"], dict[str, np.ndarray]]:
    """As `backward`: slices side by side, rows and learned scalars summed, output bias once."""
    params, x = _read(params, x, spec, keep)
    by_rank = [
        backward(held, x, local, upstream, keep=mask)
        for held, local, mask in _ranks(params, spec, parts, keep)
    ]
    grads: dict[str, Any] = {}
    for name in by_rank[0][1]:
        pieces = [rank_grads[name] for _, rank_grads in by_rank]
        if name.startswith("phi_"):
            grads[name] = sum(pieces)
        else:
            grads[name] = np.concatenate(pieces, axis=0 if name == "wo" else -1)
    if spec.output_bias:
        grads["bo"] = spec.output_scale * _rows(wide(upstream)).sum(axis=0)
    by_x: Any = sum(rank_by_x for rank_by_x, _ in by_rank)
    return by_x, grads

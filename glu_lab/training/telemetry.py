"""Statistics of activations per layer and branch, computed where the activations are.

An observer reduces each intermediate of `glu_lab.layers.ffn.TAPS` to a few numbers inside the
compiled program, so that no activation leaves the device.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab.models.transformer import INTERMEDIATES

#: |x| below this counts as small.
SMALL = 1e-3
#: |φ′| below this counts as saturated: the branch passes next to no gradient.
SATURATED = 1e-3
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    return jnp.mean(x, axis=axes)


def _rms(x: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=axes))


def _fraction(condition: Array, axes: tuple[int, ...]) -> Array:
    return jnp.mean(condition.astype(jnp.float32), axis=axes)


def _count(condition: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sum(condition.astype(jnp.int32), axis=axes)


def _order_statistics(x: Array, axes: tuple[int, ...], ranks: Array) -> Array:
    """Values of given ranks (0 the smallest) over some axes: shape (N, ranks).

    By bisection on the bits of the numbers, as exact as a sort. Every pass counts, which needs no
    more than a sum where an array is split over devices; a sort would gather it.

    Args:
        x: finite numbers; one axis (N) is left besides `axes`.
        axes: the axes ranked over.
        ranks: as whole numbers, or in a floating format for more values than int32 counts: ranks
            are then right to some 1e-6 of the number of values.
    """
    bits = np.dtype(x.dtype).itemsize * 8
    integer = np.dtype(f"int{bits}")
    lowest, highest = np.iinfo(integer).min, np.iinfo(integer).max
    # Two's complement puts negative floats in reverse order; this map makes it the floats' own.
    raw = jax.lax.bitcast_convert_type(x, integer)
    ordered = jnp.where(raw < 0, jnp.bitwise_xor(jnp.bitwise_not(raw), lowest), raw)
    kept = next(axis for axis in range(x.ndim) if axis not in axes)
    shape = (x.shape[kept], ranks.shape[0])

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the value lies in [low, high]
        middle = (low & high) + ((low ^ high) >> 1)
        columns = []
        for j in range(ranks.shape[0]):
            limit = jnp.expand_dims(middle[:, j], tuple(a for a in range(x.ndim) if a != kept))
            columns.append(jnp.sum(ordered <= limit, axis=axes, dtype=ranks.dtype))
        enough = jnp.stack(columns, axis=1) > ranks[None]
        one = jnp.ones_like(middle)
        return jnp.where(enough, low, middle + one), jnp.where(enough, middle, high)

    start = (jnp.full(shape, lowest, integer), jnp.full(shape, highest, integer))
    _, found = jax.lax.fori_loop(0, bits, halve, start)
    back = jnp.where(found < 0, jnp.bitwise_not(jnp.bitwise_xor(found, lowest)), found)
    return jax.lax.bitcast_convert_type(back, x.dtype)


def _quantiles(x: Array, axes: tuple[int, ...]) -> Array:
    """`QUANTILES` over some axes, linearly between neighbours as `numpy.quantile`; (N, Q).

    NaN where an axis holds a number that is not finite.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    position = np.asarray(QUANTILES) * (count - 1)
    below = np.floor(position)
    ranks = np.concatenate([below, np.minimum(below + 1, count - 1)])
    ranks = ranks.astype(np.int32 if count < 2**31 else np.float32)
    finite = jnp.isfinite(x)
    values = _order_statistics(jnp.where(finite, x, jnp.zeros_like(x)), axes, jnp.asarray(ranks))
    low, high = jnp.split(values, 2, axis=1)
    weight = jnp.asarray(position - below, x.dtype)[None]
    mixed = low + weight * (high - low)
    return jnp.where(jnp.all(finite, axis=axes)[:, None], mixed, jnp.full_like(mixed, jnp.nan))


def observe(name: str, value: Array) -> dict[str, Array]:
    """Reduces one intermediate of an FFN, as a tap of `glu_lab.layers.ffn` gives it.

    Args:
        name: of the tap.
        value: the intermediate.

    Returns:
        A dict of statistics; those of single branches are arrays of shape (N,), quantiles (N, Q).
    """
    x = value.astype(np.promote_types(value.dtype, np.float32))
    every = tuple(range(x.ndim))
    if name in ("input", "output"):
        return {"rms": _rms(x, every), "non_finite": _count(~jnp.isfinite(x), every)}
    if name == "product":
        return {
            "rms": _rms(x, every),
            "exact_zero": _fraction(x == 0, every),
            "small": _fraction(jnp.abs(x) < SMALL, every),
            "non_finite": _count(~jnp.isfinite(x), every),
        }
    per_branch = tuple(axis for axis in every if axis != x.ndim - 2)
    if name == "branches":
        return {
            "rms": _rms(x, per_branch),
            "exact_zero": _fraction(x == 0, per_branch),
            "small": _fraction(jnp.abs(x) < SMALL, per_branch),
        }
    if name == "slopes":
        return {"saturated": _fraction(jnp.abs(x) < SATURATED, per_branch)}
    centred = x - jnp.mean(x, axis=per_branch, keepdims=True)
    spread = _rms(centred, per_branch)
    statistics = {
        "mean": _mean(x, per_branch),
        "std": spread,
        "quantiles": _quantiles(x, per_branch),
        "non_finite": _count(~jnp.isfinite(x), per_branch),
    }
    if x.shape[-2] > 1:
        joint = jnp.mean(centred[..., 0, :] * centred[..., 1, :])
        statistics["correlation"] = joint / (spread[0] * spread[1])
    return statistics


def report(sown: Mapping[str, Any]) -> dict[str, Any]:
    """Sown statistics as nested lists: stack → tap → statistic → one entry a layer.

    Non-finite numbers become None; JSON has none.
    """
    stacks = {}
    for stack, tree in sown[INTERMEDIATES].items():
        stacks[stack] = jax.tree.map(plain, tree["layers"]["ffn"])
    return stacks


def plain(x: Any) -> Any:
    """An array as nested lists; non-finite numbers become None, for JSON has none."""

    def known(value: Any) -> Any:
        if isinstance(value, list):
            return [known(item) for item in value]
        return value if np.isfinite(value) else None

    return known(np.asarray(x).tolist())


def exact_zero_fraction(report_: Mapping[str, Any]) -> float:
    """Mean over all layers of the product's fraction of exact zeros."""
    layers = [z for stack in report_.values() for z in stack["product"]["exact_zero"]]
    return float(np.mean(layers))


def first_non_finite(report_: Mapping[str, Any]) -> str | None:
    """The first layer and tap with a NaN or infinity, in forward order; None for none."""
    order = ("input", "pre_activation", "product", "output")
    for stack in ("encoder", "decoder"):
        taps = report_.get(stack)
        if taps is None:
            continue
        for layer in range(len(taps["input"]["non_finite"])):
            for tap in order:
                if np.sum(taps[tap]["non_finite"][layer]) > 0:
                    return f"{stack} layer {layer}, FFN {tap}"
    return None

"""Statistics of activations per layer and branch, computed where the activations are.

An observer reduces each intermediate of `glu_lab.layers.ffn.TAPS` to a few numbers inside the
compiled program, so that no activation leaves the device.
"""

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


def observe(name: str, value: Array) -> dict[str, Array]:
    """Reduces one intermediate of an FFN, as a tap of `glu_lab.layers.ffn` gives it.

    Args:
        name: of the tap.
        value: the intermediate.

    Returns:
        A dict of statistics; those of single branches are arrays of shape (N,).
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
        "quantiles": jnp.quantile(
            jnp.moveaxis(x, -2, 0).reshape(x.shape[-2], -1),
            jnp.asarray(QUANTILES, x.dtype),
            axis=1,
        ).T,
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

"""How order enters: rotary, relative buckets, sinusoidal table.

Dimension letters: B batch, S sequence, Q queries, H heads, K head width, D d_model.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from glu_lab.layers.params import Parameter
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.spec.ffn import Initializer
from glu_lab.spec.model import Positions


def rope(
    x: Float[Array, "B S H K"], positions: Int[Array, "B S"], theta: float
) -> Float[Array, "B S H K"]:
    """Rotates pairs (i, i + K/2) by position · theta^(−2i/K).

    The split-half pairing of Hugging Face's Llama; RoFormer's own pairing is (2i, 2i + 1).
    Source: Su et al. 2021 (arXiv 2104.09864). Angles are float32 at least.
    """
    half = x.shape[-1] // 2
    dtype = np.promote_types(x.dtype, np.float32)
    frequency = theta ** (-np.arange(half) / half)
    angle = (
        positions.astype(dtype)[:, :, None, None] * jnp.asarray(frequency, dtype)[None, None, None]
    )
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = x[..., :half].astype(dtype), x[..., half:].astype(dtype)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def sinusoidal(length: int, d_model: int) -> Float[np.ndarray, "S D"]:
    """sin at even and cos at odd channels, wavelengths from 2π to 10000·2π.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5.

    Raises:
        ValueError: for an odd width.
    """
    if d_model % 2:
        raise ValueError(f"a sinusoidal table needs an even d_model, got {d_model}.")
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, d_model)


def relative_parameters(spec: Positions, num_heads: int, d_model: int) -> dict[str, Parameter]:
    """``bias (buckets, H)``; its initialiser's fan-in is D, as in T5."""
    init = Initializer(
        distribution=spec.relative_init.distribution,
        scale=spec.relative_init.stddev(d_model, d_model),
        fan="none",
    )
    return {
        "bias": Parameter(shape=(spec.num_buckets, num_heads), axes=("buckets", "heads"), init=init)
    }


def relative_buckets(
    queries: int, keys: int, spec: Positions, bidirectional: bool
) -> Int[np.ndarray, "Q S"]:
    """T5's bucket of every (query, key) distance.

    Half of the buckets hold one exact distance each, the rest grow logarithmically up to
    `max_distance`; bidirectional attention spends half of all buckets on keys to the right.
    Source: Raffel et al. 2019 (arXiv 1910.10683), section 2.1.
    """
    distance = np.arange(queries)[:, None] - np.arange(keys)[None, :]
    buckets, start = spec.num_buckets, np.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        start = np.where(distance < 0, buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(distance, 0)
    exact = buckets // 2
    # float32 as in the reference: bucket borders depend on the rounding of the logarithm.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(spec.max_distance / exact)
    )
    grown = exact + (ratio * np.float32(buckets - exact)).astype(np.int64)
    return start + np.where(distance < exact, distance, np.minimum(grown, buckets - 1))


def relative_bias(
    params: Mapping[str, Array],
    queries: int,
    keys: int,
    spec: Positions,
    bidirectional: bool,
    place: Placement = UNPLACED,
) -> Float[Array, "1 H Q S"]:
    """The learned bias that a stack adds to its self-attention scores."""
    return _bias(params, relative_buckets(queries, keys, spec, bidirectional), place)


def relative_bias_at(
    params: Mapping[str, Array],
    query: Int[Array, ""],
    keys: int,
    spec: Positions,
    place: Placement = UNPLACED,
) -> Float[Array, "1 H 1 S"]:
    """The row of the causal `relative_bias` that belongs to one query."""
    # Bucket of each distance; keys after the query are masked and get any.
    buckets = jnp.asarray(relative_buckets(keys, 1, spec, bidirectional=False)[:, 0], jnp.int32)
    distance = jnp.maximum(query - jnp.arange(keys, dtype=query.dtype), 0)
    return _bias(params, buckets[distance][None], place)


def _bias(params: Mapping[str, Array], buckets: Any, place: Placement) -> Float[Array, "1 H Q S"]:
    layout = place.spec(None, None, "heads")
    bias = jnp.asarray(params["bias"]).at[buckets].get(out_sharding=layout)
    return jnp.moveaxis(bias, -1, 0)[None]

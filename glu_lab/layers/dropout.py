"""Inverted dropout from an explicit key."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Key


def dropout(
    x: Array, rate: float, key: Key[Array, ""] | None, layout: PartitionSpec | None = None
) -> Array:
    """Zeroes elements with probability `rate` and scales the rest by 1/(1 − rate).

    Args:
        x: any shape.
        rate: in [0, 1).
        key: None returns x as it is (the inference mode).
        layout: that of x, under a mesh. The draw is the same whatever it is.
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape, out_sharding=layout)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))

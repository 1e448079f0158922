"""Inverted dropout from an explicit key."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key


def dropout(x: Array, rate: float, key: Key[Array, ""] | None) -> Array:
    """Zeroes elements with probability `rate` and scales the rest by 1/(1 − rate).

    Args:
        x: any shape.
        rate: in [0, 1).
        key: None returns x as it is (the inference mode).
    """
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))

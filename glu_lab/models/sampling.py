"""Which token comes next, from the logits of the last position.

Dimension letters: B batch, V ids that may be drawn.
"""

import dataclasses
import math
from numbers import Integral

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from glu_lab.errors import SpecError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn: temperature first, then `top_k`, then `top_p` of what is left.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token, whatever the rest says.
        top_k: draw from the k likeliest tokens, and those level with the last of them; None draws
            from all.
        top_p: draw from the fewest likeliest tokens whose probability is p together (nucleus
            sampling), and those level with the last of them. Source: Holtzman et al. 2019 (arXiv
            1904.09751), section 3.1. None or 1 draws from all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0 <= self.temperature < math.inf:
            raise SpecError(f"temperature must be ≥ 0 and finite, got {self.temperature!r}.")
        if self.top_k is not None and not (isinstance(self.top_k, Integral) and self.top_k >= 1):
            raise SpecError(
                f"top_k must be a whole number ≥ 1, got {self.top_k!r}; None draws from all."
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SpecError(
                f"top_p must be over 0 and at most 1, got {self.top_p!r}; 1 draws from all."
            )

    def arrays(self) -> dict[str, Array]:
        """Keyword arguments of `draw`. Values may change without a new compilation."""
        out: dict[str, Array] = {"temperature": jnp.float32(self.temperature)}
        if self.top_k is not None:
            out["top_k"] = jnp.int32(min(self.top_k, jnp.iinfo(jnp.int32).max))
        # Rounding in a cumulative sum must not cut the tail where all of it is asked for.
        if self.top_p is not None and self.top_p < 1:
            out["top_p"] = jnp.float32(self.top_p)
        return out


def draw(
    logits: Float[Array, "B V"],
    key: Key[Array, ""],
    *,
    temperature: Float[Array, ""],
    top_k: Int[Array, ""] | None = None,
    top_p: Float[Array, ""] | None = None,
    layout: PartitionSpec | None = None,
) -> Int[Array, " B"]:
    """A token of each row.

    Args:
        logits: of the ids that may be drawn.
        key: of all rows together.
        temperature, top_k, top_p: as in `Sampling`.
        layout: of the tokens, under a mesh.
    """
    logits = logits.astype(jnp.float32)
    scaled = truncate(logits / jnp.maximum(temperature, 1e-6), top_k, top_p)
    drawn = jax.random.categorical(key, scaled, axis=-1, out_sharding=layout)
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)


def truncate(
    logits: Float[Array, "B V"],
    top_k: Int[Array, ""] | None = None,
    top_p: Float[Array, ""] | None = None,
) -> Float[Array, "B V"]:
    """−∞ in place of the logits of the tokens that `Sampling` leaves out."""

    def cut(logits: Array, falling: Array, kept: Bool[Array, "B V"]) -> Array:
        least = jnp.min(jnp.where(kept, falling, jnp.inf), axis=-1, keepdims=True)
        return jnp.where(logits >= least, logits, -jnp.inf)

    if top_k is not None:
        rank = jnp.arange(logits.shape[-1], dtype=top_k.dtype)[None]
        logits = cut(logits, jnp.sort(logits, axis=-1, descending=True), rank < top_k)
    if top_p is not None:
        falling = jnp.sort(logits, axis=-1, descending=True)
        probability = jax.nn.softmax(falling, axis=-1)
        before = jnp.cumsum(probability, axis=-1) - probability
        logits = cut(logits, falling, before < top_p)
    return logits

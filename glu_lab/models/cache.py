"""What a decoder keeps of the positions that it has seen, so that each is computed once.

Dimension letters: B batch, S slots, E positions of the source, G key/value heads, K head width, L
layers.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from glu_lab.layers.attention import KeyValues


class Cache(NamedTuple):
    """Keys and values of a batch of rows.

    Prompts are padded on the left: the next token of every row then goes to the same slot, and is
    written as one slice.

    Attributes:
        layers: by sublayer: ``attention`` with S slots and, in an encoder–decoder,
            ``cross_attention`` of the E positions of the source; each (L, B, S or E, G, K) in
            ``compute_dtype``.
        padding: slots before the first token of a row.
        filled: slots that are padding or hold a token; the slot of the next one.
        encoder_segments: 0 where the source is padding; None for a decoder LM.
    """

    layers: dict[str, KeyValues]
    padding: Int[Array, " B"]
    filled: Int[Array, ""]
    encoder_segments: Int[Array, "B E"] | None

    @property
    def slots(self) -> int:
        """S."""
        return self.layers["attention"].keys.shape[2]

    @property
    def mask(self) -> Bool[Array, "B 1 1 S"]:
        """Slots that the next token sees: the row's tokens so far, and its own."""
        slot = jnp.arange(self.slots, dtype=self.filled.dtype)[None]
        seen = (slot >= self.padding[:, None]) & (slot <= self.filled)
        return seen[:, None, None]

    @property
    def positions(self) -> Int[Array, "B 1"]:
        """Where the next token stands in its row."""
        return (self.filled - self.padding)[:, None]

    def extended(self, new: KeyValues) -> "Cache":
        """With the next token's keys and values (L, B, 1, G, K) in its slot."""
        kept = self.layers["attention"].written(new, self.filled)
        return self._replace(layers=self.layers | {"attention": kept}, filled=self.filled + 1)

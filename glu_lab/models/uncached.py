"""Generation without a cache: the whole model at every token.

Slow, and short enough to be seen right; `glu_lab.models.generate` is held against it. Dimension
letters: B batch, S length of the buffer, V vocabulary.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from glu_lab.models.sampling import draw

#: (Weights and whatever else it reads, buffer of tokens (B, S)) → logits (B, S, V) that look only
#: backwards.
NextLogits = Callable[[Any, Int[Array, "B S"]], Float[Array, "B S V"]]


@functools.partial(jax.jit, static_argnames=("next_logits", "stop", "limit"))
def generate(
    next_logits: NextLogits,
    given: Any,
    buffer: Int[Array, "B S"],
    start: Int[Array, ""],
    key: Key[Array, ""],
    sampling: Mapping[str, Array],
    *,
    stop: int,
    limit: int,
) -> Int[Array, "B S"]:
    """Fills a buffer from `start` on.

    Every step runs the model over the whole buffer; what lies at and after the position being
    filled cannot be seen by it.

    Args:
        next_logits: the model; its logits at position i say what stands at i + 1. Compiled once
            for each function object and shape.
        given: its first argument, a tree of arrays. Weights go here rather than into a closure,
            where they would be constants of the compiled program.
        buffer: the prompt, then anything.
        start: first position to fill, ≥ 1.
        key: of the draws.
        sampling: see `glu_lab.models.sampling.Sampling.arrays`.
        stop: after this token a row is filled with it.
        limit: ids from here on are never drawn (unused rows of the embedding).

    Returns:
        The filled buffer.
    """

    def fill(position: Array, filled: Array) -> Array:
        logits = jax.lax.dynamic_index_in_dim(
            next_logits(given, filled), position - 1, axis=1, keepdims=False
        )
        folded = jax.random.fold_in(key, position)
        token = draw(logits[:, :limit], folded, **sampling, layout=None)
        before = jax.lax.dynamic_index_in_dim(filled, position - 1, axis=1, keepdims=False)
        ended = (before == stop) & (position > start)
        token = jnp.where(ended, stop, token).astype(filled.dtype)
        return jax.lax.dynamic_update_index_in_dim(filled, token, position, axis=1)

    return jax.lax.fori_loop(start, buffer.shape[1], fill, buffer)

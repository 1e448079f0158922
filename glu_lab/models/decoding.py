"""A prompt is read once, into a cache; from there every new token costs one position.

Two programs: `prefill`, compiled once a shape of the prompts, and `decode`, once a shape of the
cache, however many tokens it writes. Dimension letters: B batch, P prompt, S slots of the cache, E
source, V vocabulary.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from glu_lab.layers.attention import KeyValues
from glu_lab.layers.placement import Placement
from glu_lab.models.cache import Cache
from glu_lab.models.sampling import draw
from glu_lab.models.transformer import Transformer, counting, end_parameters


class Prompts(NamedTuple):
    """What a batch of rows begins with.

    Attributes:
        tokens: the decoder's, each row's at its right end.
        padding: how many positions of a row come before its first token.
        source: an encoder's tokens, each row's at its left end; None for a decoder LM.
        source_length: how many they are.
    """

    tokens: Int[Array, "B P"]
    padding: Int[Array, " B"]
    source: Int[Array, "B E"] | None = None
    source_length: Int[Array, " B"] | None = None


@functools.partial(jax.jit, static_argnames=("transformer", "slots"))
def prefill(
    transformer: Transformer, params: Any, prompts: Prompts, *, slots: int
) -> tuple[Float[Array, "B V"], Cache]:
    """The logits after the prompts, and a cache of `slots` slots that holds these."""
    prompts = jax.tree.map(lambda x: _by_rows(x, transformer.place), prompts)
    ends = _ends(transformer, params)
    encoded = encoder_segments = None
    if prompts.source is not None and prompts.source_length is not None:
        held = _slots(prompts.source) < prompts.source_length[:, None]
        encoder_segments = held.astype(jnp.int32)
        encoder: Any = transformer.stack("encoder")
        encoded, _ = encoder.apply(
            {"params": params["encoder"]},
            transformer.embed(ends, prompts.source),
            encoder_segments,
            counting(prompts.source),
            None,
        )
    where = _slots(prompts.tokens) - prompts.padding[:, None]
    decoder: Any = transformer.stack("decoder", remember=True)
    x, made = decoder.apply(
        {"params": params["decoder"]},
        transformer.embed(ends, prompts.tokens),
        (where >= 0).astype(jnp.int32),
        jnp.maximum(where, 0),
        None,
        encoded,
        encoder_segments,
    )
    length = prompts.tokens.shape[1]
    free = [(0, slots - length if axis == 2 else 0) for axis in range(5)]
    own = KeyValues(*(jnp.pad(x, free) for x in made["attention"]))
    cache = Cache(
        layers=made | {"attention": own},
        padding=prompts.padding,
        filled=jnp.int32(length),
        encoder_segments=encoder_segments,
    )
    return _last_logits(transformer, ends, x), cache


def step(
    transformer: Transformer, params: Any, token: Int[Array, " B"], cache: Cache
) -> tuple[Float[Array, "B V"], Cache]:
    """The logits after one more token of each row."""
    ends, tokens = _ends(transformer, params), token[:, None]
    decoder: Any = transformer.stack("decoder", remember=True)
    x, made = decoder.apply(
        {"params": params["decoder"]},
        transformer.embed(ends, tokens),
        jnp.ones_like(tokens),
        cache.positions,
        None,
        encoder_segments=cache.encoder_segments,
        cache=cache,
    )
    return _last_logits(transformer, ends, x), cache.extended(made["attention"])


@functools.partial(jax.jit, static_argnames=("transformer", "limit"))
def decode(
    transformer: Transformer,
    params: Any,
    logits: Float[Array, "B V"],
    cache: Cache,
    key: Key[Array, ""],
    end: Int[Array, ""],
    stops: Int[Array, " N"],
    sampling: Mapping[str, Array],
    *,
    limit: int,
) -> Int[Array, "B S"]:
    """Tokens in the slots from ``cache.filled`` to `end`.

    Args:
        transformer, params: the model.
        logits, cache: of `prefill`.
        key: of the draws; that of a slot is folded in, as `glu_lab.models.uncached.generate` does.
        end: at most the slots of the cache.
        stops: a row ends with any of these tokens; the loop ends with the last row.
        sampling: see `glu_lab.models.sampling.Sampling.arrays`.
        limit: ids from here on are never drawn.

    Returns:
        One token a slot; what lies outside, and after a row's end, is 0.
    """
    batch = transformer.place.spec("batch")

    def next_token(logits: Array, slot: Array) -> Array:
        folded = jax.random.fold_in(key, slot)
        return draw(logits[:, :limit], folded, **sampling, layout=batch)

    def write(tokens: Array, token: Array, slot: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(tokens, token[:, None], slot, axis=1)

    def is_stop(token: Array) -> Array:
        return (token[:, None] == stops[None]).any(axis=1)

    def going(state: Any) -> Array:
        _, _, ended, cache = state
        return (cache.filled + 1 < end) & ~ended.all()

    def advance(state: Any) -> Any:
        tokens, token, ended, cache = state
        logits, cache = step(transformer, params, token, cache)
        token = jnp.where(ended, jnp.zeros_like(token), next_token(logits, cache.filled))
        return write(tokens, token, cache.filled), token, ended | is_stop(token), cache

    token = next_token(logits, cache.filled)
    shape, layout = (token.shape[0], cache.slots), transformer.place.spec("batch", None)
    tokens = write(jnp.zeros(shape, jnp.int32, out_sharding=layout), token, cache.filled)
    return jax.lax.while_loop(going, advance, (tokens, token, is_stop(token), cache))[0]


def _slots(tokens: Int[Array, "B S"]) -> Int[Array, "1 S"]:
    return jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]


def _ends(transformer: Transformer, params: Any) -> dict[str, Array]:
    table = end_parameters(transformer.model)
    return {name: transformer.place.use(params[name], p.axes) for name, p in table.items()}


def _by_rows(x: Array, place: Placement) -> Array:
    """Rows split as those of a batch."""
    if place.rules is None:
        return jnp.asarray(x)
    layout = place.spec("batch", *(None,) * (jnp.ndim(x) - 1))
    return jax.sharding.reshard(x, layout)  # pyright: ignore[reportArgumentType] rules are there


def _last_logits(
    transformer: Transformer, ends: Mapping[str, Array], x: Float[Array, "B P D"]
) -> Float[Array, "B V"]:
    """Of the last position, each row's over the whole vocabulary: what is drawn from is whole."""
    return _by_rows(transformer.project(ends, x[:, -1:])[:, 0], transformer.place)

"""Continuing sequences token by token, for anyone who has a model and token ids.

Dimension letters: B batch, V vocabulary.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from glu_lab.errors import DataError
from glu_lab.models import decoding
from glu_lab.models.cache import Cache
from glu_lab.models.decoding import Prompts
from glu_lab.models.sampling import Sampling
from glu_lab.models.transformer import Transformer
from glu_lab.spec.sharding import check_size

#: Token ids of one row.
Ids = Sequence[int] | np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """How long a generation took, compilation apart.

    Attributes:
        prefill_tokens: of prompts and sources, padding left out.
        prefill_seconds: from the prompts on the host to the logits after them.
        decode_tokens: new tokens but the first of each row, whose logits are the prompt's.
        decode_seconds: from those logits to all new tokens on the host.
    """

    prefill_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float

    @property
    def prefill_rate(self) -> float:
        """Tokens a second."""
        return self.prefill_tokens / self.prefill_seconds

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second; None where every row ended with its first token."""
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else None


class Generator:
    """Continues prompts of any lengths with a decoder LM or an encoder–decoder.

    Compiled programs are shared by all generators of equal transformers.

    Example:
        >>> generator = Generator(Transformer(model))
        >>> rows = generator.generate(params, [[1, 5, 9], [1, 7]], tokens=32, stop=2)

    Attributes:
        transformer: the model. Under a mesh, entered with `jax.set_mesh`, it has a `place`, and
            parameters lie as in training.
    """

    def __init__(self, transformer: Transformer):
        self.transformer = transformer

    def prefill(
        self,
        params: Any,
        prompts: Sequence[Ids],
        *,
        source: Sequence[Ids] | None = None,
        slots: int,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Reads the prompts.

        Args:
            params: the parameters, a tree of the form of `glu_lab.models.parameters`.
            prompts: token ids that the decoder begins each row with; at least one.
            source: for an encoder–decoder, the encoder's token ids of each row.
            slots: tokens of a row that the cache has room for, the longest prompt's and new ones.

        Returns:
            The logits of the token after each prompt, and the cache.

        Raises:
            DataError: for prompts that are empty, too long, or no ids of the vocabulary; or for a
                source that is missing or not asked for.
            SpecError: for rows that do not divide over the mesh.
        """
        model = self.transformer.model
        rows = _checked("prompt", prompts, model.vocab_size, model.max_length)
        longest = max(map(len, rows))
        if not longest <= slots <= model.max_length:
            raise DataError(
                f"a cache of {slots} slots: the longest prompt has {longest} tokens and "
                f"model.max_length is {model.max_length}; slots must lie between."
            )
        if (source is not None) != (model.kind == "encoder_decoder"):
            raise DataError(
                "an encoder–decoder needs a source for each prompt."
                if source is None
                else "a decoder LM has no encoder to read a source; give its tokens as prompts."
            )
        self._check_mesh(len(rows))
        padding = np.asarray([longest - len(row) for row in rows], np.int32)
        tokens = np.stack([np.pad(row, (n, 0)) for row, n in zip(rows, padding, strict=True)])
        given = Prompts(tokens, padding)  # pyright: ignore[reportArgumentType] NumPy's arrays
        if source is not None:
            texts = _checked("source", source, model.vocab_size, model.max_length)
            if len(texts) != len(rows):
                raise DataError(f"{len(rows)} prompts and {len(texts)} sources; each needs one.")
            lengths = np.asarray([len(text) for text in texts], np.int32)
            widest = lengths.max()
            padded = np.stack([np.pad(text, (0, widest - len(text))) for text in texts])
            given = given._replace(source=padded, source_length=lengths)
        return decoding.prefill(self.transformer, params, given, slots=slots)

    def decode(
        self,
        params: Any,
        logits: Float[Array, "B V"],
        cache: Cache,
        *,
        tokens: int,
        sampling: Sampling = Sampling(temperature=0),
        seed: int = 0,
        stop: int | Sequence[int] = (),
        limit: int | None = None,
    ) -> list[list[int]]:
        """New tokens after what `prefill` has read; the cache may be used again.

        Args:
            params: as given to `prefill`.
            logits, cache: its result.
            tokens: at most this many of each row.
            sampling: how they are drawn; by default the likeliest.
            seed: of the draws.
            stop: one or more tokens that end a row.
            limit: ids from here on are never drawn (unused rows of the embedding); None for all.

        Returns:
            The new ids of each row, up to and with its stop token.

        Raises:
            DataError: for numbers that ask for nothing, or more than the cache has room for.
        """
        self._check_request(tokens, stop=stop, limit=limit)
        filled = int(cache.filled)
        if filled + tokens > cache.slots:
            raise DataError(
                f"the cache has {cache.slots} slots, {filled} of them filled: no room for {tokens} "
                f"new tokens; prefill with slots={filled + tokens} or more."
            )
        stops = np.atleast_1d(np.asarray(stop, np.int32))
        written = decoding.decode(
            self.transformer,
            params,
            logits,
            cache,
            jax.random.key(seed),
            jnp.int32(filled + tokens),
            jnp.asarray(stops),
            sampling.arrays(),
            limit=self.transformer.model.vocab_size if limit is None else limit,
        )
        rows = np.asarray(written)[:, filled : filled + tokens]
        ends = [np.flatnonzero(np.isin(row, stops)) for row in rows]
        return [
            row[: end[0] + 1 if len(end) else None].tolist()
            for row, end in zip(rows, ends, strict=True)
        ]

    def generate(
        self,
        params: Any,
        prompts: Sequence[Ids],
        *,
        tokens: int,
        source: Sequence[Ids] | None = None,
        **how: Any,
    ) -> list[list[int]]:
        """New tokens of each prompt: `prefill` with room for them, then `decode`.

        Args:
            params, prompts, source: as for `prefill`.
            tokens: at most this many of each row.
            **how: as for `decode`.

        Returns:
            The new ids of each row, up to and with its stop token.

        Raises:
            DataError, SpecError: as both do.
        """
        slots = self._slots(prompts, tokens, how)
        logits, cache = self.prefill(params, prompts, source=source, slots=slots)
        return self.decode(params, logits, cache, tokens=tokens, **how)

    def measure(
        self,
        params: Any,
        prompts: Sequence[Ids],
        *,
        tokens: int,
        source: Sequence[Ids] | None = None,
        **how: Any,
    ) -> tuple[list[list[int]], Timing]:
        """As `generate`, done once to compile and then again under the clock."""
        self.generate(params, prompts, tokens=tokens, source=source, **how)
        slots = self._slots(prompts, tokens, how)
        begun = time.perf_counter()
        read = self.prefill(params, prompts, source=source, slots=slots)
        logits, cache = jax.block_until_ready(read)
        between = time.perf_counter()
        rows = self.decode(params, logits, cache, tokens=tokens, **how)
        done = time.perf_counter()
        timing = Timing(
            prefill_tokens=sum(map(len, [*prompts, *(source or ())])),
            prefill_seconds=between - begun,
            decode_tokens=sum(map(len, rows)) - len(rows),
            decode_seconds=done - between,
        )
        return rows, timing

    def _slots(self, prompts: Sequence[Ids], tokens: int, how: Mapping[str, Any]) -> int:
        """Room for the longest prompt and `tokens` more; all is checked before a prompt is read."""
        model = self.transformer.model
        self._check_request(tokens, **how)
        longest = max(map(len, _checked("prompt", prompts, model.vocab_size, model.max_length)))
        if longest + tokens > model.max_length:
            raise DataError(
                f"a prompt of {longest} tokens and {tokens} new ones are over "
                f"model.max_length={model.max_length}."
            )
        return longest + tokens

    def _check_request(
        self, tokens: int, *, stop: int | Sequence[int] = (), limit: int | None = None, **_: Any
    ) -> None:
        """Checks what `decode` is asked for, apart from the cache."""
        V = self.transformer.model.vocab_size
        if tokens < 1:
            raise DataError(f"tokens must be ≥ 1, got {tokens}.")
        if limit is not None and not 1 <= limit <= V:
            raise DataError(f"limit must be from 1 to model.vocab_size={V}, got {limit}.")
        stops = np.atleast_1d(np.asarray(stop, np.int64))
        outside = stops[(stops < 0) | (stops >= V)]
        if outside.size:
            raise DataError(f"stop holds id {outside[0]}; the model has ids from 0 to {V - 1}.")

    def _check_mesh(self, rows: int) -> None:
        rules = self.transformer.place.rules
        if rules is not None:
            mesh: Mapping[str, int] = jax.sharding.get_abstract_mesh().shape
            check_size("prompts", rows, rules.batch, mesh)


def _checked(name: str, rows: Sequence[Ids], vocabulary: int, longest: int) -> list[np.ndarray]:
    """Rows of ids as int32.

    Raises:
        DataError: for none, an empty one, one that is too long, or what is no id.
    """
    if not len(rows):
        raise DataError(f"no {name}: give a list of lists of token ids.")
    out = []
    for index, row in enumerate(rows):
        ids = np.asarray(row)
        if ids.size == 0:
            raise DataError(
                f"{name} {index} is empty; it needs at least one token (a text of a language "
                "model begins after an end-of-sequence)."
            )
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise DataError(
                f"{name} {index} is no list of token ids: {ids.ndim} dimensions of {ids.dtype}."
            )
        if len(ids) > longest:
            raise DataError(
                f"{name} {index} has {len(ids)} tokens, over model.max_length={longest}."
            )
        outside = ids[(ids < 0) | (ids >= vocabulary)]
        if outside.size:
            raise DataError(
                f"{name} {index} holds id {outside[0]}; the model has ids from 0 to "
                f"{vocabulary - 1}."
            )
        out.append(ids.astype(np.int32))
    return out

"""Documents in a row: an endless stream per shard, cut into windows of equal length.

The stream of a shard is its documents in one order after another: every epoch holds each document
once, in an order drawn from (seed, shard, epoch). Window k is tokens k·W to (k+1)·W of the stream,
so any window is found by arithmetic, and there is no packing state that a resume could lose.

Long documents fill many windows in a row. So that a batch is not a few pages of one document,
training takes the windows in a shuffled order too, within stretches of about one epoch.

Letters: B batch, S row length, W window.
"""

import functools

import numpy as np

from glu_lab.data.tokens import TokenizedDocuments

#: What random numbers are for; part of each generator's key, so that no two uses share numbers.
ORDER, WINDOW_ORDER, TRAIN_NOISE, VALIDATION_NOISE = 1, 2, 3, 4


def generator(seed: int, purpose: int, shard: int, index: int) -> np.random.Generator:
    """Random numbers that depend on the arguments alone, not on what was drawn before.

    Philox is counter-based (Salmon et al. 2011): the arguments fill its key and the high words of
    its counter, which drawing never reaches.
    """
    return np.random.Generator(
        np.random.Philox(key=[seed, (purpose << 32) | shard], counter=[0, 0, 0, index])
    )


class DocumentStream:
    """One shard's documents, one after another.

    Args:
        documents: the split's tokens.
        members: ranks of the shard's documents.
        with_eos: whether each document's end-of-sequence is part of the stream.
        seed: shuffles documents and windows; None keeps the order of `members`.
        shard: number of the shard.

    Attributes:
        epoch_tokens: tokens of one epoch.
    """

    def __init__(
        self, documents: TokenizedDocuments, members: np.ndarray, *, with_eos: bool,
        seed: int | None = None, shard: int = 0,
    ):  # fmt: skip
        self._tokens = documents.tokens
        self._offsets = documents.offsets[members]
        self._lengths = documents.lengths[members] + int(with_eos)
        self._seed, self._shard = seed, shard
        self.epoch_tokens = int(self._lengths.sum())
        # Two: a window may reach from one epoch into the next.
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)
        self._window_order = functools.lru_cache(maxsize=2)(self._draw_window_order)

    def _draw_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's documents, and where each ends in the epoch."""
        order = np.arange(len(self._lengths))
        if self._seed is not None:
            order = generator(self._seed, ORDER, self._shard, epoch).permutation(order)
        return order, np.cumsum(self._lengths[order])

    def _draw_window_order(self, stretch: int, count: int) -> np.ndarray:
        assert self._seed is not None
        return generator(self._seed, WINDOW_ORDER, self._shard, stretch).permutation(count)

    def window_start(self, number: int, width: int) -> int:
        """Where the `number`-th window that training takes starts in the stream.

        Args:
            number: 0, 1, … in the order in which windows are taken.
            width: tokens of a window.

        Returns:
            A multiple of `width`; over all numbers, each multiple once.
        """
        if self._seed is None:
            return number * width
        count = max(1, self.epoch_tokens // width)
        stretch, inside = divmod(number, count)
        return (stretch * count + int(self._window_order(stretch, count)[inside])) * width

    def read(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `start` to `start + count` of the stream.

        Returns:
            tokens (count,) int32, and starts (count,) bool: True at each document's first token.
        """
        tokens, starts = np.empty(count, np.int32), np.zeros(count, bool)
        epoch, offset = divmod(start, self.epoch_tokens)
        order, ends = self._order(epoch)
        place = int(np.searchsorted(ends, offset, side="right"))
        filled = 0
        while filled < count:
            if place == len(order):
                epoch, offset, place = epoch + 1, 0, 0
                order, ends = self._order(epoch)
            document, end = order[place], int(ends[place])
            length = int(self._lengths[document])
            inside = length - (end - offset)
            taken = min(end - offset, count - filled)
            first = int(self._offsets[document]) + inside
            tokens[filled : filled + taken] = self._tokens[first : first + taken]
            if inside == 0 and taken:
                starts[filled] = True
            filled, offset, place = filled + taken, offset + taken, place + 1
        return tokens, starts


def causal_window(
    stream: DocumentStream, start: int, count: int, eos_id: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input and target tokens of a causal-LM window.

    A document's targets are its tokens and end-of-sequence; its inputs are end-of-sequence (as the
    start symbol) and its tokens.

    Returns:
        inputs, targets (count,) int32, and starts (count,) bool at each document's first pair.
    """
    tokens, starts = stream.read(max(start - 1, 0), count + int(start > 0))
    # Before the stream's first token stands end-of-sequence, as it does before every document.
    if start == 0:
        return np.concatenate([[eos_id], tokens[:-1]], dtype=np.int32), tokens, starts
    return tokens[:-1], tokens[1:], starts[1:]


def segments_and_positions(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Segments 1, 2, … of the document pieces in each row, and positions that restart with each.

    Args:
        starts: (B, S) bool, True at each document's first token. A row's first token starts a
            piece too, also in the middle of a document.

    Returns:
        segments, positions: (B, S) int32.
    """
    pieces = starts.copy()
    pieces[:, 0] = True
    place = np.broadcast_to(np.arange(starts.shape[1], dtype=np.int32), starts.shape)
    first = np.maximum.accumulate(np.where(pieces, place, 0), axis=1)
    return np.cumsum(pieces, axis=1, dtype=np.int32), place - first

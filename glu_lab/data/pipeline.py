"""Batches: which rows a step sees, and how a row becomes arrays.

The rows of a global batch, for B = batch size and H = logical shards. Let G = gcd(B, H). The batch
is G equal blocks of rows and the shards are G equal blocks of shards; block q of rows is fed from
block q of shards, in turn. Nothing here knows the number of processes. P processes must divide B
and H, hence G; process p then owns shards p·H/P to (p+1)·H/P and feeds rows p·B/P to (p+1)·B/P, so
the local batches of processes 0, 1, …, one after another, are the global batch.

Letters: B batch, S input length, R target length, W window of raw tokens.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from glu_lab.data import packing, span_corruption
from glu_lab.data.packing import DocumentStream
from glu_lab.errors import DataError
from glu_lab.spec.experiment import Data

Batch = dict[str, np.ndarray]


class SpanCorruptionRows:
    """Windows of raw tokens to encoder inputs and decoder targets.

    Args:
        spec: the lengths, density and span length.
        eos_id: ends inputs and targets.
        first_sentinel: id of ``<extra_id_0>``.

    Attributes:
        window: raw tokens of a row.
        target_length: R.
        shapes: row shape of each array.

    Raises:
        DataError: for lengths that do not fit, or too few sentinels.
    """

    with_eos = False  # T5 joins documents without a mark between them

    def __init__(self, spec: Data, *, eos_id: int, first_sentinel: int):
        self._spec, self._eos_id, self._first_sentinel = spec, eos_id, first_sentinel
        self._size = span_lengths(spec)
        self.window = self._size.raw
        self.target_length = spec.target_length or self._size.targets
        encoder, decoder = (spec.input_length,), (self.target_length,)
        self.shapes = {
            "encoder_tokens": encoder,
            "encoder_segments": encoder,
            "decoder_tokens": decoder,
            "targets": decoder,
            "weights": decoder,
        }

    def build(self, windows: Sequence[tuple[DocumentStream, int, int, np.random.Generator]]):
        """A batch from (stream, start, count, random numbers) of each row, equal in count."""
        count = windows[0][2]
        size = self._size
        if count != size.raw:
            size = span_corruption.lengths(
                count, self._spec.noise_density, self._spec.mean_span_length
            )
        draws = span_corruption.draws_per_example(size)
        raw = np.stack([stream.read(start, count)[0] for stream, start, count, _ in windows])
        mask = span_corruption.noise_mask(size, np.stack([g.random(draws) for *_, g in windows]))
        inputs, targets = span_corruption.corrupt(
            raw, mask, eos_id=self._eos_id, first_sentinel=self._first_sentinel
        )
        batch = {name: np.zeros((len(raw), *s), np.int32) for name, s in self.shapes.items()}
        batch["encoder_tokens"][:, : size.inputs] = inputs
        batch["encoder_segments"][:, : size.inputs] = 1
        batch["targets"][:, : size.targets] = targets
        batch["weights"][:, : size.targets] = 1
        # The decoder starts from padding (id 0), as T5's does.
        batch["decoder_tokens"][:, 1 : size.targets] = targets[:, :-1]
        return batch


class CausalRows:
    """Windows of (input, target) pairs to packed causal-LM rows.

    Attributes: as `SpanCorruptionRows`.
    """

    with_eos = True

    def __init__(self, spec: Data, *, eos_id: int):
        self._eos_id = eos_id
        self.window = self.target_length = spec.input_length
        names = ("tokens", "targets", "positions", "segments", "weights")
        self.shapes = dict.fromkeys(names, (spec.input_length,))

    def build(self, windows: Sequence[tuple[DocumentStream, int, int, Any]]) -> Batch:
        """A batch from (stream, start, count, unused) of each row, equal in count."""
        rows = [
            packing.causal_window(stream, start, count, self._eos_id)
            for stream, start, count, _ in windows
        ]
        inputs, targets, starts = (np.stack(part) for part in zip(*rows, strict=True))
        segments, positions = packing.segments_and_positions(starts)
        batch = {name: np.zeros((len(rows), *s), np.int32) for name, s in self.shapes.items()}
        count = inputs.shape[1]
        for name, value in {
            "tokens": inputs, "targets": targets, "positions": positions, "segments": segments,
            "weights": 1,
        }.items():  # fmt: skip
            batch[name][:, :count] = value
        return batch


Rows = SpanCorruptionRows | CausalRows


def span_lengths(spec: Data) -> span_corruption.Lengths:
    """Raw tokens, noise tokens and spans of an example.

    Raises:
        DataError: when `target_length` is given and too short, or the spans need more sentinels
            than `num_sentinels`.
    """
    size = span_corruption.fit(spec.input_length, spec.noise_density, spec.mean_span_length)
    if spec.target_length and spec.target_length < size.targets:
        raise DataError(
            f"data.target_length={spec.target_length} cuts targets off: {size.raw} raw tokens in "
            f"{spec.input_length} inputs have {size.targets} targets; set data.target_length to 0 "
            f"(computed) or to at least {size.targets}."
        )
    if spec.num_sentinels < size.spans:
        raise DataError(
            f"data.num_sentinels={spec.num_sentinels} is too few: an example of "
            f"{spec.input_length} inputs has {size.spans} spans, each with its own sentinel; set "
            f"data.num_sentinels to at least {size.spans}, or shorten data.input_length."
        )
    return size


class TrainBatches:
    """Local training batches by step; a random-access source for Grain.

    Args:
        streams: one for each logical shard.
        rows: makes arrays of windows.
        seed: of order and noise.
        batch_size: B, of the global batch.
        process_index, process_count: whose rows.
        name: for `repr`, by which Grain tells whether a saved state belongs to this source.

    Raises:
        DataError: when the processes divide the batch or the shards unevenly.
    """

    def __init__(
        self, streams: Sequence[DocumentStream], rows: Rows, *, seed: int, batch_size: int,
        process_index: int = 0, process_count: int = 1, name: str = "",
    ):  # fmt: skip
        if batch_size < 1:
            raise DataError(f"batch_size must be ≥ 1, got {batch_size}.")
        if not 0 <= process_index < process_count:
            raise DataError(
                f"process_index={process_index} is not among process_count={process_count}."
            )
        for label, whole in (
            ("batch_size", batch_size),
            ("data.logical_shards", len(streams)),
        ):
            if whole % process_count:
                raise DataError(
                    f"{process_count} processes do not divide {label}={whole}; choose a multiple "
                    f"of {process_count}, such as {-(-whole // process_count) * process_count}."
                )
        self._streams, self._rows, self._seed = streams, rows, seed
        self._blocks = math.gcd(batch_size, len(streams))
        self._rows_per_block = batch_size // self._blocks
        self._shards_per_block = len(streams) // self._blocks
        local = batch_size // process_count
        self._local_rows = range(process_index * local, (process_index + 1) * local)
        self._name = (
            f"TrainBatches({name}, seed={seed}, batch_size={batch_size}, "
            f"rows={self._local_rows.start}:{self._local_rows.stop})"
        )

    def __repr__(self) -> str:
        return self._name

    def __len__(self) -> int:
        """More steps than a run can take: the stream does not end."""
        return 1 << 40

    def place(self, step: int, row: int) -> tuple[int, int]:
        """The shard that feeds a row of a step's global batch, and how often it fed one before."""
        block, inside = divmod(row, self._rows_per_block)
        window, shard = divmod(step * self._rows_per_block + inside, self._shards_per_block)
        return block * self._shards_per_block + shard, window

    def __getitem__(self, index: int) -> Batch:
        windows = []
        for row in self._local_rows:
            shard, window = self.place(int(index), row)
            stream, count = self._streams[shard], self._rows.window
            random = packing.generator(self._seed, packing.TRAIN_NOISE, shard, window)
            windows.append((stream, stream.window_start(window, count), count, random))
        return self._rows.build(windows)


def validation_batches(stream: DocumentStream, rows: Rows, batch_size: int) -> Iterator[Batch]:
    """Every token of a stream's first epoch once, in batches of one shape.

    The last window holds what is left and is padded; the last batch is filled up with rows of
    weight 0. Noise depends on the window's number alone.
    """
    whole, rest = divmod(stream.epoch_tokens, rows.window)
    counts = [rows.window] * whole + ([rest] if rest else [])
    for first in range(0, len(counts), batch_size):
        numbers = range(first, min(first + batch_size, len(counts)))
        # The short window, if any, has a batch part of its own: its numbers of spans differ.
        full = [n for n in numbers if counts[n] == rows.window]
        short = [n for n in numbers if counts[n] != rows.window]
        parts = [
            rows.build(
                [
                    (
                        stream,
                        n * rows.window,
                        counts[n],
                        packing.generator(0, packing.VALIDATION_NOISE, 0, n),
                    )
                    for n in group
                ]
            )
            for group in (full, short)
            if group
        ]
        padding = batch_size - len(numbers)
        parts.append({k: np.zeros((padding, *s), np.int32) for k, s in rows.shapes.items()})
        yield {name: np.concatenate([part[name] for part in parts]) for name in rows.shapes}

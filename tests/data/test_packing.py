import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.data.packing import DocumentStream, causal_window, segments_and_positions
from glu_lab.data.tokens import TokenizedDocuments

EOS = 1
DOCUMENTS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def documents(lengths):
    """Documents of different tokens, each ended by EOS; token = 100 · document + place + 10."""
    rows = [[100 * d + place + 10 for place in range(n)] for d, n in enumerate(lengths)]
    flat = [token for row in rows for token in (*row, EOS)]
    offsets = np.cumsum([0, *(n + 1 for n in lengths[:-1])])
    return rows, TokenizedDocuments(np.array(flat, np.uint16), offsets, np.array(lengths))


def stream_of(tokenized, **kwargs):
    members = np.arange(len(tokenized.lengths))
    return DocumentStream(tokenized, members, **{"with_eos": True, **kwargs})


@given(DOCUMENTS, st.integers(0, 60), st.integers(1, 40), st.booleans())
def test_read_is_a_slice_of_the_documents_in_a_row(lengths, start, count, with_eos):
    rows, tokenized = documents(lengths)
    flat = [token for row in rows for token in (*row, *[EOS] * with_eos)]
    if not flat:
        return
    tokens, starts = stream_of(tokenized, with_eos=with_eos).read(start, count)
    endless = flat * (2 + (start + count) // len(flat))
    assert tokens.tolist() == endless[start : start + count]
    firsts = {row[0] if row else None for row in rows}
    if not with_eos:
        assert starts.tolist() == [token in firsts for token in tokens.tolist()]


@given(DOCUMENTS, st.integers(0, 5))
def test_an_epoch_holds_every_document_once_in_its_own_order(lengths, epoch):
    rows, tokenized = documents(lengths)
    stream = stream_of(tokenized, seed=3)
    tokens, starts = stream.read(epoch * stream.epoch_tokens, stream.epoch_tokens)
    pieces = np.split(tokens, np.flatnonzero(starts)[1:])
    assert sorted(piece.tolist() for piece in pieces) == sorted([*row, EOS] for row in rows)


def test_epochs_shards_and_seeds_are_shuffled_differently():
    _, tokenized = documents([5] * 40)

    def read(seed, shard, epoch):
        stream = stream_of(tokenized, seed=seed, shard=shard)
        return stream.read(epoch * stream.epoch_tokens, stream.epoch_tokens)[0].tolist()

    orders = [read(0, 0, 0), read(0, 0, 1), read(0, 1, 0), read(1, 0, 0)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert read(0, 0, 1) == orders[1]


@given(DOCUMENTS, st.integers(1, 7), st.integers(0, 9))
def test_shuffled_windows_cover_the_stream_once(lengths, width, seed):
    _, tokenized = documents(lengths)
    stream = stream_of(tokenized, seed=seed)
    count = 3 * max(1, stream.epoch_tokens // width)
    starts = [stream.window_start(number, width) for number in range(count)]
    assert sorted(starts) == [number * width for number in range(count)]


@given(DOCUMENTS, st.integers(1, 12))
def test_each_documents_pairs_start_with_eos_and_end_with_it(lengths, width):
    rows, tokenized = documents(lengths)
    stream = stream_of(tokenized)
    pairs = []
    for start in range(0, stream.epoch_tokens, width):
        count = min(width, stream.epoch_tokens - start)
        inputs, targets, _ = causal_window(stream, start, count, EOS)
        pairs += zip(inputs.tolist(), targets.tolist(), strict=True)
    assert pairs == [pair for row in rows for pair in zip([EOS, *row], [*row, EOS], strict=True)]


def test_segments_and_positions_of_a_row():
    starts = np.array([[0, 0, 1, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]], bool)
    segments, positions = segments_and_positions(starts)
    assert segments.tolist() == [[1, 1, 2, 2, 2, 3, 4, 4], [1] * 8]
    assert positions.tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], list(range(8))]


@pytest.mark.parametrize("lengths", [[3], [1, 2]])
def test_a_shard_shorter_than_a_window_repeats(lengths):
    _, tokenized = documents(lengths)
    tokens, _ = stream_of(tokenized, seed=0).read(1000, 50)
    assert len(tokens) == 50 and (tokens == EOS).sum() >= 10

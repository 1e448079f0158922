import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.data import span_corruption as sc
from glu_lab.errors import DataError

EOS, FIRST_SENTINEL = 1, 32_099


def masks(size, batch, seed=0):
    uniform = np.random.default_rng(seed).random((batch, sc.draws_per_example(size)))
    return sc.noise_mask(size, uniform)


def runs(mask):
    """Number of runs of True in one row."""
    return sum(1 for i, m in enumerate(mask) if m and (i == 0 or not mask[i - 1]))


def by_loop(raw, mask):
    """Span corruption of one row, token by token."""
    inputs, targets, sentinel = [], [], FIRST_SENTINEL + 1
    for place, (token, noise) in enumerate(zip(raw, mask, strict=True)):
        if not noise:
            inputs.append(token)
            continue
        if place == 0 or not mask[place - 1]:
            sentinel -= 1
            inputs.append(sentinel)
            targets.append(sentinel)
        targets.append(token)
    return [*inputs, EOS], [*targets, EOS]


def test_t5_lengths():
    # t5.data.preprocessors.random_spans_helper: 512 inputs ← 568 raw tokens → 114 targets.
    size = sc.fit(512, 0.15, 3.0)
    assert (size.raw, size.inputs, size.targets, size.noise, size.spans) == (568, 512, 114, 85, 28)


@given(
    st.integers(3, 600),
    st.floats(0.02, 0.6),
    st.floats(1.0, 8.0),
)
def test_fit_is_the_largest(length, density, span):
    try:
        size = sc.fit(length, density, span)
    except DataError:
        return
    assert size.inputs <= length < sc.lengths(size.raw + 1, density, span).inputs
    # A shorter last window never needs more room than a whole one.
    for raw in range(1, size.raw):
        part = sc.lengths(raw, density, span)
        assert part.inputs <= size.inputs and part.targets <= size.targets


@given(st.integers(1, 300), st.floats(0.02, 0.9), st.floats(1.0, 8.0), st.integers(0, 99))
def test_noise_tokens_and_spans_are_exact(raw, density, span, seed):
    size = sc.lengths(raw, density, span)
    mask = masks(size, 5, seed)
    assert mask.shape == (5, raw)
    assert (mask.sum(axis=1) == size.noise).all()
    assert [runs(row) for row in mask] == [size.spans] * 5


@given(st.integers(2, 200), st.floats(0.05, 0.5), st.floats(1.0, 5.0), st.integers(0, 99))
def test_inputs_and_targets_are_those_of_a_token_by_token_loop(raw, density, span, seed):
    size = sc.lengths(raw, density, span)
    mask = masks(size, 3, seed)
    tokens = np.random.default_rng(seed).integers(2, 32_000, (3, raw))
    inputs, targets = sc.corrupt(tokens, mask, eos_id=EOS, first_sentinel=FIRST_SENTINEL)
    assert inputs.shape == (3, size.inputs) and targets.shape == (3, size.targets)
    assert inputs.dtype == targets.dtype == np.int32
    for row in range(3):
        want = by_loop(tokens[row].tolist(), mask[row])
        assert (inputs[row].tolist(), targets[row].tolist()) == want


@given(st.integers(2, 200), st.floats(0.05, 0.5), st.floats(1.0, 5.0), st.integers(0, 99))
def test_text_is_rebuilt_from_inputs_and_targets(raw, density, span, seed):
    size = sc.lengths(raw, density, span)
    tokens = np.arange(100, 100 + raw)[None]  # all different: each must come back exactly once
    inputs, targets = sc.corrupt(
        tokens, masks(size, 1, seed), eos_id=EOS, first_sentinel=FIRST_SENTINEL
    )
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in targets[0, :-1].tolist():
        if token > FIRST_SENTINEL - size.spans:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    rebuilt = [t for token in inputs[0, :-1].tolist() for t in spans.pop(token, [token])]
    assert rebuilt == tokens[0].tolist() and not spans


def test_twenty_tokens_do_not_always_end_in_noise_nor_start_without():
    mask = masks(sc.lengths(20, 0.15, 3.0), 2000)
    # One span of 3 among 18 gaps: first and last token are noise with probability 1/18 each.
    for edge in (mask[:, 0], mask[:, -1]):
        assert 0.035 < edge.mean() < 0.08


def test_every_placement_is_equally_likely():
    # 6 tokens, 2 noise in 2 spans: 5 gaps choose 2 = 10 placements.
    size = sc.Lengths(raw=6, noise=2, spans=2)
    _, counts = np.unique(masks(size, 20_000), axis=0, return_counts=True)
    assert len(counts) == 10
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)  # five standard deviations


def test_too_short_and_touching_spans_are_refused():
    with pytest.raises(DataError, match="must be ≥ 3"):
        sc.fit(2, 0.15, 3.0)
    with pytest.raises(DataError, match="would touch"):
        sc.fit(64, 0.9, 1.0)

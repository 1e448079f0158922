"""Temperature, top-k and nucleus sampling against float64 NumPy and against transformers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glu_lab.errors import SpecError
from glu_lab.models.sampling import Sampling, draw, truncate

V = 13
truncated = jax.jit(truncate)
drawn = jax.jit(draw)


def kept(logits, top_k=None, top_p=None):
    """Which ids may still be drawn."""
    how = {}
    if top_k is not None:
        how["top_k"] = jnp.int32(top_k)
    if top_p is not None:
        how["top_p"] = jnp.float32(top_p)
    out = np.asarray(truncated(jnp.asarray(logits, jnp.float32), **how))
    finite = np.isfinite(out)
    np.testing.assert_array_equal(out[finite], np.asarray(logits, np.float32)[finite])
    assert (out[~finite] == -np.inf).all()
    return finite


def wanted(row, top_k, top_p):
    """One row in float64, by walking down the ids from the likeliest."""
    order = sorted(range(len(row)), key=lambda i: -row[i])[:top_k]
    p = np.exp(np.asarray([row[i] for i in order]) - row[order[0]])
    p /= p.sum()
    total, out = 0.0, set()
    for i, share in zip(order, p, strict=True):
        if total < top_p:
            out.add(i)
        total += share
    return out


@settings(max_examples=60)
@given(st.data())
def test_what_is_left_is_the_likeliest_ids(data):
    # Quarters: no two probabilities so near that float32 could order them otherwise.
    numbers = data.draw(st.lists(st.permutations(range(V)), min_size=2, max_size=2))
    logits = np.asarray(numbers) / 4
    top_k = data.draw(st.integers(1, V + 2))
    top_p = data.draw(st.integers(1, 99)) / 100 + 0.003
    for row, mask in zip(logits, kept(logits, top_k, top_p), strict=True):
        assert set(np.flatnonzero(mask)) == wanted(row.tolist(), top_k, top_p)


def test_the_likeliest_is_always_left_and_ties_are_kept_together():
    logits = np.asarray([[1.0, 3.0, 3.0, 0.0], [9.0, 1.0, 1.0, 1.0]])
    assert kept(logits, top_k=1).tolist() == [[False, True, True, False], [True, *[False] * 3]]
    assert kept(logits, top_p=1e-9).tolist() == [[False, True, True, False], [True, *[False] * 3]]
    assert kept(logits, top_k=2)[1].all()
    assert kept(logits, top_k=100).all()


def test_all_of_the_probability_leaves_every_id():
    """Also ids so unlikely that a float32 sum is 1 before them."""
    logits = np.asarray([[30.0, *[0.0] * (V - 1)]])
    assert not kept(logits, top_p=0.9999).all()
    assert "top_p" not in Sampling(top_p=1.0).arrays()
    assert kept(logits).all()


@functools.cache
def frequencies(**fields):
    """Of 4000 draws from two rows' logits."""
    logits = jnp.asarray(np.tile(LOGITS, (2000, 1)), jnp.float32)
    got = drawn(logits, jax.random.key(1), **Sampling(**fields).arrays())
    return np.stack([np.bincount(got[i::2], minlength=V) / 2000 for i in range(2)])


LOGITS = np.random.default_rng(0).normal(size=(2, V)) * 2


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 2.5}, {"top_k": 4}, {"temperature": 2.5, "top_k": 6, "top_p": 0.8}],
    ids=str,
)
def test_draws_follow_the_truncated_softmax(fields):
    scaled = LOGITS / fields.get("temperature", 1.0)
    for row, seen in zip(scaled, frequencies(**fields), strict=True):
        left = wanted(row.tolist(), fields.get("top_k", V), fields.get("top_p", 1.0))
        p = np.where([i in left for i in range(V)], np.exp(row - row.max()), 0.0)
        p /= p.sum()
        assert (seen[p == 0] == 0).all()
        # Four standard errors of a frequency.
        assert np.all(abs(seen - p) <= 4 * np.sqrt(p * (1 - p) / 2000))


def test_temperature_0_takes_the_likeliest():
    assert (frequencies(temperature=0.0)[range(2), LOGITS.argmax(axis=1)] == 1).all()


@pytest.mark.parametrize(("top_k", "top_p"), [(5, None), (None, 0.7), (6, 0.6), (1, 0.5)])
def test_what_is_left_is_what_transformers_leaves(top_k, top_p):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = np.random.default_rng(2).normal(size=(50, 40)).astype(np.float32) * 3
    want = torch.tensor(logits)
    if top_k:
        want = process.TopKLogitsWarper(top_k)(None, want)
    if top_p:
        want = process.TopPLogitsWarper(top_p)(None, want)
    np.testing.assert_array_equal(kept(logits, top_k, top_p), np.isfinite(want.numpy()))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -0.1}, "temperature must be ≥ 0 and finite, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"top_k": 0}, "top_k must be a whole number ≥ 1, got 0"),
        ({"top_k": 2.5}, "top_k must be a whole number ≥ 1, got 2.5"),
        ({"top_p": 0.0}, "top_p must be over 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be over 0 and at most 1, got 1.5"),
        ({"top_p": float("nan")}, "top_p must be over 0"),
    ],
)
def test_numbers_out_of_range_are_refused(fields, said):
    with pytest.raises(SpecError, match=said):
        Sampling(**fields)

"""Generation from a cache is generation without one: logits, tokens, ends; and what is refused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import DataError
from glu_lab.layers.params import map_table
from glu_lab.models import Transformer, decoding, parameters
from glu_lab.models.generate import Generator
from glu_lab.models.sampling import Sampling
from glu_lab.models.uncached import generate
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Attention, Positions
from glu_lab.spec.numerics import Numerics
from tests.models import small

RELATIVE = Positions(kind="relative", num_buckets=8, max_distance=12)
MODELS = {
    "rope": small.decoder(
        attention=Attention(
            num_heads=4, num_kv_heads=2, head_dim=4, qk_norm=True, qkv_bias=True, output_bias=True
        )
    ),
    "t5": small.t5(),
    "relative": small.decoder(positions=RELATIVE),
    "sinusoidal": small.decoder(positions=Positions(kind="sinusoidal"), tie_embeddings=False),
    "none": small.decoder(positions=Positions(kind="none")),
    "original": small.original(),
}
QUICK = ("rope", "t5")
KINDS = pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in MODELS]
)

PROMPTS = [[5, 9, 2], [7], [3, 3, 8, 1]]
SOURCES = [[4, 5, 6, 7, 2], [9, 11], [8, 2, 20]]


def sources(model):
    return SOURCES if model.kind == "encoder_decoder" else None


@functools.cache
def weights(kind, dtype):
    """Arbitrary weights: norms near 1, the rest small."""
    rng = np.random.default_rng(0)

    def draw(_, parameter):
        offset = float(parameter.init.distribution == "ones")
        return (offset + 0.3 * rng.normal(size=parameter.shape)).astype(dtype)

    return map_table(draw, parameters(MODELS[kind]))


def right_padded(rows):
    width = max(map(len, rows))
    return jnp.asarray([list(row) + [0] * (width - len(row)) for row in rows], jnp.int32)


def full_logits(transformer, params, rows):
    """Logits of whole rows by the model as it is trained: no cache, no padding on the left."""
    tokens = right_padded(rows)
    if transformer.model.kind == "decoder":
        where = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
        batch = {"tokens": tokens, "segments": jnp.ones_like(tokens), "positions": where}
    else:
        source = right_padded(SOURCES)
        held = np.asarray([[i < len(s) for i in range(source.shape[1])] for s in SOURCES])
        batch = {
            "encoder_tokens": source,
            "encoder_segments": jnp.asarray(held, jnp.int32),
            "decoder_tokens": tokens,
        }
    return np.asarray(
        jax.jit(lambda p: transformer.apply({"params": p}, batch))(params), np.float64
    )


def worst_logit(kind, numerics, execution=Execution()):
    """Largest difference of any logit, over prompts and five given tokens, beside the largest."""
    model = MODELS[kind]
    transformer = Transformer(model, numerics, execution)
    params = jax.tree.map(jnp.asarray, weights(kind, numerics.parameter_dtype))
    new = np.random.default_rng(1).integers(0, small.V, (len(PROMPTS), 5)).astype(np.int32)
    want = full_logits(
        transformer, params, [p + n.tolist() for p, n in zip(PROMPTS, new, strict=True)]
    )
    generator = Generator(transformer)
    logits, cache = generator.prefill(params, PROMPTS, source=sources(model), slots=9)
    for kept in jax.tree.leaves(cache.layers):
        assert kept.dtype == numerics.compute_dtype
    step = jax.jit(functools.partial(decoding.step, transformer))
    errors = []
    for i in range(6):
        expected = np.stack([row[len(p) - 1 + i] for row, p in zip(want, PROMPTS, strict=True)])
        errors.append(np.abs(np.asarray(logits, np.float64) - expected).max())
        if i < 5:
            logits, cache = step(params, jnp.asarray(new[:, i]), cache)
    return max(errors) / np.abs(want).max()


@KINDS
def test_logits_of_every_step_are_those_of_the_whole_rows(kind):
    with jax.enable_x64(True):
        # Sums of some dozens of terms in another order: a few ulp of 2e-16.
        assert worst_logit(kind, small.F64) < 1e-13


@pytest.mark.parametrize(
    ("compute", "tolerance"),
    # A few roundings of operands and activations: 2⁻²⁴ and 2⁻⁹ each.
    [("float32", 2e-6), pytest.param("bfloat16", 2e-2, marks=pytest.mark.slow)],
)
def test_narrow_formats_differ_by_their_rounding(compute, tolerance):
    assert worst_logit("rope", Numerics(compute_dtype=compute)) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_layers_written_out_and_recomputed_ones_are_cached_alike(kind):
    with jax.enable_x64(True):
        execution = Execution(scan_layers=False, remat="block")
        assert worst_logit(kind, small.F64, execution) < 1e-13


@functools.cache
def _next_logits(kind, padding):
    """For `uncached.generate`: the model over a buffer whose rows are padded on the left."""
    model = MODELS[kind]
    transformer = Transformer(model, small.F64)

    def next_logits(given, filled):
        params, source = given
        if model.kind == "encoder_decoder":
            batch = {"encoder_tokens": source, "encoder_segments": jnp.ones_like(source)}
            batch["decoder_tokens"] = filled
        else:
            where = np.arange(filled.shape[1], dtype=np.int32) - np.asarray(padding)[:, None]
            where = where.astype(np.int32)
            batch = {
                "tokens": filled,
                "segments": jnp.asarray(where >= 0, jnp.int32),
                "positions": jnp.asarray(np.maximum(where, 0)),
            }
        return transformer.apply({"params": params}, batch)

    return next_logits


def both(kind, *, tokens=8, sampling=Sampling(temperature=0), seed=0, stop=-1, limit=small.V):
    """Rows of new tokens without and with a cache, from the same arguments."""
    model = MODELS[kind]
    params = jax.tree.map(jnp.asarray, weights(kind, "float64"))
    span_filling = model.kind == "encoder_decoder"
    prompts = [[0], [0]] if span_filling else PROMPTS
    source = [SOURCES[0], SOURCES[0][::-1]] if span_filling else None
    longest = max(map(len, prompts))
    padding = tuple(longest - len(p) for p in prompts)
    buffer = [[0] * n + p + [0] * tokens for n, p in zip(padding, prompts, strict=True)]
    filled = generate(
        _next_logits(kind, padding),
        (params, source and jnp.asarray(source, jnp.int32)),
        jnp.asarray(buffer, jnp.int32),
        jnp.int32(longest),
        jax.random.key(seed),
        sampling.arrays(),
        stop=stop,
        limit=limit,
    )
    cached = Generator(Transformer(model, small.F64)).generate(
        params,
        prompts,
        source=source,
        tokens=tokens,
        sampling=sampling,
        seed=seed,
        stop=stop if stop >= 0 else (),
        limit=limit,
    )
    return np.asarray(filled)[:, longest:].tolist(), cached


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(temperature=1.7),
        Sampling(temperature=1.7, top_k=5, top_p=0.8),
    ],
    ids=["greedy", "sampled", "truncated"],
)
def test_tokens_are_those_without_a_cache(kind, sampling):
    """Also for prompts of different lengths: the draws of a seed stay the same."""
    with jax.enable_x64(True):
        for seed in (0, 1):
            uncached, cached = both(kind, sampling=sampling, seed=seed, limit=23)
            assert cached == uncached
            assert {len(row) for row in cached} == {8} and max(map(max, cached)) < 23


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_rows_end_with_their_stop_token(kind):
    with jax.enable_x64(True):
        free, _ = both(kind, sampling=Sampling(temperature=1.7))
        stop = free[0][3]
        uncached, cached = both(kind, sampling=Sampling(temperature=1.7), stop=stop)
    assert len(cached[0]) <= 4
    for got, row in zip(cached, uncached, strict=True):
        assert got == row[: len(got)]
        assert stop not in got[:-1]
        assert got[-1] == stop or len(got) == 8


def rope_generator(**fields):
    model = dataclasses.replace(MODELS["rope"], **fields)
    params = jax.tree.map(jnp.asarray, weights("rope", "float32"))
    return Generator(Transformer(model)), params


@pytest.mark.slow
def test_any_of_several_stop_tokens_ends_a_row():
    generator, params = rope_generator()
    how: dict[str, Any] = dict(tokens=8, sampling=Sampling(temperature=3.0), seed=2)
    free = generator.generate(params, PROMPTS, **how)
    stops = {free[0][2], free[1][4]}
    for got, row in zip(
        generator.generate(params, PROMPTS, stop=[*stops], **how), free, strict=True
    ):
        end = next((i for i, token in enumerate(row) if token in stops), len(row) - 1)
        assert got == row[: end + 1]


@pytest.mark.slow
def test_the_loop_ends_with_the_last_row(monkeypatch):
    generator, params = rope_generator()
    how: dict[str, Any] = dict(tokens=8, sampling=Sampling(temperature=3.0), seed=2)
    free = generator.generate(params, PROMPTS, **how)
    stops = [free[0][1], free[1][4], free[2][3]]
    steps, step = [], decoding.step

    def counted(*arguments):
        jax.debug.callback(lambda: steps.append(None))
        return step(*arguments)

    monkeypatch.setattr(decoding, "step", counted)
    # The same function under a key of its own, so that it is compiled with the count.
    generator, params = rope_generator(max_length=31)
    rows = generator.generate(params, PROMPTS, stop=stops, **how)
    jax.effects_barrier()
    assert len({len(row) for row in rows}) > 1
    assert len(steps) == max(map(len, rows)) - 1 < 7


def compiled():
    """How many programs there are that read a prompt, and that write."""
    programs: list[Any] = [decoding.prefill, decoding.decode]
    return [program._cache_size() for program in programs]


def test_one_program_reads_and_one_writes_whatever_they_are_asked():
    """None anew for another prompt, seed, number of tokens, stop or temperature."""
    # A model of its own: nothing of it has been compiled before.
    generator, params = rope_generator(embedding_scale=1.25)
    reading, writing = compiled()
    for i, tokens in enumerate((1, 3, 12, 8)):
        prompts = [[5 + i, 9, 2], [7], [3, 8]]
        logits, cache = generator.prefill(params, prompts, slots=16)
        for seed in (0, 5):
            sampling = Sampling(temperature=float(i))
            rows = generator.decode(
                params, logits, cache, tokens=tokens, sampling=sampling, seed=seed, stop=i
            )
            assert len(rows) == 3
    assert compiled() == [reading + 1, writing + 1]
    # Longer prompts are another shape for the first one alone.
    logits, cache = generator.prefill(params, [[1] * 5, [2], [3]], slots=16)
    generator.decode(params, logits, cache, tokens=2, stop=0)
    assert compiled() == [reading + 2, writing + 1]


def test_a_cache_can_be_gone_on_from_more_than_once():
    generator, params = rope_generator()
    logits, cache = generator.prefill(params, PROMPTS, slots=12)
    one = generator.decode(params, logits, cache, tokens=8)
    assert generator.decode(params, logits, cache, tokens=8) == one
    assert generator.decode(params, logits, cache, tokens=3) == [row[:3] for row in one]


def test_the_clock_counts_the_tokens_that_were_read_and_written():
    generator, params = rope_generator()
    rows, timing = generator.measure(params, PROMPTS, tokens=8)
    assert rows == generator.generate(params, PROMPTS, tokens=8)
    assert timing.prefill_tokens == 8 and timing.decode_tokens == 3 * 7
    assert timing.prefill_rate == 8 / timing.prefill_seconds > 0
    assert timing.decode_rate == 21 / timing.decode_seconds > 0
    _, short = generator.measure(params, PROMPTS, tokens=1)
    assert short.decode_tokens == 0 and short.decode_rate is None


@pytest.mark.parametrize(
    ("prompts", "how", "said"),
    [
        ([], {}, "no prompt"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1] * 33], {}, "prompt 0 has 33 tokens, over model.max_length=32"),
        ([[1] * 30], {"tokens": 3}, "30 tokens and 3 new ones are over model.max_length=32"),
        ([1, 2], {}, "prompt 0 is no list of token ids: 0 dimensions"),
        ([[1.5]], {}, "prompt 0 is no list of token ids: 1 dimensions of float64"),
        ([[1], [4, small.V]], {}, f"prompt 1 holds id {small.V}; the model has ids from 0 to 28"),
        ([[-1]], {}, "prompt 0 holds id -1"),
        ([[1]], {"tokens": 0}, "tokens must be ≥ 1, got 0"),
        ([[1]], {"limit": 0}, "limit must be from 1 to model.vocab_size=29, got 0"),
        ([[1]], {"limit": 30}, "limit must be from 1 to model.vocab_size=29, got 30"),
        ([[1]], {"stop": [3, 29]}, "stop holds id 29; the model has ids from 0 to 28"),
        ([[1]], {"source": [[1]]}, "has no encoder"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_compute(prompts, how, said, monkeypatch):
    monkeypatch.setattr(decoding, "prefill", None)
    generator = Generator(Transformer(MODELS["rope"]))
    with pytest.raises(DataError, match=said):
        generator.generate({}, prompts, **({"tokens": 2} | how))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "needs a source"),
        ([[1]], "2 prompts and 1 sources"),
        ([[1], []], "source 1 is empty"),
        ([[1], [1] * 33], "source 1 has 33 tokens"),
    ],
)
def test_an_encoder_needs_a_source_for_each_prompt(source, said, monkeypatch):
    monkeypatch.setattr(decoding, "prefill", None)
    generator = Generator(Transformer(MODELS["t5"]))
    with pytest.raises(DataError, match=said):
        generator.generate({}, [[0], [0]], source=source, tokens=2)


def test_a_cache_that_is_too_short_is_refused():
    generator, params = rope_generator()
    for slots in (3, 33):
        with pytest.raises(DataError, match=f"a cache of {slots} slots: the longest prompt has 4"):
            generator.prefill(params, PROMPTS, slots=slots)
    logits, cache = generator.prefill(params, PROMPTS, slots=6)
    with pytest.raises(DataError, match=r"6 slots, 4 of them filled: no room for 3.*slots=7"):
        generator.decode(params, logits, cache, tokens=3)

"""Continuing a sequence without a cache: what is drawn, what is never drawn, where it ends.

With a cache the tokens are the same ones: `test_generate_cached.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.models import Transformer, init_params
from glu_lab.models.sampling import Sampling
from glu_lab.models.uncached import generate
from tests.models import small

STOP = 1


@functools.cache
def setup(kind):
    model = small.decoder(layers=1) if kind == "decoder" else small.t5(layers=1)
    transformer = Transformer(model)
    params = init_params(model, jax.random.key(3))

    def logits(given, filled):
        if kind == "decoder":
            where = jnp.broadcast_to(jnp.arange(filled.shape[1], dtype=jnp.int32), filled.shape)
            batch = {"tokens": filled, "segments": jnp.ones_like(filled), "positions": where}
        else:
            source = small.pair_batch(rows=filled.shape[0])
            batch = {
                "encoder_tokens": source["encoder_tokens"],
                "encoder_segments": source["encoder_segments"],
                "decoder_tokens": filled,
            }
        return transformer.apply({"params": given}, batch)

    return params, logits


def run(kind, prompts, length, *, temperature=0.0, seed=0, stop=STOP, limit=small.V, garbage=0):
    params, logits = setup(kind)
    prompts = np.asarray(prompts, np.int32)
    buffer = np.full((len(prompts), length), garbage, np.int32)
    buffer[:, : prompts.shape[1]] = prompts
    filled = generate(
        logits,
        params,
        jnp.asarray(buffer),
        jnp.int32(prompts.shape[1]),
        jax.random.key(seed),
        Sampling(temperature=temperature).arrays(),
        stop=stop,
        limit=limit,
    )
    return np.asarray(filled)


def argmax_loop(kind, prompt, length, stop, limit):
    """One full forward pass a token over exactly the tokens that exist so far."""
    params, logits = setup(kind)
    tokens = list(prompt)
    while len(tokens) < length:
        row = np.tile(np.asarray(tokens, np.int32), (2, 1))
        last = np.asarray(logits(params, jnp.asarray(row)))[:, -1]
        token = int(last[0, :limit].argmax())
        tokens.append(token)
        if token == stop:
            tokens += [stop] * (length - len(tokens))
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_greedy_is_the_argmax_of_full_forward_passes(kind):
    prompt = [5, 9, 2] if kind == "decoder" else [0]
    expected = argmax_loop(kind, prompt, len(prompt) + 4, stop=-1, limit=small.V)
    got = run(kind, [prompt, prompt], len(prompt) + 4, stop=-1)
    assert got[0].tolist() == expected


def test_what_lies_after_the_prompt_is_not_seen():
    one, two = (run("decoder", [[5, 9, 2]] * 2, 8, stop=-1, garbage=g) for g in (0, 17))
    assert one.tolist() == two.tolist()


def test_a_row_ends_with_the_stop_token_and_the_others_go_on():
    free = run("decoder", [[5, 9, 2], [7, 7, 3]], 9, stop=-1)
    stop = int(free[0, 4])
    got = run("decoder", [[5, 9, 2], [7, 7, 3]], 9, stop=stop)
    for row, before in zip(got, free, strict=True):
        where = np.flatnonzero(before[3:] == stop)
        end = 3 + (where[0] if len(where) else 99)
        assert row[: end + 1].tolist() == before[: end + 1].tolist()
        assert set(row[end + 1 :].tolist()) <= {stop}
    assert got[0, 4:].tolist() == [stop] * 5


def test_a_prompt_may_end_with_the_stop_token():
    """A language model's text begins after an end-of-sequence."""
    # The limit keeps the model from choosing the stop token by itself.
    got = run("decoder", [[5, 9]], 6, stop=9, limit=9)
    free = run("decoder", [[5, 9]], 6, stop=-1, limit=9)
    assert got.tolist() == free.tolist()
    assert 9 not in got[0, 2:]


def test_ids_from_the_limit_on_are_never_drawn():
    got = run("decoder", [[5, 9, 2]] * 4, 16, temperature=50.0, stop=-1, limit=6)
    assert got[:, 3:].max() < 6
    free = run("decoder", [[5, 9, 2]] * 4, 16, temperature=50.0, stop=-1)
    assert free[:, 3:].max() >= 6


def test_draws_follow_the_softmax_at_the_temperature():
    """Two thousand draws of one token."""
    params, logits = setup("decoder")
    rows, temperature = 2000, 1.7
    got = run("decoder", [[5, 9, 2]] * rows, 4, temperature=temperature, stop=-1)[:, 3]
    last = np.asarray(logits(params, jnp.asarray([[5, 9, 2]], jnp.int32)), np.float64)[0, -1]
    p = np.exp(last / temperature - np.max(last / temperature))
    p /= p.sum()
    seen = np.bincount(got, minlength=small.V) / rows
    # Four standard errors of a frequency, and a little for the ones that are near zero.
    assert np.all(abs(seen - p) < 4 * np.sqrt(p * (1 - p) / rows) + 2e-3)


def test_rows_draw_differently_and_seeds_repeat():
    draw = functools.partial(run, "decoder", [[5, 9, 2]] * 2, 16, temperature=2.0, stop=-1)
    one = draw(seed=0)
    assert one[0].tolist() != one[1].tolist()
    assert draw(seed=0).tolist() == one.tolist()
    assert draw(seed=1).tolist() != one.tolist()

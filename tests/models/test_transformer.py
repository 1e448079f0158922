"""What holds for every model: schedules agree, attention sees only what it may, names are kept."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.layers.params import leaves, map_table
from glu_lab.models import Transformer, init_params, parameters
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Attention
from glu_lab.spec.numerics import Numerics
from tests.models import small

MODELS = {
    "decoder": (small.decoder, small.lm_batch),
    "t5": (small.t5, small.pair_batch),
    "original": (small.original, small.pair_batch),
}
KINDS = pytest.mark.parametrize("kind", MODELS)


def initial(model):
    """Arbitrary weights of the model's shapes: norms near 1, the rest small."""
    rng = np.random.default_rng(0)

    def draw(_, parameter):
        offset = float(parameter.init.distribution == "ones")
        return jnp.asarray(offset + 0.3 * rng.normal(size=parameter.shape), jnp.float32)

    return map_table(draw, parameters(model))


def build(kind, **fields):
    make, batch = MODELS[kind]
    model = make(**fields)
    return model, initial(model), batch()


def run(transformer, params, batch, **how) -> Any:
    return transformer.apply({"params": params}, batch, **how)


def dropout_key(seed):
    """A key of the generator that compiles fastest; keys and masks are named alike with any."""
    return jax.random.key(seed, impl="rbg")


def with_dropout(model):
    return dataclasses.replace(
        model,
        residual_dropout=0.1,
        embedding_dropout=0.1,
        final_dropout=0.1,
        attention=dataclasses.replace(model.attention, dropout=0.1),
        ffn=model.ffn.replace(hidden_dropout=0.2),
    )


@pytest.mark.slow
@KINDS
def test_scan_unroll_and_remat_are_one_function_and_one_gradient(kind):
    """Also under dropout: a mask is named by its layer, not by the schedule."""
    model, params, batch = build(kind, layers=2 if kind == "decoder" else 1)
    model = with_dropout(model)
    key = dropout_key(3)

    def loss_and_gradient(execution):
        transformer = Transformer(model, execution=execution)

        def loss(params):
            logits = transformer.apply({"params": params}, batch, dropout_key=key)
            return jnp.mean(jnp.sin(logits))

        return jax.jit(jax.value_and_grad(loss))(params)

    base_loss, base_gradient = loss_and_gradient(Execution())
    for execution in (
        Execution(scan_layers=False),
        Execution(remat="block"),
        Execution(remat="dots", scan_layers=False),
    ):
        loss, gradient = loss_and_gradient(execution)
        # float32 sums in another order. A different mask moves the loss by 1e-2.
        assert float(loss) == pytest.approx(float(base_loss), abs=2e-6)
        for one, other in zip(
            jax.tree.leaves(gradient), jax.tree.leaves(base_gradient), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("kind", ["decoder", pytest.param("t5", marks=pytest.mark.slow)])
def test_dropout_follows_its_key_and_none_is_inference(kind):
    model, params, batch = build(kind)
    transformer = Transformer(with_dropout(model))
    draw = jax.jit(lambda key: transformer.apply({"params": params}, batch, dropout_key=key))
    one = draw(dropout_key(1))
    np.testing.assert_array_equal(one, draw(dropout_key(1)))
    assert not np.array_equal(one, draw(dropout_key(2)))
    np.testing.assert_array_equal(
        transformer.apply({"params": params}, batch),
        Transformer(model).apply({"params": params}, batch),
    )


@KINDS
def test_no_target_position_sees_a_later_one(kind):
    model, params, batch = build(kind)
    name = "tokens" if kind == "decoder" else "decoder_tokens"
    apply = jax.jit(lambda b: Transformer(model).apply({"params": params}, b))
    before = apply(batch)
    changed = {**batch, name: batch[name].at[:, 4].set((batch[name][:, 4] + 1) % small.V)}
    after = apply(changed)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (np.abs(before - after)[:, 4:].max(axis=(0, 2)) > 0).all()


def test_packed_sequences_are_as_if_alone():
    model, params, _ = build("decoder")
    apply = jax.jit(lambda b: Transformer(model).apply({"params": params}, b))
    first, second = small.lm_batch(1, 4, seed=1), small.lm_batch(1, 5, seed=2)

    def join(a, b, name):
        return jnp.concatenate([a[name], b[name], jnp.zeros((1, 2), jnp.int32)], axis=1)

    packed = {name: join(first, second, name) for name in ("tokens", "positions")}
    packed["segments"] = jnp.asarray([[1] * 4 + [2] * 5 + [0] * 2], jnp.int32)
    logits = apply(packed)
    # Other row lengths are other programs: float32 rounding.
    np.testing.assert_allclose(logits[:, :4], apply(first), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logits[:, 4:9], apply(second), rtol=1e-4, atol=1e-5)
    assert bool(jnp.isfinite(logits).all())


@pytest.mark.parametrize("kind", ["t5", "original"])
def test_padding_of_the_source_is_never_seen(kind):
    model, params, batch = build(kind)
    apply = jax.jit(lambda b: Transformer(model).apply({"params": params}, b))
    batch["encoder_segments"] = batch["encoder_segments"].at[:, 8:].set(0)
    tokens = batch["encoder_tokens"]
    other = {**batch, "encoder_tokens": tokens.at[:, 8:].set((tokens[:, 8:] + 1) % small.V)}
    np.testing.assert_array_equal(apply(batch), apply(other))
    seen = {**batch, "encoder_tokens": tokens.at[:, 7].set((tokens[:, 7] + 1) % small.V)}
    assert not np.array_equal(apply(batch), apply(seen))


@KINDS
def test_linen_declares_what_the_table_says(kind):
    make, batch = MODELS[kind]
    model, batch = make(), batch()
    # Linen's own walk through the modules finds the names and shapes of the table.
    linen = jax.eval_shape(lambda: nn.Module.init(Transformer(model), jax.random.key(0), batch))
    found = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(linen["params"])
    }
    assert found == {path: p.shape for path, p in leaves(parameters(model))}


def test_linens_init_gives_the_weights_of_init_params():
    model = small.decoder(layers=1)
    params = init_params(model, jax.random.key(5))
    for rngs in (jax.random.key(5), {"params": jax.random.key(5)}):
        own = Transformer(model).init(rngs, small.lm_batch())
        jax.tree.map(np.testing.assert_array_equal, own, {"params": params})


@KINDS
def test_ffn_taps_are_sown_for_every_layer_when_asked(kind):
    model, params, batch = build(kind)
    _, state = run(Transformer(model), params, batch, mutable=["intermediates"])
    stacks = {"decoder": model.num_layers} | (
        {"encoder": model.num_encoder_layers} if model.num_encoder_layers else {}
    )
    assert state["intermediates"].keys() == stacks.keys()
    for name, layers in stacks.items():
        tokens = (
            batch[{"decoder": "decoder_tokens", "encoder": "encoder_tokens"}[name]]
            if kind != "decoder"
            else batch["tokens"]
        )
        sown = state["intermediates"][name]["layers"]["ffn"]
        assert set(sown) == set(ffn.TAPS)
        N = model.ffn.num_branches
        assert sown["product"].shape == (layers, *tokens.shape, small.F)
        assert sown["branches"].shape == (layers, *tokens.shape, N, small.F)
    quiet = Transformer(model).apply({"params": params}, batch)
    assert isinstance(quiet, jax.Array)


def test_an_observer_reduces_what_is_sown():
    model, params, batch = build("decoder")
    transformer = Transformer(model, observe=lambda name, value: jnp.mean(jnp.abs(value)))
    _, state = run(transformer, params, batch, mutable=["intermediates"])
    sown = state["intermediates"]["decoder"]["layers"]["ffn"]
    assert {name: value.shape for name, value in sown.items()} == dict.fromkeys(ffn.TAPS, (2,))


@KINDS
def test_bfloat16_compute_runs_and_stays_near_float32(kind):
    model, params, batch = build(kind)
    exact = run(Transformer(model), params, batch)
    numerics = Numerics(compute_dtype="bfloat16")
    got = run(Transformer(model, numerics=numerics), params, batch)
    assert got.dtype == jnp.float32
    assert float(jnp.abs(got - exact).max()) < 0.05 * float(jnp.abs(exact).max())


def test_a_row_longer_than_the_sinusoidal_table_is_refused():
    model, params, _ = build("original")
    with pytest.raises(SpecError, match="33 positions.*max_length=32"):
        Transformer(model).apply({"params": params}, small.pair_batch(1, 33, 4))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["swish_learned*linear", "xielu", "gpt_oss", "drelu"])
def test_every_activation_trains_inside_a_model(text):
    """The gradient is finite and reaches both projections and φ's own scalars."""
    model = small.decoder(text, attention=Attention(num_heads=2, num_kv_heads=1, head_dim=4))
    batch = small.lm_batch(1, 5)

    def loss(params):
        return jnp.sum(jnp.sin(run(Transformer(model), params, batch)))

    gradient = jax.jit(jax.grad(loss))(initial(model))
    for name, value in gradient["decoder"]["layers"]["ffn"].items():
        assert bool(jnp.isfinite(value).all()) and bool((value != 0).any()), name

"""Logits of T5, Llama and Qwen3 against transformers, in float64 from the same random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers.params import leaves
from glu_lab.layers.positions import relative_buckets
from glu_lab.models import Transformer, parameters
from glu_lab.spec.model import Attention, Norm, Positions
from tests.models import small

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("tests.models.hugging_face")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def logits(model, params, batch):
    shapes = {path: parameter.shape for path, parameter in leaves(parameters(model))}
    given = {
        "/".join(key.key for key in path): value.shape
        for path, value in jax.tree_util.tree_leaves_with_path(params)
    }
    assert given == shapes
    params = jax.tree.map(jnp.asarray, params)
    transformer = Transformer(model, numerics=small.F64)
    return jax.jit(lambda p, b: transformer.apply({"params": p}, b))(params, batch)


def assert_same(got, want):
    """1e-10 of the largest logit: some 10⁴ ulp of room for sums in another order, 6 digits below
    any float32 step."""
    assert np.abs(np.asarray(got) - want).max() <= 1e-10 * np.abs(want).max()


@pytest.mark.parametrize(
    ("published", "text", "tied"),
    [
        ("relu", "relu", True),
        ("gated-gelu", "geglu_tanh", False),
        ("gated-silu", "swiglu", False),
        ("gelu", "gelu_erf", True),
    ],
    ids=["v1.0", "v1.1", "gated-silu", "gelu"],
)
def test_t5(published, text, tied):
    model = small.t5(text, tie_embeddings=tied, logits_scale=small.D**-0.5 if tied else 1.0)
    config = transformers.T5Config(
        vocab_size=small.V,
        d_model=small.D,
        d_kv=small.K,
        d_ff=small.F,
        num_layers=model.num_encoder_layers,
        num_decoder_layers=model.num_layers,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj=published,
        dropout_rate=0.0,
        layer_norm_epsilon=1e-6,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    batch = small.pair_batch()
    batch["encoder_segments"] = batch["encoder_segments"].at[1, 8:].set(0)
    with hf.float64(), torch.no_grad():
        reference = transformers.T5ForConditionalGeneration(config)
        if not tied:
            # What loading a checkpoint with an output matrix of its own makes of the config.
            reference.config.scale_decoder_outputs = False
            reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.clone())
        hf.randomize(reference)
        want = reference(
            input_ids=torch.tensor(np.asarray(batch["encoder_tokens"])).long(),
            attention_mask=torch.tensor(np.asarray(batch["encoder_segments"])).long(),
            decoder_input_ids=torch.tensor(np.asarray(batch["decoder_tokens"])).long(),
        ).logits.numpy()
    assert want.dtype == np.float64
    assert_same(logits(model, hf.t5_params(reference, small.K), batch), want)


def _decoder_want(reference, batch):
    ids = torch.tensor(np.asarray(batch["tokens"])).long()
    with hf.float64(), torch.no_grad():
        want = reference(input_ids=ids).logits.numpy()
    assert want.dtype == np.float64
    return want


@pytest.mark.parametrize("tied", [True, False])
def test_llama_with_grouped_heads_and_rope(tied):
    model = small.decoder(
        norm=Norm(eps=1e-5),
        positions=Positions(kind="rope", rope_theta=500.0),
        tie_embeddings=tied,
    )
    config = transformers.LlamaConfig(
        **hf.LLAMA, tie_word_embeddings=tied, rope_parameters=_rope(500.0)
    )
    with hf.float64():
        reference = hf.randomize(transformers.LlamaForCausalLM(config))
    batch = small.lm_batch()
    assert_same(
        logits(model, hf.llama_params(reference, small.K), batch), _decoder_want(reference, batch)
    )


def _rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def test_qwen3_with_qk_norm():
    model = small.decoder(
        norm=Norm(eps=1e-5),
        attention=Attention(num_heads=4, num_kv_heads=2, head_dim=small.K, qk_norm=True),
        positions=Positions(kind="rope", rope_theta=1e4),
    )
    config = transformers.Qwen3Config(
        **hf.LLAMA, tie_word_embeddings=True, rope_parameters=_rope(1e4)
    )
    with hf.float64():
        reference = hf.randomize(transformers.Qwen3ForCausalLM(config))
    batch = small.lm_batch()
    assert_same(
        logits(model, hf.llama_params(reference, small.K), batch), _decoder_want(reference, batch)
    )


def test_qwen2_with_qkv_biases():
    fields = {name: value for name, value in hf.LLAMA.items() if name != "head_dim"}
    config = transformers.Qwen2Config(
        **(fields | {"num_attention_heads": 3, "num_key_value_heads": 1}),
        tie_word_embeddings=True,
        rope_parameters=_rope(1e4),
    )
    model = small.decoder(
        norm=Norm(eps=1e-5),
        attention=Attention(num_heads=3, num_kv_heads=1, head_dim=small.K, qkv_bias=True),
    )
    with hf.float64():
        reference = hf.randomize(transformers.Qwen2ForCausalLM(config))
    batch = small.lm_batch()
    assert_same(
        logits(model, hf.llama_params(reference, small.K), batch), _decoder_want(reference, batch)
    )


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "distance"), [(32, 128), (32, 64), (8, 12), (64, 1024), (16, 128), (4, 20)]
)
def test_relative_buckets_are_transformers(buckets, distance, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    spec = Positions(kind="relative", num_buckets=buckets, max_distance=distance)
    relative = torch.arange(-1500, 1501)
    want = T5Attention._relative_position_bucket(
        relative, bidirectional=bidirectional, num_buckets=buckets, max_distance=distance
    ).numpy()
    # keys − queries from −1500 to 0 in the last query's row, from 0 to 1500 in the first one's.
    got = relative_buckets(1501, 1501, spec, bidirectional)
    np.testing.assert_array_equal(got[-1], want[:1501])
    np.testing.assert_array_equal(got[0], want[1500:])
    assert got.min() == 0 and got.max() == buckets - 1

"""Greedy tokens of Llama and T5 against transformers' own generation with its own cache."""

import jax
import jax.numpy as jnp
import pytest

from glu_lab.models import Transformer
from glu_lab.models.generate import Generator
from glu_lab.spec.model import Norm, Positions
from tests.models import small

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("tests.models.hugging_face")

NEW = 12


def theirs(reference, *, eos=None, **inputs):
    """New tokens of `generate` in float64."""
    config = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=NEW,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=eos,
        decoder_start_token_id=0,
    )
    inputs = {name: torch.tensor(value).long() for name, value in inputs.items()}
    with hf.float64(), torch.no_grad():
        return reference.generate(**inputs, generation_config=config)[:, -NEW:].tolist()


def ours(model, params, prompts, **how):
    with jax.enable_x64(True):
        generator = Generator(Transformer(model, numerics=small.F64))
        params = jax.tree.map(jnp.asarray, params)
        return generator.generate(params, prompts, tokens=NEW, **how)


def until(row, stop):
    return row[: row.index(stop) + 1] if stop in row else row


@pytest.fixture(scope="module")
def llama():
    model = small.decoder(
        norm=Norm(eps=1e-5),
        positions=Positions(kind="rope", rope_theta=500.0),
        tie_embeddings=False,
    )
    config = transformers.LlamaConfig(
        **hf.LLAMA,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    with hf.float64():
        reference = hf.randomize(transformers.LlamaForCausalLM(config), seed=3)
    return model, hf.llama_params(reference, small.K), reference


@pytest.fixture(scope="module")
def t5():
    model = small.t5()
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
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        layer_norm_epsilon=1e-6,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    with hf.float64():
        reference = transformers.T5ForConditionalGeneration(config)
        reference.config.scale_decoder_outputs = False
        reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.clone())
        hf.randomize(reference, seed=4)
    return model, hf.t5_params(reference, small.K), reference


def padded(rows, left):
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    ones = [[1] * len(row) for row in rows]
    if left:
        return [f + r for f, r in zip(fill, rows, strict=True)], [
            f + o for f, o in zip(fill, ones, strict=True)
        ]
    return [r + f for f, r in zip(fill, rows, strict=True)], [
        o + f for f, o in zip(fill, ones, strict=True)
    ]


@pytest.mark.slow
def test_llama_goes_on_as_transformers_does(llama):
    """Three prompts of different lengths in one batch, padded on the left by both."""
    model, params, reference = llama
    prompts = [[5, 9, 2, 21, 14], [7, 3], [3, 8, 1, 17]]
    ids, mask = padded(prompts, left=True)
    want = theirs(reference, input_ids=ids, attention_mask=mask)
    # Rows that repeat one token would hide where positions are wrong.
    assert all(len(set(row)) > 2 for row in want)
    assert ours(model, params, prompts) == want
    stop = want[0][4]
    ended = theirs(reference, input_ids=ids, attention_mask=mask, eos=stop)
    got = ours(model, params, prompts, stop=stop)
    assert got == [until(row, stop) for row in ended] == [until(row, stop) for row in want]


@pytest.mark.slow
def test_t5_decodes_as_transformers_does(t5):
    """Sources of different lengths, padded on the right by both."""
    model, params, reference = t5
    source = [[5, 9, 2, 21, 14, 11, 1], [7, 3, 1], [3, 8, 1, 17, 20]]
    ids, mask = padded(source, left=False)
    want = theirs(reference, input_ids=ids, attention_mask=mask)
    assert all(len(set(row)) > 2 for row in want)
    assert ours(model, params, [[0]] * 3, source=source) == want

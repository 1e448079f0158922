"""Small models for the tests, by kind."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from glu_lab.spec import variant
from glu_lab.spec.model import Attention, Model, Norm, Positions
from glu_lab.spec.numerics import Numerics

F64 = Numerics.uniform("float64")
V, D, F, K = 29, 12, 20, 4


def decoder(text: str = "swiglu", d_ff: int = F, layers: int = 2, **fields: Any) -> Model:
    """A Llama-like model: pre-norm, RoPE, grouped heads, tied embeddings."""
    ffn = variant(text, d_model=D, d_ff=d_ff, **fields.pop("ffn", {}))
    base: dict[str, Any] = dict(
        kind="decoder",
        vocab_size=V,
        d_model=D,
        num_layers=layers,
        max_length=32,
        attention=Attention(num_heads=4, num_kv_heads=2, head_dim=K),
        ffn=ffn,
    )
    return Model(**(base | fields))


def t5(text: str = "geglu_tanh", layers: int = 2, **fields: Any) -> Model:
    """A T5: relative buckets, no score scaling."""
    ffn = variant(text, d_model=D, d_ff=F, **fields.pop("ffn", {}))
    base: dict[str, Any] = dict(
        kind="encoder_decoder",
        vocab_size=V,
        d_model=D,
        num_layers=layers,
        num_encoder_layers=layers + 1,
        max_length=32,
        attention=Attention(num_heads=3, num_kv_heads=3, head_dim=K, scale_scores=False),
        ffn=ffn,
        positions=Positions(kind="relative", num_buckets=8, max_distance=12),
        tie_embeddings=False,
    )
    return Model(**(base | fields))


def original(layers: int = 2, **fields: Any) -> Model:
    """The 2017 encoder–decoder: post-norm LayerNorm, sinusoids, biases everywhere."""
    base: dict[str, Any] = dict(
        kind="encoder_decoder",
        vocab_size=V,
        d_model=D,
        num_layers=layers,
        num_encoder_layers=layers,
        max_length=32,
        attention=Attention(
            num_heads=3, num_kv_heads=3, head_dim=K, qkv_bias=True, output_bias=True
        ),
        ffn=variant("relu", d_model=D, d_ff=F, bias=True),
        norm=Norm(kind="layernorm", bias=True, eps=1e-5, placement="post"),
        positions=Positions(kind="sinusoidal"),
        embedding_scale=D**0.5,
    )
    return Model(**(base | fields))


def lm_batch(rows: int = 2, length: int = 9, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "tokens": jnp.asarray(rng.integers(1, V, (rows, length)), jnp.int32),
        "segments": jnp.ones((rows, length), jnp.int32),
        "positions": jnp.asarray(np.tile(np.arange(length), (rows, 1)), jnp.int32),
    }


def pair_batch(rows: int = 2, source: int = 11, target: int = 7, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "encoder_tokens": jnp.asarray(rng.integers(1, V, (rows, source)), jnp.int32),
        "encoder_segments": jnp.ones((rows, source), jnp.int32),
        "decoder_tokens": jnp.asarray(rng.integers(1, V, (rows, target)), jnp.int32),
    }

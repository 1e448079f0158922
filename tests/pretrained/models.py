"""Tiny random models of transformers, saved as it saves them."""

import torch
import transformers

from tests.models import hugging_face as hf
from tests.models import small

LLAMA = hf.LLAMA | dict(
    max_position_embeddings=32,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
)
_NO_HEAD_DIM = {name: value for name, value in LLAMA.items() if name != "head_dim"}
T5 = dict(
    vocab_size=small.V,
    d_model=small.D,
    d_kv=small.K,
    d_ff=small.F,
    num_layers=3,
    num_decoder_layers=2,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    dropout_rate=0.0,
    pad_token_id=0,
    decoder_start_token_id=0,
)

#: Name → (class, config).
CASES = {
    "llama": ("Llama", LLAMA | {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", LLAMA | {"tie_word_embeddings": False}),
    "llama-biases": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-gelu": ("Llama", LLAMA | {"hidden_act": "gelu"}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2", _NO_HEAD_DIM | {"hidden_size": 16, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", LLAMA | {"tie_word_embeddings": False}),
    "t5-relu": ("T5", T5 | {"feed_forward_proj": "relu"}),
    "t5-gelu": ("T5", T5 | {"feed_forward_proj": "gelu"}),
    "t5-gated": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


def build(case: str, seed: int = 0) -> torch.nn.Module:
    """A model in float64, every parameter random."""
    kind, fields = CASES[case]
    config = getattr(transformers, f"{kind}Config")(**fields)
    head = "T5ForConditionalGeneration" if kind == "T5" else f"{kind}ForCausalLM"
    with hf.float64():
        model = getattr(transformers, head)(config)
        if not config.tie_word_embeddings and kind == "T5":
            model.config.scale_decoder_outputs = False
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        return hf.randomize(model, seed)

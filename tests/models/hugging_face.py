"""Random tiny Hugging Face models in float64, and their weights in the canonical form.

The mapping is written here by hand from the two formulas, apart from the library's own converters.
"""

import contextlib

import numpy as np
import torch
from torch import nn

from tests.models import small

#: Sizes of a tiny Llama, or a relative of it, in the words of its config.
LLAMA = dict(
    vocab_size=small.V,
    hidden_size=small.D,
    intermediate_size=small.F,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=small.K,
    rms_norm_eps=1e-5,
    attn_implementation="eager",
    max_position_embeddings=64,
)


@contextlib.contextmanager
def float64():
    """Runs Hugging Face code in float64 throughout.

    Its norms, softmaxes and rotary angles say ``torch.float32`` or ``.float()`` whatever the dtype
    of the weights; here those names mean float64.
    """
    kept = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]
        torch.set_default_dtype(kept[3])


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter normal, norms' scales around 1, so that no term is invisible."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(draw * scale + (0.0 if parameter.ndim > 1 else 1.0))
    return model.double().eval()


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float64)


def _stack(trees):
    if isinstance(trees[0], dict):
        return {name: _stack([tree[name] for tree in trees]) for name in trees[0]}
    return np.stack(trees)


def _heads_in(linear, head_dim):
    """(H·K, D) of torch to (D, H, K)."""
    weight = array(linear.weight).T
    return weight.reshape(weight.shape[0], -1, head_dim)


def _heads_out(linear, head_dim):
    """(D, H·K) of torch to (H, K, D)."""
    weight = array(linear.weight).T
    return weight.reshape(-1, head_dim, weight.shape[1])


def _ffn(inputs, output):
    return {
        "wi": np.stack([array(linear.weight).T for linear in inputs], axis=1),
        "wo": array(output.weight).T,
    }


def llama_params(model, head_dim):
    """Llama and Qwen3: ``model.layers[i].{self_attn,mlp,input_layernorm,…}``."""

    def layer(block):
        attention = block.self_attn
        tree = {
            "attention_norm": {"scale": array(block.input_layernorm.weight)},
            "attention": {
                "q": _heads_in(attention.q_proj, head_dim),
                "k": _heads_in(attention.k_proj, head_dim),
                "v": _heads_in(attention.v_proj, head_dim),
                "o": _heads_out(attention.o_proj, head_dim),
            },
            "ffn_norm": {"scale": array(block.post_attention_layernorm.weight)},
            "ffn": _ffn((block.mlp.gate_proj, block.mlp.up_proj), block.mlp.down_proj),
        }
        for name in ("q", "k", "v"):
            bias = getattr(attention, f"{name}_proj").bias
            if bias is not None:
                tree["attention"][f"{name}_bias"] = array(bias).reshape(-1, head_dim)
        for name in ("q_norm", "k_norm"):
            if hasattr(attention, name):
                tree["attention"][name] = array(getattr(attention, name).weight)
        return tree

    tree = {
        "embedding": array(model.model.embed_tokens.weight),
        "decoder": {
            "layers": _stack([layer(block) for block in model.model.layers]),
            "final_norm": {"scale": array(model.model.norm.weight)},
        },
    }
    if not model.config.tie_word_embeddings:
        tree["logits"] = array(model.lm_head.weight).T
    return tree


def t5_params(model, head_dim):
    """T5: ``encoder.block[i].layer[j]``, the last of which is the feed-forward layer."""

    def attention(module):
        return {
            "q": _heads_in(module.q, head_dim),
            "k": _heads_in(module.k, head_dim),
            "v": _heads_in(module.v, head_dim),
            "o": _heads_out(module.o, head_dim),
        }

    def layer(block):
        parts = list(block.layer)
        dense = parts[-1].DenseReluDense
        inputs = (dense.wi_0, dense.wi_1) if hasattr(dense, "wi_0") else (dense.wi,)
        tree = {
            "attention_norm": {"scale": array(parts[0].layer_norm.weight)},
            "attention": attention(parts[0].SelfAttention),
            "ffn_norm": {"scale": array(parts[-1].layer_norm.weight)},
            "ffn": _ffn(inputs, dense.wo),
        }
        if len(parts) == 3:
            tree["cross_attention_norm"] = {"scale": array(parts[1].layer_norm.weight)}
            tree["cross_attention"] = attention(parts[1].EncDecAttention)
        return tree

    def stack(module):
        relative = module.block[0].layer[0].SelfAttention.relative_attention_bias
        return {
            "layers": _stack([layer(block) for block in module.block]),
            "relative": {"bias": array(relative.weight)},
            "final_norm": {"scale": array(module.final_layer_norm.weight)},
        }

    tree = {
        "embedding": array(model.shared.weight),
        "encoder": stack(model.encoder),
        "decoder": stack(model.decoder),
    }
    if model.lm_head.weight is not model.shared.weight:
        tree["logits"] = array(model.lm_head.weight).T
    return tree

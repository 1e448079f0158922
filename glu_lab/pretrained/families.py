"""Whole models as other projects store them: one row a tensor outside of the FFNs.

The FFNs of a family lie as one of `glu_lab.layouts`; what stands here is the rest. A row says where
a tensor goes and how its axes are taken apart, as an einops pattern from stored to canonical axes.
The same row read backwards writes the tensor.

Axes: vocab V, embed D, heads H, kv G (key/value heads), head K, half 2, pair K/2, buckets.
"""

from typing import NamedTuple

from glu_lab.errors import UnknownNameError
from glu_lab.layouts.layout import Source


class Weight(NamedTuple):
    """One stored tensor.

    Attributes:
        name: its name; ``{layer}`` is the layer's number.
        path: the canonical parameter, ``"decoder/layers/attention/q"``; without the layer's axis.
        pattern: stored axes → canonical axes, in einops' notation.
    """

    name: str
    path: str
    pattern: str


class Alias(NamedTuple):
    """A tensor that may be stored once more.

    Attributes:
        name: of the copy.
        of: the tensor that it must equal bit for bit.
    """

    name: str
    of: str


class Family(NamedTuple):
    """One way to store a whole model.

    Attributes:
        name: of the family, ``"hf-llama"``.
        summary: one line for people.
        model_types: values of ``model_type`` (``general.architecture`` in GGUF) that are stored so.
        ffn: number of branches → name of the FFN's layout.
        weights: all other tensors.
        aliases: copies that some files hold.
        head: name of the output matrix, where the embedding does not serve as one.
        ignored: tensors that hold nothing learned → what they are.
        source: where this was read.
    """

    name: str
    summary: str
    model_types: tuple[str, ...]
    ffn: dict[int, str]
    weights: tuple[Weight, ...]
    aliases: tuple[Alias, ...]
    head: str
    ignored: dict[str, str]
    source: Source


def _attention(
    names: dict[str, str], path: str, *, paired: bool = False, biases: bool = False
) -> tuple[Weight, ...]:
    """Projections of one attention stored as nn.Linear, (out, in).

    Args:
        names: q, k, v, o → the name without ``.weight``.
        path: canonical path of the attention.
        paired: queries and keys have the two halves that RoPE rotates interleaved, as the pairs
            (2i, 2i + 1) of RoFormer; in canonical order they are (i, i + K/2).
        biases: whether the projections of queries, keys and values may have some.
    """
    turned = {"q": paired, "k": paired, "v": False}
    rows = []
    for part, axis in (("q", "heads"), ("k", "kv"), ("v", "kv")):
        stored, canonical = (
            (f"({axis} pair half)", f"{axis} (half pair)")
            if turned[part]
            else (f"({axis} head)", f"{axis} head")
        )
        rows.append(
            Weight(
                f"{names[part]}.weight", f"{path}/{part}", f"{stored} embed -> embed {canonical}"
            )
        )
        if biases:
            rows.append(
                Weight(f"{names[part]}.bias", f"{path}/{part}_bias", f"{stored} -> {canonical}")
            )
    rows.append(
        Weight(f"{names['o']}.weight", f"{path}/o", "embed (heads head) -> heads head embed")
    )
    if biases:
        rows.append(Weight(f"{names['o']}.bias", f"{path}/o_bias", "embed -> embed"))
    return tuple(rows)


def _scale(name: str, path: str) -> Weight:
    return Weight(name, path, "width -> width")


_VOCABULARY = "vocab embed -> vocab embed"
_HEAD = "vocab embed -> embed vocab"
_LAYERS = "decoder/layers"


def _hugging_face(model: str, symbol: str) -> Source:
    return Source(
        project="huggingface/transformers",
        revision="5.24.0",
        file=f"models/{model}/modeling_{model}.py",
        symbol=symbol,
    )


_HF_LLAMA = Family(
    name="hf-llama",
    summary="Llama and its relatives as Hugging Face stores them",
    model_types=("llama", "mistral", "qwen2", "qwen3"),
    ffn={2: "hf-llama"},
    weights=(
        Weight("model.embed_tokens.weight", "embedding", _VOCABULARY),
        _scale("model.layers.{layer}.input_layernorm.weight", f"{_LAYERS}/attention_norm/scale"),
        *_attention(
            {part: f"model.layers.{{layer}}.self_attn.{part}_proj" for part in "qkvo"},
            f"{_LAYERS}/attention",
            biases=True,
        ),
        _scale("model.layers.{layer}.self_attn.q_norm.weight", f"{_LAYERS}/attention/q_norm"),
        _scale("model.layers.{layer}.self_attn.k_norm.weight", f"{_LAYERS}/attention/k_norm"),
        _scale("model.layers.{layer}.post_attention_layernorm.weight", f"{_LAYERS}/ffn_norm/scale"),
        _scale("model.norm.weight", "decoder/final_norm/scale"),
        Weight("lm_head.weight", "logits", _HEAD),
    ),
    aliases=(Alias("lm_head.weight", "model.embed_tokens.weight"),),
    head="lm_head.weight",
    ignored={"model.layers.{layer}.self_attn.rotary_emb.inv_freq": "RoPE's frequencies"},
    source=_hugging_face("llama", "LlamaForCausalLM"),
)


def _gguf(name: str, summary: str, model_types: tuple[str, ...], *, paired: bool) -> Family:
    return Family(
        name=name,
        summary=summary,
        model_types=model_types,
        ffn={2: "gguf"},
        weights=(
            Weight("token_embd.weight", "embedding", _VOCABULARY),
            _scale("blk.{layer}.attn_norm.weight", f"{_LAYERS}/attention_norm/scale"),
            *_attention(
                {
                    part: f"blk.{{layer}}.attn_{'output' if part == 'o' else part}"
                    for part in "qkvo"
                },
                f"{_LAYERS}/attention",
                paired=paired,
                biases=True,
            ),
            _scale("blk.{layer}.attn_q_norm.weight", f"{_LAYERS}/attention/q_norm"),
            _scale("blk.{layer}.attn_k_norm.weight", f"{_LAYERS}/attention/k_norm"),
            _scale("blk.{layer}.ffn_norm.weight", f"{_LAYERS}/ffn_norm/scale"),
            _scale("output_norm.weight", "decoder/final_norm/scale"),
            Weight("output.weight", "logits", _HEAD),
        ),
        aliases=(Alias("output.weight", "token_embd.weight"),),
        head="output.weight",
        ignored={},
        source=Source(
            project="ggml-org/llama.cpp",
            revision="gguf 0.19.0",
            file="convert_hf_to_gguf.py",
            symbol="LlamaModel.permute" if paired else "Qwen2Model",
        ),
    )


def _t5_stack(stack: str, cross: bool) -> tuple[Weight, ...]:
    """An encoder or decoder of T5: its sublayers are numbered."""
    block, path = f"{stack}.block.{{layer}}.layer", f"{stack}/layers"
    sublayers = [("attention", "SelfAttention")]
    if cross:
        sublayers.append(("cross_attention", "EncDecAttention"))
    rows = []
    for number, (name, module) in enumerate(sublayers):
        rows.append(_scale(f"{block}.{number}.layer_norm.weight", f"{path}/{name}_norm/scale"))
        rows += _attention(
            {part: f"{block}.{number}.{module}.{part}" for part in "qkvo"}, f"{path}/{name}"
        )
    return (
        *rows,
        _scale(f"{block}.{len(sublayers)}.layer_norm.weight", f"{path}/ffn_norm/scale"),
        Weight(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{stack}/relative/bias",
            "buckets heads -> buckets heads",
        ),
        _scale(f"{stack}.final_layer_norm.weight", f"{stack}/final_norm/scale"),
    )


_HF_T5 = Family(
    name="hf-t5",
    summary="T5 1.0 and 1.1 as Hugging Face stores them",
    model_types=("t5",),
    ffn={1: "hf-t5", 2: "hf-t5-gated"},
    weights=(
        Weight("shared.weight", "embedding", _VOCABULARY),
        *_t5_stack("encoder", cross=False),
        *_t5_stack("decoder", cross=True),
        Weight("lm_head.weight", "logits", _HEAD),
    ),
    aliases=(
        Alias("encoder.embed_tokens.weight", "shared.weight"),
        Alias("decoder.embed_tokens.weight", "shared.weight"),
        Alias("lm_head.weight", "shared.weight"),
    ),
    head="lm_head.weight",
    ignored={},
    source=_hugging_face("t5", "T5ForConditionalGeneration"),
)

#: Name → family.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _HF_LLAMA,
        _HF_T5,
        _gguf(
            "gguf-llama",
            "Llama in GGUF: rows of queries and keys reordered to RoFormer's pairs",
            ("llama",),
            paired=True,
        ),
        _gguf("gguf-qwen", "Qwen 2 and 3 in GGUF", ("qwen2", "qwen3"), paired=False),
    )
}


def family_of(kind: str, model_type: str) -> Family:
    """The family of a checkpoint.

    Args:
        kind: ``"hf"`` or ``"gguf"``: who wrote it.
        model_type: what it calls its architecture.

    Raises:
        UnknownNameError: for an architecture that is not read, with those that are.
    """
    known = {
        name: family
        for family in FAMILIES.values()
        if family.name.startswith(f"{kind}-")
        for name in family.model_types
    }
    if model_type not in known:
        raise UnknownNameError(
            f"architecture of a {kind} model",
            model_type,
            known,
            "The FFNs of many more can be read with glu-lab convert.",
        )
    return known[model_type]

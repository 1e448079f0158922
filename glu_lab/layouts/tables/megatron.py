"""Layouts of Megatron-LM: whole, per tensor-parallel rank, and interleaved."""

import dataclasses

from glu_lab.layouts.families import interleaved
from glu_lab.layouts.layout import Function, Layout, Prefix, Rule, Source, Tensor
from glu_lab.layouts.tables.rows import bi, bias, decoder, wi, wo

_REVISION = {"project": "NVIDIA/Megatron-LM", "revision": "d98e8a6 (2026-08-22)"}
_MLP = Source(**_REVISION, file="megatron/core/transformer/mlp.py", symbol="MLP.forward, glu")
_SHARDED = Source(
    **_REVISION,
    file="megatron/core/transformer/mlp.py",
    symbol="apply_swiglu_sharded_factory",
)

#: The command line's own words; the tanh form under F.gelu comes with the fused kernels.
_FUNCTION = Function(
    rules=(
        Rule(
            attribute="activation",
            values=(
                ("swiglu", "swiglu"),
                ("geglu, bias_activation_fusion", "geglu_tanh"),
                ("geglu", "geglu_erf"),
                ("quick_geglu", "quick_gelu*linear"),
                ("quick_geglu, activation_func_clamp_value 7, glu_linear_offset 1", "gpt_oss"),
                ("gelu, bias_activation_fusion", "gelu_tanh"),
                ("gelu", "gelu_erf"),
                ("squared_relu", "relu2"),
                ("relu", "relu"),
                ("silu", "silu"),
            ),
        ),
    ),
    note="F.gelu is the erf form, and the tanh form when bias_activation_fusion is on.",
)

_FC1 = (
    Tensor(name="linear_fc1.weight", holds="wi", axes="(branch mlp) embed"),
    Tensor(name="linear_fc1.bias", holds="bi", axes="(branch mlp)", optional=True),
)
_FC2 = (wo("linear_fc2.weight"), bias("bo", "linear_fc2.bias"))
_OUTSIDE = (
    ("linear_fc1.layer_norm_weight", "norm"),
    ("linear_fc1.layer_norm_bias", "norm"),
    ("*._extra_state", "state of the FP8 recipe"),
)

_PER_RANK = Layout(
    name="megatron",
    summary="linear_fc1 of each rank [W_r; V_r], the activated part first; linear_fc2",
    prefixes=(
        *decoder("decoder.layers.{layer}.mlp."),
        Prefix(template="decoder.layers.{layer}.mlp.shared_experts.", stack="shared_experts"),
    ),
    tensors=(*_FC1, *_FC2),
    function=_FUNCTION,
    bias_attribute="add_bias_linear",
    outside=_OUTSIDE,
    per_rank=True,
    sources=(_MLP, _SHARDED),
    notes=(
        "Cutting [W; V] of a whole model in equal contiguous parts gives ranks of W alone and of V "
        "alone: the right shapes, and the wrong rows.",
        "The output bias is whole in every rank and added once, after the sum over ranks.",
    ),
)
_EXPERTS = dataclasses.replace(
    _PER_RANK,
    name="megatron-experts",
    summary="linear_fc1 and linear_fc2 of each expert (grouped GEMM names), per rank",
    prefixes=decoder("decoder.layers.{layer}.mlp."),
    tensors=(
        Tensor(name="experts.linear_fc1.weight{expert}", holds="wi", axes="(branch mlp) embed"),
        Tensor(
            name="experts.linear_fc1.bias{expert}", holds="bi", axes="(branch mlp)", optional=True
        ),
        wo("experts.linear_fc2.weight{expert}"),
        bias("bo", "experts.linear_fc2.bias{expert}"),
    ),
    outside=(
        ("router.*", "router"),
        ("shared_experts.*", "shared experts, an FFN of their own (megatron)"),
        ("*._extra_state", "state of the FP8 recipe"),
    ),
    sources=(
        Source(
            **_REVISION,
            file="megatron/core/transformer/fsdp_dtensor_checkpoint.py",
            symbol="GroupedMLP",
        ),
    ),
)

_INTERLEAVED = Source(
    project="NVIDIA/TransformerEngine",
    revision="d0067d0 (2026-08-22)",
    file="transformer_engine/pytorch/ops/basic/swiglu.py",
    symbol="SwiGLU.glu_interleave_size",
)
_INTERLEAVED_NOTES = (
    "moe_mlp_glu_interleave_size says the width; nothing in the tensors does.",
    "Any width can be asked for by name, as in megatron-interleave-16.",
)

MEGATRON_LAYOUTS = (
    _PER_RANK,
    dataclasses.replace(
        _PER_RANK,
        name="megatron-dist",
        summary="distributed checkpoint: linear_fc1 [W; V] of the whole model, layers outermost",
        prefixes=decoder("decoder.layers.mlp.", "decoder.layers.{layer}.mlp."),
        tensors=(
            Tensor(name="linear_fc1.weight", holds="wi", axes="layer? (branch mlp) embed"),
            Tensor(name="linear_fc1.bias", holds="bi", axes="layer? (branch mlp)", optional=True),
            wo("linear_fc2.weight", "layer? embed mlp"),
            bias("bo", "linear_fc2.bias", axes="layer? embed"),
        ),
        per_rank=False,
        sources=(_SHARDED,),
        notes=(
            "Non-homogeneous layers are stored one by one, with their number in the name.",
            "With singleton_local_shards the halves are tensors of their own: megatron-dist-split.",
        ),
    ),
    dataclasses.replace(
        _PER_RANK,
        name="megatron-dist-split",
        summary="distributed checkpoint with singleton_local_shards: linear_fc1.weight_w and _v",
        prefixes=decoder("decoder.layers.{layer}.mlp."),
        num_branches=2,
        tensors=(
            wi("linear_fc1.weight_w", 0),
            wi("linear_fc1.weight_v", 1),
            bi("linear_fc1.bias_w", 0),
            bi("linear_fc1.bias_v", 1),
            *_FC2,
        ),
        per_rank=False,
        sources=(_SHARDED,),
        notes=(),
    ),
    _EXPERTS,
    *(
        dataclasses.replace(
            interleaved(base, width),
            sources=(*base.sources, _INTERLEAVED),
            notes=_INTERLEAVED_NOTES,
        )
        for base, width in ((_PER_RANK, 1), (_PER_RANK, 32), (_EXPERTS, 32))
    ),
)

"""Layouts of mixtures of experts: the FFN of each expert. Routers are no part of an FFN."""

from glu_lab.layouts.layout import Function, Layout, Source, Tensor
from glu_lab.layouts.tables.activations import gated
from glu_lab.layouts.tables.hugging_face import seen
from glu_lab.layouts.tables.rows import bias, decoder, packed, packed_bi, wi, wo

_CONVERSION = Source(
    project="huggingface/transformers",
    revision="5.24.0",
    file="conversion_mapping.py",
    symbol="_build_checkpoint_conversion_mapping",
)
_GPT_OSS = Function(
    variant="gpt_oss",
    assumes=(("swiglu_limit", "7.0"), ("swiglu_alpha", "1.702")),
    note="The gate is clamped from above, the linear branch on both sides, and 1 is added to it.",
)
_MXFP4 = "it is MXFP4-quantised; read it dequantised, as one tensor without the suffix"

EXPERT_LAYOUTS = (
    Layout(
        name="mixtral",
        summary="w1 activated, w3 linear, w2 down, one nn.Linear an expert; the files of Mixtral",
        aliases=("hf-mixtral",),
        model_types=("mixtral",),
        prefixes=decoder("model.layers.{layer}.block_sparse_moe."),
        tensors=(
            wi("experts.{expert}.w1.weight", 0),
            wi("experts.{expert}.w3.weight", 1),
            wo("experts.{expert}.w2.weight"),
        ),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        outside=(("gate.weight", "router"),),
        sources=(_CONVERSION,),
        notes=("transformers 5 joins the experts when it loads, see mixtral-fused.",),
    ),
    Layout(
        name="mixtral-fused",
        summary="gate_up_proj (E, 2F, D) and down_proj (E, D, F), in memory since transformers 5",
        prefixes=decoder("model.layers.{layer}.mlp."),
        tensors=(
            packed("experts.gate_up_proj", "expert (branch mlp) embed"),
            wo("experts.down_proj", "expert embed mlp"),
        ),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        outside=(
            ("gate.*", "router"),
            ("shared_expert*", "shared expert, an FFN of its own"),
        ),
        sources=(seen("mixtral", "MixtralExperts"), seen("qwen2_moe", "Qwen2MoeExperts")),
        notes=("hf-gpt-oss gives the same names to (E, D, 2F), interleaved.",),
    ),
    Layout(
        name="hf-qwen2-moe",
        summary="gate_proj, up_proj and down_proj of each expert, as nn.Linear",
        aliases=("hf-qwen3-moe", "hf-olmoe", "hf-deepseek-v3"),
        model_types=("qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"),
        prefixes=decoder("model.layers.{layer}.mlp."),
        tensors=(
            wi("experts.{expert}.gate_proj.weight", 0),
            wi("experts.{expert}.up_proj.weight", 1),
            wo("experts.{expert}.down_proj.weight"),
        ),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        outside=(
            ("gate.*", "router"),
            ("shared_expert_gate.*", "gate of the shared expert's output"),
            ("shared_expert*", "shared expert, an FFN of its own (hf-llama)"),
        ),
        sources=(_CONVERSION, seen("qwen2_moe", "Qwen2MoeExperts")),
    ),
    Layout(
        name="hf-gpt-oss",
        summary="gate_up_proj (E, D, 2F), gate and up alternating; clamps and an offset",
        model_types=("gpt_oss",),
        prefixes=decoder("model.layers.{layer}.mlp."),
        tensors=(
            packed("experts.gate_up_proj", "expert embed (mlp branch)"),
            packed_bi("experts.gate_up_proj_bias", "expert (mlp branch)", optional=False),
            wo("experts.down_proj", "expert mlp embed"),
            bias("bo", "experts.down_proj_bias", axes="expert embed", optional=False),
        ),
        num_branches=2,
        function=_GPT_OSS,
        outside=(("router.*", "router"),),
        refused=(
            ("experts.*_blocks", _MXFP4),
            ("experts.*_scales", _MXFP4),
        ),
        sources=(seen("gpt_oss", "GptOssExperts"),),
    ),
    Layout(
        name="gpt-oss",
        summary="OpenAI's own files: mlp1_weight (E, 2F, D), gate and up rows alternating",
        prefixes=decoder("block.{layer}.mlp."),
        tensors=(
            packed("mlp1_weight", "expert (mlp branch) embed"),
            packed_bi("mlp1_bias", "expert (mlp branch)", optional=False),
            wo("mlp2_weight", "expert embed mlp"),
            bias("bo", "mlp2_bias", axes="expert embed", optional=False),
        ),
        num_branches=2,
        function=_GPT_OSS,
        outside=(("gate.*", "router"), ("norm.*", "norm")),
        refused=(("mlp*_weight.blocks", _MXFP4), ("mlp*_weight.scales", _MXFP4)),
        sources=(
            Source(
                project="openai/gpt-oss",
                revision="7b58334 (2026-07-24)",
                file="gpt_oss/torch/model.py",
                symbol="MLPBlock, swiglu",
            ),
        ),
        notes=("Under tensor parallelism the output bias is added after the sum, once.",),
    ),
    Layout(
        name="dbrx",
        summary="w1 activated, v1 linear, w2 down, each (E·F, D); w2 is used untransposed",
        aliases=("hf-dbrx",),
        model_types=("dbrx",),
        prefixes=decoder("transformer.blocks.{layer}.ffn."),
        tensors=(
            wi("experts.mlp.w1", 0, "(expert mlp) embed"),
            wi("experts.mlp.v1", 1, "(expert mlp) embed"),
            wo("experts.mlp.w2", "(expert mlp) embed"),
        ),
        num_branches=2,
        function=Function(rules=(gated("ffn_config.ffn_act_fn.name"),)),
        outside=(("router.*", "router"),),
        sources=(
            seen("dbrx", "DbrxExpertGLU"),
            Source(
                project="databricks/dbrx",
                revision="a320039 (2024-04-19)",
                file="model/modeling_dbrx.py",
                symbol="DbrxExpertGLU",
            ),
        ),
        notes=("Shapes leave the number of experts open; the Spec's d_ff decides it.",),
    ),
    Layout(
        name="grok-1",
        summary="linear activated, linear_v linear, linear_1 down, of each expert",
        prefixes=decoder("transformer.decoder_layer.{layer}.moe."),
        tensors=(
            wi("{expert}.linear.weight", 0),
            wi("{expert}.linear_v.weight", 1),
            wo("{expert}.linear_1.weight"),
        ),
        num_branches=2,
        function=Function(variant="geglu_tanh", note="jax.nn.gelu by its default, tanh."),
        sources=(
            Source(
                project="ggml-org/llama.cpp",
                revision="gguf 0.19.0",
                file="gguf-py/gguf/tensor_mapping.py",
                symbol="FFN_GATE_EXP, FFN_UP_EXP, FFN_DOWN_EXP",
            ),
        ),
    ),
    Layout(
        name="gguf-experts",
        summary="ffn_gate_exps, ffn_up_exps and ffn_down_exps, experts outermost",
        model_types=(),
        prefixes=decoder("blk.{layer}."),
        tensors=(
            Tensor(name="ffn_gate_exps.weight", holds="wi", axes="expert mlp embed", branches=(0,)),
            Tensor(name="ffn_up_exps.weight", holds="wi", axes="expert mlp embed", branches=(1,)),
            wo("ffn_down_exps.weight", "expert embed mlp"),
        ),
        num_branches=2,
        function=Function(
            rules=(
                gated(
                    "general.architecture",
                    {"llama": "silu", "qwen2moe": "silu", "qwen3moe": "silu", "olmoe": "silu"},
                ),
            ),
            note="gpt-oss files have biases and another function, and are not of this layout.",
        ),
        claims=("ffn_*",),
        outside=(
            ("ffn_gate_inp*", "router"),
            ("ffn_norm.*", "norm"),
            ("ffn_*_shexp.*", "shared expert, an FFN of its own"),
        ),
        sources=(
            Source(
                project="ggml-org/llama.cpp",
                revision="gguf 0.19.0",
                file="gguf-py/gguf/constants.py",
                symbol="TENSOR_NAMES",
            ),
        ),
        notes=("Shapes are NumPy's, the reverse of the order in the file's header.",),
    ),
)

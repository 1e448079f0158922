"""Layouts of single families of models, under the names that their own files use."""

from glu_lab.layouts.layout import Function, Layout, Source
from glu_lab.layouts.tables.activations import gated
from glu_lab.layouts.tables.rows import (
    IN_OUT,
    bi,
    bias,
    decoder,
    encoder,
    packed,
    packed_bi,
    wi,
    wo,
)

_MAPPING = Source(
    project="ggml-org/llama.cpp",
    revision="gguf 0.19.0",
    file="gguf-py/gguf/tensor_mapping.py",
    symbol="FFN_GATE, FFN_UP, FFN_DOWN",
)
MODEL_LAYOUTS = (
    Layout(
        name="llama-pth",
        summary="w1 activated, w3 linear, w2 down; Meta's consolidated.NN.pth, one file a rank",
        prefixes=decoder("layers.{layer}.feed_forward."),
        tensors=(wi("w1.weight", 0), wi("w3.weight", 1), wo("w2.weight")),
        num_branches=2,
        function=Function(variant="swiglu"),
        per_rank=True,
        sources=(
            Source(
                project="meta-llama/llama3",
                revision="a0940f9 (2025-01-26)",
                file="llama/model.py",
                symbol="FeedForward",
            ),
        ),
        notes=("w2 is the down projection here and the activated branch in qwen1.",),
    ),
    Layout(
        name="internlm2",
        summary="w1 activated, w3 linear, w2 down",
        model_types=("internlm2",),
        prefixes=decoder("model.layers.{layer}.feed_forward."),
        tensors=(wi("w1.weight", 0), wi("w3.weight", 1), wo("w2.weight")),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        sources=(
            Source(
                project="internlm/internlm2-7b",
                revision="copy in IntMeGroup/HarmonyIQA 79a7bf6",
                file="modeling_internlm2.py",
                symbol="InternLM2MLP",
            ),
            Source(
                project="InternLM/lmdeploy",
                revision="1263d5c (2026-08-21)",
                file="lmdeploy/turbomind/models/internlm2.py",
                symbol="w1, w3, w2",
            ),
        ),
    ),
    Layout(
        name="qwen1",
        summary="w1 linear, w2 activated, c_proj down",
        model_types=("qwen",),
        prefixes=decoder("transformer.h.{layer}.mlp."),
        tensors=(
            wi("w1.weight", 1),
            wi("w2.weight", 0),
            wo("c_proj.weight"),
            bi("w1.bias", 1),
            bi("w2.bias", 0),
            bias("bo", "c_proj.bias"),
        ),
        num_branches=2,
        function=Function(variant="swiglu"),
        bias_attribute="no_bias",
        sources=(
            Source(
                project="Qwen/Qwen-7B",
                revision="copy in QwenLM/Qwen-Audio 0b0e882",
                file="modeling_qwen.py",
                symbol="QWenMLP",
            ),
        ),
        notes=("The width of one branch is half of the config's intermediate_size.",),
    ),
    Layout(
        name="exaone",
        summary="c_fc_0 activated, c_fc_1 linear, c_proj down, as nn.Linear",
        model_types=("exaone",),
        prefixes=decoder("transformer.h.{layer}.mlp."),
        tensors=(wi("c_fc_0.weight", 0), wi("c_fc_1.weight", 1), wo("c_proj.weight")),
        num_branches=2,
        function=Function(rules=(gated("activation_function"),)),
        sources=(
            _MAPPING,
            Source(
                project="LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct",
                file="modeling_exaone.py",
                symbol="ExaoneGatedMLP",
            ),
        ),
    ),
    Layout(
        name="jais",
        summary="c_fc linear, c_fc2 activated, c_proj down, as Conv1D (in, out)",
        model_types=("jais",),
        prefixes=decoder("transformer.h.{layer}.mlp."),
        tensors=(
            wi("c_fc.weight", 1, IN_OUT["wi"]),
            wi("c_fc2.weight", 0, IN_OUT["wi"]),
            wo("c_proj.weight", IN_OUT["wo"]),
            bi("c_fc.bias", 1, optional=False),
            bi("c_fc2.bias", 0, optional=False),
            bias("bo", "c_proj.bias", optional=False),
        ),
        num_branches=2,
        function=Function(
            rules=(gated("activation_function", {"swiglu": "silu"}),),
        ),
        sources=(
            _MAPPING,
            Source(
                project="ggml-org/llama.cpp",
                file="conversion/jais.py",
                symbol="JaisModel.modify_tensors",
            ),
        ),
    ),
    Layout(
        name="refact",
        summary="gate_up_proj, the activated half first, c_proj down",
        model_types=("gpt_refact",),
        prefixes=decoder("transformer.h.{layer}.mlp."),
        tensors=(packed("gate_up_proj.weight", "(branch mlp) embed"), wo("c_proj.weight")),
        num_branches=2,
        function=Function(variant="swiglu"),
        sources=(
            Source(
                project="ggml-org/llama.cpp",
                file="conversion/refact.py",
                symbol="RefactModel.modify_tensors",
            ),
        ),
        notes=("Some tools call the halves linear_1 (activated) and linear_3 (linear).",),
    ),
    Layout(
        name="nomic-bert",
        summary="fc11 linear, fc12 activated, fc2 down",
        model_types=("nomic_bert",),
        prefixes=encoder("encoder.layers.{layer}.mlp.", "bert.encoder.layers.{layer}.mlp."),
        tensors=(wi("fc11.weight", 1), wi("fc12.weight", 0), wo("fc2.weight")),
        num_branches=2,
        function=Function(
            rules=(
                gated("activation_function", {"swiglu": "silu"}),
                gated("hidden_act"),
            )
        ),
        sources=(
            _MAPPING,
            Source(
                project="huggingface/transformers",
                revision="5.24.0",
                file="conversion_mapping.py",
                symbol="nomic_bert",
            ),
        ),
    ),
    Layout(
        name="llada",
        summary="ff_proj activated, up_proj linear, ff_out down",
        model_types=("llada",),
        prefixes=decoder("model.transformer.blocks.{layer}."),
        tensors=(wi("ff_proj.weight", 0), wi("up_proj.weight", 1), wo("ff_out.weight")),
        num_branches=2,
        function=Function(rules=(gated("activation_type", {"silu": "silu"}),)),
        claims=("ff_proj.*", "up_proj.*", "ff_out.*"),
        sources=(_MAPPING,),
        notes=("ff_proj holds both branches in olmo1, from which the names come.",),
    ),
    Layout(
        name="chatglm",
        summary="dense_h_to_4h with both branches, the activated half first",
        model_types=("chatglm",),
        prefixes=decoder("transformer.encoder.layers.{layer}.mlp.", "encoder.layers.{layer}.mlp."),
        tensors=(
            packed("dense_h_to_4h.weight", "(branch mlp) embed"),
            packed_bi("dense_h_to_4h.bias", "(branch mlp)"),
            wo("dense_4h_to_h.weight"),
            bias("bo", "dense_4h_to_h.bias"),
        ),
        num_branches=2,
        function=Function(variant="swiglu"),
        bias_attribute="add_bias_linear",
        sources=(
            Source(
                project="ggml-org/llama.cpp",
                file="src/models/chatglm.cpp",
                symbol="LLM_FFN_SWIGLU of a double-width ffn_up",
            ),
        ),
    ),
    Layout(
        name="olmo1",
        summary="ff_proj with both branches, the linear half first (value first)",
        aliases=("olmo-v1",),
        prefixes=decoder("transformer.blocks.{layer}.", "model.transformer.blocks.{layer}."),
        tensors=(
            packed("ff_proj.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("ff_proj.bias", "(branch mlp)", (1, 0)),
            wo("ff_out.weight"),
            bias("bo", "ff_out.bias"),
        ),
        num_branches=2,
        function=Function(rules=(gated("activation_type", {"swiglu": "silu"}),)),
        bias_attribute="include_bias",
        claims=("ff_proj.*", "ff_out.*"),
        sources=(
            Source(
                project="allenai/OLMo",
                revision="59a53e3 (2025-09-04)",
                file="olmo/model.py",
                symbol="SwiGLU",
            ),
            Source(
                project="allenai/OLMo",
                revision="59a53e3 (2025-09-04)",
                file="scripts/convert_olmo_to_hf_new.py",
                symbol="up_proj_weight, gate_proj_weight",
            ),
        ),
        notes=("The config's mlp_hidden_size is the width of both branches together.",),
    ),
)

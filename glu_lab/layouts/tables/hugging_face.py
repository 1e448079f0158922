"""Layouts of Hugging Face transformers, dense and gated."""

from glu_lab.layouts.layout import Function, Layout, Prefix, Source
from glu_lab.layouts.tables.activations import GEMMA_LEGACY, HUGGING_FACE, dense, gated
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


def seen(model: str, symbol: str) -> Source:
    """A class of the transformers that the tests run against."""
    return Source(
        project="huggingface/transformers",
        revision="5.24.0",
        file=f"models/{model}/modeling_{model}.py",
        symbol=symbol,
    )


GATE_UP_DOWN = (
    wi("gate_proj.weight", 0),
    wi("up_proj.weight", 1),
    wo("down_proj.weight"),
)
GATE_UP_DOWN_BIASES = (
    bi("gate_proj.bias", 0),
    bi("up_proj.bias", 1),
    bias("bo", "down_proj.bias"),
)
MLP = decoder(
    "model.layers.{layer}.mlp.",
    "layers.{layer}.mlp.",
    "model.language_model.layers.{layer}.mlp.",
    "language_model.model.layers.{layer}.mlp.",
)

_T5 = (
    *encoder("encoder.block.{layer}.layer.1.DenseReluDense."),
    *decoder("decoder.block.{layer}.layer.2.DenseReluDense."),
)
#: T5Config rewrites one literal alone: "gated-gelu" is the tanh form, every other name is ACT2FN's.
_T5_GATED = {f"gated-{name}": act for name, act in HUGGING_FACE.items()} | {
    "gated-gelu": "gelu_tanh"
}

HUGGING_FACE_LAYOUTS = (
    Layout(
        name="hf-llama",
        summary="gate_proj, up_proj and down_proj as nn.Linear",
        aliases=(
            "hf-mistral",
            "hf-qwen2",
            "hf-qwen3",
            "hf-smollm",
            "hf-smollm3",
            "hf-olmo",
            "hf-olmo2",
        ),
        model_types=("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo", "olmo2"),
        prefixes=MLP,
        tensors=(*GATE_UP_DOWN, *GATE_UP_DOWN_BIASES),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        bias_attribute="mlp_bias",
        sources=(
            seen("llama", "LlamaMLP"),
            seen("mistral", "MistralMLP"),
            seen("qwen2", "Qwen2MLP"),
            seen("smollm3", "SmolLM3MLP"),
        ),
        notes=(
            "A width in the config is used as it stands.",
            "Models of other families have these names and another function: hf-gemma reads "
            "another attribute, Gemma3n and FalconH1 compute what a Spec cannot say.",
        ),
    ),
    Layout(
        name="hf-gemma",
        summary="the tensors of hf-llama; its legacy config word 'gelu' means the tanh form",
        aliases=("hf-gemma2", "hf-gemma3"),
        model_types=("gemma", "gemma2", "gemma3_text"),
        prefixes=MLP,
        tensors=GATE_UP_DOWN,
        num_branches=2,
        function=Function(
            rules=(gated("hidden_activation"), gated("hidden_act", GEMMA_LEGACY)),
            note="hidden_activation (Gemma 2 and 3) comes before hidden_act (Gemma 1).",
        ),
        sources=(
            seen("gemma", "GemmaMLP"),
            Source(
                project="huggingface/transformers",
                revision="5.24.0",
                file="models/gemma/configuration_gemma.py",
                symbol="GemmaConfig.__post_init__",
            ),
            seen("gemma2", "Gemma2MLP"),
            seen("gemma3", "Gemma3MLP"),
        ),
    ),
    Layout(
        name="hf-phi3",
        summary="gate_up_proj, the activated half first",
        aliases=("hf-phi4mm",),
        model_types=("phi3", "phi4_multimodal"),
        prefixes=MLP,
        tensors=(packed("gate_up_proj.weight", "(branch mlp) embed"), wo("down_proj.weight")),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        sources=(seen("phi3", "Phi3MLP"), seen("phi4_multimodal", "Phi4MultimodalMLP")),
        notes=("phi4mm-audio gives the same name to the other order.",),
    ),
    Layout(
        name="hf-glm",
        summary="gate_up_proj, the activated half first",
        aliases=("hf-glm4",),
        model_types=("glm", "glm4"),
        prefixes=MLP,
        tensors=(packed("gate_up_proj.weight", "(branch mlp) embed"), wo("down_proj.weight")),
        num_branches=2,
        function=Function(rules=(gated("hidden_act"),)),
        sources=(seen("glm", "GlmMLP"), seen("glm4", "Glm4MLP")),
        notes=("transformers' own tensor parallelism gathers the packed output before it chunks.",),
    ),
    Layout(
        name="phi4mm-audio",
        summary="gate_up_proj with the linear half first, in spite of its name",
        prefixes=tuple(
            Prefix(
                template=f"model.embed_tokens_extend.audio_embed.encoder.encoders.{{layer}}.{side}.",
                stack=side,
            )
            for side in ("feed_forward_in", "feed_forward_out")
        ),
        tensors=(
            packed("gate_up_proj.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("gate_up_proj.bias", "(branch mlp)", (1, 0), optional=False),
            wo("down_proj.weight"),
            bias("bo", "down_proj.bias", optional=False),
        ),
        num_branches=2,
        function=Function(rules=(gated("activation"),)),
        outside=(("layer_norm.*", "layer norm"),),
        sources=(seen("phi4_multimodal", "Phi4MultimodalAudioMLP"),),
        notes=(
            "The text model of the same checkpoint stores the activated half first (hf-phi3).",
            "The audio encoder halves this FFN's output before it adds it.",
        ),
    ),
    Layout(
        name="hf-modernbert",
        summary="Wi, the activated half first; the half that the source calls gate is linear",
        model_types=("modernbert",),
        prefixes=encoder("model.layers.{layer}.mlp.", "layers.{layer}.mlp."),
        tensors=(
            packed("Wi.weight", "(branch mlp) embed"),
            packed_bi("Wi.bias", "(branch mlp)"),
            wo("Wo.weight"),
            bias("bo", "Wo.bias"),
        ),
        num_branches=2,
        function=Function(rules=(gated("hidden_activation"),)),
        bias_attribute="mlp_bias",
        sources=(seen("modernbert", "ModernBertMLP"),),
    ),
    Layout(
        name="hf-nemotron",
        summary="up_proj and down_proj, one branch",
        aliases=("hf-arcee",),
        model_types=("nemotron", "arcee"),
        prefixes=MLP,
        tensors=(
            wi("up_proj.weight"),
            wo("down_proj.weight"),
            bi("up_proj.bias"),
            bias("bo", "down_proj.bias"),
        ),
        num_branches=1,
        function=Function(rules=(dense("hidden_act"),), note="Published models say relu2."),
        bias_attribute="mlp_bias",
        sources=(seen("nemotron", "NemotronMLP"), seen("arcee", "ArceeMLP")),
    ),
    Layout(
        name="hf-t5",
        summary="wi and wo as nn.Linear",
        model_types=("t5", "mt5"),
        prefixes=_T5,
        tensors=(wi("wi.weight"), wo("wo.weight")),
        num_branches=1,
        function=Function(rules=(dense("feed_forward_proj"),)),
        sources=(
            seen("t5", "T5DenseActDense"),
            Source(
                project="huggingface/transformers",
                revision="5.24.0",
                file="models/t5/configuration_t5.py",
                symbol="T5Config.__post_init__",
            ),
        ),
        notes=("feed_forward_proj='gelu' stays the erf form; only 'gated-gelu' is rewritten.",),
    ),
    Layout(
        name="hf-t5-gated",
        summary="wi_0 activated, wi_1 linear, wo",
        model_types=("t5", "mt5", "umt5"),
        prefixes=_T5,
        tensors=(wi("wi_0.weight", 0), wi("wi_1.weight", 1), wo("wo.weight")),
        num_branches=2,
        function=Function(rules=(gated("feed_forward_proj", _T5_GATED),)),
        sources=(seen("t5", "T5DenseGatedActDense"),),
        notes=("wo is kept in float32 when a model is loaded in float16.",),
    ),
    Layout(
        name="hf-gpt2",
        summary="c_fc and c_proj as Conv1D, which stores (in, out)",
        model_types=("gpt2",),
        prefixes=decoder("transformer.h.{layer}.mlp.", "h.{layer}.mlp."),
        tensors=(
            wi("c_fc.weight", axes=IN_OUT["wi"]),
            bi("c_fc.bias", optional=False),
            wo("c_proj.weight", axes=IN_OUT["wo"]),
            bias("bo", "c_proj.bias", optional=False),
        ),
        num_branches=1,
        function=Function(rules=(dense("activation_function"),)),
        sources=(seen("gpt2", "GPT2MLP"),),
        notes=("hf-starcoder2 stores the same names as nn.Linear, transposed.",),
    ),
    Layout(
        name="hf-starcoder2",
        summary="c_fc and c_proj as nn.Linear",
        model_types=("starcoder2",),
        prefixes=MLP,
        tensors=(
            wi("c_fc.weight"),
            bi("c_fc.bias"),
            wo("c_proj.weight"),
            bias("bo", "c_proj.bias"),
        ),
        num_branches=1,
        function=Function(rules=(dense("hidden_act"),)),
        bias_attribute="use_bias",
        sources=(seen("starcoder2", "Starcoder2MLP"),),
    ),
    Layout(
        name="hf-gpt-neox",
        summary="dense_h_to_4h and dense_4h_to_h",
        model_types=("gpt_neox",),
        prefixes=decoder("gpt_neox.layers.{layer}.mlp.", "layers.{layer}.mlp."),
        tensors=(
            wi("dense_h_to_4h.weight"),
            bi("dense_h_to_4h.bias", optional=False),
            wo("dense_4h_to_h.weight"),
            bias("bo", "dense_4h_to_h.bias", optional=False),
        ),
        num_branches=1,
        function=Function(rules=(dense("hidden_act"),)),
        sources=(seen("gpt_neox", "GPTNeoXMLP"),),
    ),
    Layout(
        name="hf-bert",
        summary="intermediate.dense and output.dense",
        model_types=("bert", "roberta", "xlm-roberta"),
        prefixes=encoder(
            "bert.encoder.layer.{layer}.",
            "encoder.layer.{layer}.",
            "roberta.encoder.layer.{layer}.",
        ),
        tensors=(
            wi("intermediate.dense.weight"),
            bi("intermediate.dense.bias", optional=False),
            wo("output.dense.weight"),
            bias("bo", "output.dense.bias", optional=False),
        ),
        num_branches=1,
        function=Function(rules=(dense("hidden_act"),)),
        claims=("intermediate.*", "output.dense.*"),
        sources=(seen("bert", "BertIntermediate"), seen("bert", "BertOutput")),
        notes=("hidden_act='gelu' is the erf form.",),
    ),
    Layout(
        name="hf-opt",
        summary="fc1 and fc2 beside the attention",
        model_types=("opt",),
        prefixes=decoder("model.decoder.layers.{layer}.", "decoder.layers.{layer}."),
        tensors=(
            wi("fc1.weight"),
            bi("fc1.bias"),
            wo("fc2.weight"),
            bias("bo", "fc2.bias"),
        ),
        num_branches=1,
        function=Function(rules=(dense("activation_function"),)),
        bias_attribute="enable_bias",
        claims=("fc1.*", "fc2.*"),
        sources=(seen("opt", "OPTDecoderLayer"),),
    ),
)

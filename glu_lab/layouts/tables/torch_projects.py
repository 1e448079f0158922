"""Layouts of PyTorch libraries outside of transformers."""

from glu_lab.layouts.layout import Function, Layout, Source
from glu_lab.layouts.tables.activations import dense, gated
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

#: TransformerLens, utilities/activation_functions.py::SUPPORTED_ACTIVATIONS.
_LENS = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_LENS_SOURCE = {"project": "TransformerLensOrg/TransformerLens", "revision": "4cd36aa (2026-07-22)"}

TORCH_LAYOUTS = (
    Layout(
        name="harvard",
        summary="w_1 and w_2 of the Annotated Transformer, as nn.Linear",
        prefixes=(
            *encoder("encoder.layers.{layer}.feed_forward."),
            *decoder("decoder.layers.{layer}.feed_forward."),
        ),
        tensors=(
            wi("w_1.weight"),
            bi("w_1.bias", optional=False),
            wo("w_2.weight"),
            bias("bo", "w_2.bias", optional=False),
        ),
        num_branches=1,
        function=Function(variant="relu"),
        sources=(
            Source(
                project="harvardnlp/annotated-transformer",
                revision="debc9fd (2022-05-02)",
                file="the_annotated_transformer.py",
                symbol="PositionwiseFeedForward",
            ),
        ),
    ),
    Layout(
        name="gpt-neox",
        summary="linear1 with both branches, the linear half first (value first); one file a rank",
        prefixes=decoder("sequential.{layer}.mlp.", first=2),
        tensors=(
            packed("linear1.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("linear1.bias", "(branch mlp)", (1, 0)),
            wo("linear2.weight"),
            bias("bo", "linear2.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(
                gated(
                    "activation",
                    {
                        "geglu": "gelu_erf",
                        "reglu": "relu",
                        "bilinear": "linear",
                        "swiglu": "silu",
                        "glu": "sigmoid",
                    },
                ),
            )
        ),
        bias_attribute="use_bias_in_mlp",
        per_rank=True,
        sources=(
            Source(
                project="EleutherAI/gpt-neox",
                revision="ea7aefd (2026-05-19)",
                file="megatron/model/transformer.py",
                symbol="Gated_Activation",
            ),
            Source(
                project="EleutherAI/gpt-neox",
                revision="ea7aefd (2026-05-19)",
                file="tools/ckpts/convert_hf_llama_to_neox.py",
                symbol="torch.cat([w3, w1])",
            ),
        ),
        notes=(
            "Layer 0 is number 2 of the pipeline.",
            "Each rank packs its own halves: [linear_r; activated_r].",
            "The ungated gelu is the tanh form under bias_gelu_fusion and the erf form without.",
        ),
    ),
    Layout(
        name="x-transformers",
        summary="ff.0.proj with both branches, the linear half first (value first)",
        prefixes=(
            *decoder("attn_layers.layers.{layer}.1.", first=1, step=2),
            *decoder("net.attn_layers.layers.{layer}.1.", first=1, step=2),
        ),
        tensors=(
            packed("ff.0.proj.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("ff.0.proj.bias", "(branch mlp)", (1, 0), optional=False),
            wo("ff.2.weight"),
            bias("bo", "ff.2.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(gated("activation", {"gelu": "gelu_erf", "swish": "silu", "relu2": "relu2"}),),
            note="swish=True is SiLU, relu_squared=True is relu2, neither is the erf GELU.",
        ),
        bias_attribute="no_bias",
        refused=(("ff.0.mult_bias", "a learned factor on the product is no term of a Spec"),),
        sources=(
            Source(
                project="lucidrains/x-transformers",
                revision="9252ed7 (2026-08-21)",
                file="x_transformers/x_transformers.py",
                symbol="GLU, FeedForward",
            ),
        ),
        notes=(
            "no_bias drops the output bias alone; the packed projection always has one.",
            "Layers alternate attention and FFN; with cross-attention the numbers are others.",
            "With a norm after the activation the output projection is ff.3.",
        ),
    ),
    Layout(
        name="flash-attn",
        summary="fc1 with both branches, the linear half first (value first), fc2 down",
        prefixes=decoder("transformer.layers.{layer}.mlp."),
        tensors=(
            packed("fc1.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("fc1.bias", "(branch mlp)", (1, 0)),
            wo("fc2.weight"),
            bias("bo", "fc2.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(
                gated(
                    "activation_function", {"glu": "sigmoid", "swiglu": "silu", "geglu": "gelu_erf"}
                ),
            )
        ),
        biases="each",
        sources=(
            Source(
                project="Dao-AILab/flash-attention",
                revision="0251105 (2026-08-15)",
                file="flash_attn/modules/mlp.py",
                symbol="GatedMlp",
            ),
        ),
        notes=("torch's F.glu, too, gates with the second half.",),
    ),
    Layout(
        name="diffusers",
        summary="net.0.proj with both branches, the linear half first (value first)",
        prefixes=decoder("transformer_blocks.{layer}.ff."),
        tensors=(
            packed("net.0.proj.weight", "(branch mlp) embed", (1, 0)),
            packed_bi("net.0.proj.bias", "(branch mlp)", (1, 0)),
            wo("net.2.weight"),
            bias("bo", "net.2.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(gated("activation_fn", {"geglu": "gelu_erf", "swiglu": "silu"}),),
            note="On an NPU the same class evaluates geglu in the tanh form.",
        ),
        sources=(
            Source(
                project="huggingface/diffusers",
                revision="58eb52c (2026-08-23)",
                file="src/diffusers/models/activations.py",
                symbol="GEGLU, SwiGLU",
            ),
        ),
    ),
    Layout(
        name="torchtitan-w13",
        summary="w13 (F, 2, D): [:, 0] activated, [:, 1] linear; w2 down",
        prefixes=decoder("layers.{layer}.feed_forward."),
        tensors=(packed("w13", "mlp branch embed"), wo("w2.weight")),
        num_branches=2,
        function=Function(variant="swiglu"),
        sources=(
            Source(
                project="pytorch/torchtitan",
                revision="b5bcd76 (2026-08-21)",
                file="torchtitan/overrides/fused_swiglu.py",
                symbol="FusedSwiGLU",
            ),
        ),
        notes=("Checkpoints are saved with the names and shapes of llama-pth.",),
    ),
    Layout(
        name="xformers-w12",
        summary="w12 with both branches, the activated half first; w3 down",
        aliases=("dinov2-swiglu", "neobert"),
        prefixes=encoder("blocks.{layer}.mlp.", "transformer_encoder.{layer}.ffn."),
        tensors=(
            packed("w12.weight", "(branch mlp) embed"),
            packed_bi("w12.bias", "(branch mlp)"),
            wo("w3.weight"),
            bias("bo", "w3.bias"),
        ),
        num_branches=2,
        function=Function(variant="swiglu"),
        sources=(
            Source(
                project="facebookresearch/xformers",
                revision="ca6d2aa (2026-04-21)",
                file="xformers/ops/swiglu_op.py",
                symbol="SwiGLU",
            ),
        ),
        notes=("w3 is the down projection here and the linear branch in llama-pth.",),
    ),
    Layout(
        name="transformerlens",
        summary="W_gate activated, W_in linear, W_out down, (in, out); b_in after the product",
        prefixes=decoder("blocks.{layer}.mlp."),
        tensors=(
            wi("W_gate", 0, IN_OUT["wi"]),
            wi("W_in", 1, IN_OUT["wi"]),
            wo("W_out", IN_OUT["wo"]),
            bias("bp", "b_in", optional=False),
            bias("bo", "b_out", optional=False),
        ),
        num_branches=2,
        function=Function(rules=(gated("act_fn", _LENS),)),
        sources=(
            Source(
                **_LENS_SOURCE,
                file="transformer_lens/components/mlps/gated_mlp.py",
                symbol="GatedMLP",
            ),
        ),
        notes=("b_in is a bias of the product, not of a branch; it is zero when freshly made.",),
    ),
    Layout(
        name="transformerlens-dense",
        summary="W_in and W_out, (in, out), with biases",
        prefixes=decoder("blocks.{layer}.mlp."),
        tensors=(
            wi("W_in", axes=IN_OUT["wi"]),
            bi("b_in", optional=False),
            wo("W_out", IN_OUT["wo"]),
            bias("bo", "b_out", optional=False),
        ),
        num_branches=1,
        function=Function(rules=(dense("act_fn", _LENS),)),
        sources=(
            Source(**_LENS_SOURCE, file="transformer_lens/components/mlps/mlp.py", symbol="MLP"),
        ),
    ),
)

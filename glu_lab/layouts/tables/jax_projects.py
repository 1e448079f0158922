"""Layouts of JAX projects, and the canonical form itself."""

import dataclasses

from glu_lab.layouts.layout import Function, Layout, Prefix, Rule, Source, Tensor
from glu_lab.layouts.tables.activations import gated, listed
from glu_lab.layouts.tables.rows import IN_OUT, bias, decoder, encoder, wo


def _listed_wi(kernel: str, bias_name: str, axes: str, bias_axes: str) -> tuple[Tensor, ...]:
    """``wi`` for one branch, ``wi_0``, ``wi_1``, … for several."""
    several = (
        Tensor(name="wi_{branch}" + kernel, holds="wi", axes=axes, only="several"),
        Tensor(
            name="wi_{branch}" + bias_name,
            holds="bi",
            axes=bias_axes,
            only="several",
            optional=True,
        ),
    )
    one = (
        dataclasses.replace(row, name=row.name.replace("_{branch}", ""), only="one", branches=(0,))
        for row in several
    )
    return (*one, *several)


def _scanned(layout: Layout, *, suffix: str, prefixes: tuple[Prefix, ...], seen: Source) -> Layout:
    """The layout with a layer axis at position 1 of every tensor, where Flax's scan puts it."""

    def change(row: Tensor) -> Tensor:
        first, *rest = row.axes.split(" ")
        return dataclasses.replace(row, axes=" ".join((first, "layer", *rest)))

    return dataclasses.replace(
        layout,
        name=layout.name + suffix,
        aliases=(),
        summary=f"{layout.summary}; layers stacked at axis 1",
        prefixes=prefixes,
        tensors=tuple(change(row) for row in layout.tensors),
        sources=(*layout.sources, seen),
    )


_T5X = Layout(
    name="t5x",
    summary="kernels (in, out): wi, or wi_0, wi_1, … in the order of the activations; wo",
    prefixes=(
        *encoder("encoder/layers_{layer}/mlp/", "target/encoder/layers_{layer}/mlp/"),
        *decoder("decoder/layers_{layer}/mlp/", "target/decoder/layers_{layer}/mlp/"),
    ),
    tensors=tuple(
        row
        for row in (
            *_listed_wi("/kernel", "/bias", IN_OUT["wi"], "mlp"),
            wo("wo/kernel", IN_OUT["wo"]),
        )
        if row.holds != "bi"
    ),
    function=Function(rules=(listed("mlp_activations"),), each_branch=True),
    sources=(
        Source(
            project="google-research/t5x",
            revision="cc342d4 (2026-04-21)",
            file="t5x/examples/t5/layers.py",
            symbol="MlpBlock",
        ),
    ),
    notes=("'gelu' is jax.nn.gelu, whose default is the tanh form.",),
)

_MAXTEXT_SOURCE = Source(
    project="AI-Hypercomputer/maxtext",
    revision="e591f30 (2026-08-22)",
    file="src/maxtext/layers/linears.py",
    symbol="MlpBlock",
)
_MAXTEXT = Layout(
    name="maxtext",
    summary="kernels (in, out): wi, or wi_0, wi_1 in the order of mlp_activations; wo",
    prefixes=decoder("params/decoder/layers_{layer}/mlp/", "decoder/layers_{layer}/mlp/"),
    tensors=(
        *_listed_wi("/kernel", "/bias", IN_OUT["wi"], "mlp"),
        wo("wo/kernel", IN_OUT["wo"]),
        bias("bo", "wo/bias"),
    ),
    function=Function(rules=(listed("mlp_activations"),), each_branch=True),
    outside=(("mlp_layer_norm/*", "norm"),),
    sources=(_MAXTEXT_SOURCE,),
    notes=(
        "'gelu' is flax.linen.gelu, whose default is the tanh form.",
        "gpt-oss is spelt ['sigmoid', 'linear'] there and is not of this layout.",
    ),
)
_MAXTEXT_FUSED = dataclasses.replace(
    _MAXTEXT,
    name="maxtext-fused",
    summary="wi (embed, num_activations, mlp) with fused_mlp; wo",
    tensors=(
        Tensor(name="wi/kernel", holds="wi", axes="embed branch mlp"),
        Tensor(name="wi/bias", holds="bi", axes="branch mlp", optional=True),
        wo("wo/kernel", IN_OUT["wo"]),
        bias("bo", "wo/bias"),
    ),
    notes=(
        "The axis num_activations must not be sharded.",
        "The fused path skips the cast to float32 before the activations.",
    ),
)
_SCANNED_MAXTEXT = decoder("params/decoder/layers/mlp/", "decoder/layers/mlp/")
_MAXTEXT_SCAN = Source(
    project="AI-Hypercomputer/maxtext",
    revision="e591f30 (2026-08-22)",
    file="src/maxtext/configs/base.yml",
    symbol="param_scan_axis: 1",
)

_GEMMA = Layout(
    name="gemma-einsum",
    summary="gating_einsum (2, D, F): [0] activated, [1] linear; linear (F, D)",
    prefixes=decoder("layer_{layer}/mlp/", "transformer/layer_{layer}/mlp/"),
    tensors=(
        Tensor(name="gating_einsum", holds="wi", axes="branch embed mlp", branches=(0, 1)),
        wo("linear", IN_OUT["wo"]),
    ),
    num_branches=2,
    function=Function(
        variant="geglu_tanh", note="flax.linen.gelu with its default, the tanh form."
    ),
    sources=(
        Source(
            project="google-deepmind/gemma",
            revision="7691fd4 (2026-07-24)",
            file="gemma/gm/nn/_modules.py",
            symbol="FeedForward",
        ),
    ),
    notes=("transpose_gating_einsum=True stores (2, F, D) under the same name.",),
)

_TE_NAMES = {
    "gelu": "gelu_tanh",
    "silu": "silu",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
    "squared_relu": "relu2",
}
#: A list's items joined by ", ". One that starts with "linear" is reversed by the module.
_TE = (
    *((f"{name}, linear", f"{act}*linear") for name, act in _TE_NAMES.items()),
    *((f"linear, {name}", f"{act}*linear") for name, act in _TE_NAMES.items()),
    *_TE_NAMES.items(),
)

JAX_LAYOUTS = (
    Layout(
        name="glu-lab",
        summary="the canonical form: wi (D, N, F), wo (F, D), biases by branch; layers outermost",
        prefixes=(*decoder("decoder/layers/ffn/"), *encoder("encoder/layers/ffn/")),
        tensors=(
            Tensor(name="wi", holds="wi", axes="layer? expert? embed branch mlp"),
            Tensor(name="wo", holds="wo", axes="layer? expert? mlp embed"),
            Tensor(name="bi_{branch}", holds="bi", axes="layer? expert? mlp", optional=True),
            Tensor(name="bp", holds="bp", axes="layer? expert? mlp", optional=True),
            Tensor(name="bo", holds="bo", axes="layer? expert? embed", optional=True),
            Tensor(name="phi_{branch}_{scalar}", holds="phi", axes="layer? expert?"),
        ),
        biases="each",
        sources=(Source(project="glu_lab", file="glu_lab/layers/ffn.py", symbol="parameters"),),
    ),
    _T5X,
    _scanned(
        _T5X,
        suffix="-scanned",
        prefixes=(
            *encoder("encoder/encoder/mlp/", "target/encoder/encoder/mlp/"),
            *decoder("decoder/decoder/mlp/", "target/decoder/decoder/mlp/"),
        ),
        seen=Source(
            project="google-research/t5x",
            revision="cc342d4 (2026-04-21)",
            file="t5x/examples/scalable_t5/network.py",
            symbol="param_scan_axis",
        ),
    ),
    Layout(
        name="flaxformer-fused",
        summary="wi_fused (embed, activations, mlp) with fuse_kernels; wo",
        prefixes=(
            *encoder("encoder/layers_{layer}/mlp/", "target/encoder/layers_{layer}/mlp/"),
            *decoder("decoder/layers_{layer}/mlp/", "target/decoder/layers_{layer}/mlp/"),
        ),
        tensors=(
            Tensor(name="wi_fused/kernel", holds="wi", axes="embed branch mlp"),
            Tensor(name="wi_fused/bias", holds="bi", axes="branch mlp", optional=True),
            wo("wo/kernel", IN_OUT["wo"]),
            bias("bo", "wo/bias"),
        ),
        function=Function(rules=(listed("activations"),), each_branch=True),
        bias_attribute="use_bias",
        sources=(
            Source(
                project="google/flaxformer",
                revision="399ea3a (2024-04-12)",
                file="flaxformer/components/dense.py",
                symbol="MlpBlock",
            ),
        ),
        notes=("Without fuse_kernels the tensors are those of t5x.",),
    ),
    _scanned(
        dataclasses.replace(_MAXTEXT, name="maxtext"),
        suffix="",
        prefixes=_SCANNED_MAXTEXT,
        seen=_MAXTEXT_SCAN,
    ),
    dataclasses.replace(_MAXTEXT, name="maxtext-unscanned"),
    _scanned(_MAXTEXT_FUSED, suffix="", prefixes=_SCANNED_MAXTEXT, seen=_MAXTEXT_SCAN),
    dataclasses.replace(_MAXTEXT_FUSED, name="maxtext-fused-unscanned"),
    Layout(
        name="maxtext-moe",
        summary="wi_0 activated, wi_1 linear, wo of all experts; layers stacked at axis 1",
        prefixes=decoder("params/decoder/layers/MoeBlock_0/", "decoder/layers/MoeBlock_0/"),
        tensors=(
            Tensor(name="wi_0", holds="wi", axes="expert layer embed mlp", branches=(0,)),
            Tensor(name="wi_1", holds="wi", axes="expert layer embed mlp", branches=(1,)),
            Tensor(name="wo", holds="wo", axes="expert layer mlp embed"),
        ),
        num_branches=2,
        function=Function(
            rules=(gated("mlp_activations.0", {"silu": "silu", "gelu": "gelu_tanh"}),)
        ),
        outside=(("gate/*", "router"),),
        sources=(
            Source(
                project="AI-Hypercomputer/maxtext",
                revision="e591f30 (2026-08-22)",
                file="src/maxtext/layers/moe.py",
                symbol="RoutedMoE",
            ),
        ),
    ),
    _GEMMA,
    dataclasses.replace(
        _GEMMA,
        name="gemma-einsum-transposed",
        summary="gating_einsum (2, F, D): [0] activated, [1] linear; linear (F, D)",
        tensors=(
            Tensor(name="gating_einsum", holds="wi", axes="branch mlp embed", branches=(0, 1)),
            wo("linear", IN_OUT["wo"]),
        ),
        notes=("transpose_gating_einsum=False stores (2, D, F) under the same name.",),
    ),
    Layout(
        name="te-jax",
        summary="wi_kernel (in, activations, F), the activated one always in slot 0; wo_kernel",
        prefixes=(
            *encoder("encoder/layers_{layer}/mlp/"),
            *decoder("decoder/layers_{layer}/mlp/"),
        ),
        tensors=(
            Tensor(name="wi_kernel", holds="wi", axes="embed branch mlp"),
            Tensor(name="wi_bias", holds="bi", axes="branch mlp", optional=True),
            wo("wo_kernel", IN_OUT["wo"]),
            bias("bo", "wo_bias"),
        ),
        function=Function(rules=(Rule(attribute="mlp_activations", values=_TE),)),
        bias_attribute="use_bias",
        outside=(("scale", "norm"), ("ln_bias", "norm")),
        sources=(
            Source(
                project="NVIDIA/TransformerEngine",
                revision="d0067d0 (2026-08-22)",
                file="transformer_engine/jax/flax/module.py",
                symbol="LayerNormMLP",
            ),
        ),
        notes=("activations that start with 'linear' are reversed, so slot 0 is activated.",),
    ),
)

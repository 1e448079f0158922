"""Layouts of GGUF files. Shapes are NumPy's, the reverse of the order in the file's header."""

from glu_lab.layouts.layout import Function, Layout, Source
from glu_lab.layouts.tables.activations import dense, gated
from glu_lab.layouts.tables.rows import bi, bias, decoder, encoder, packed, packed_bi, wi, wo

_NAMES = Source(
    project="ggml-org/llama.cpp",
    revision="gguf 0.19.0",
    file="gguf-py/gguf/constants.py",
    symbol="TENSOR_NAMES",
)
_GRAPH = Source(
    project="ggml-org/llama.cpp",
    revision="2026-08",
    file="src/llama-graph.cpp",
    symbol="llm_graph_context::build_ffn",
)

_SILU: tuple[str, ...] = (
    "llama",
    "qwen2",
    "qwen3",
    "internlm2",
    "exaone",
    "exaone4",
    "smollm3",
    "olmo2",
    "stablelm",
    "refact",
    "jais",
    "nomic-bert",
)
_GELU_TANH: tuple[str, ...] = ("gemma", "gemma2", "gemma3")
_GATED = {**dict.fromkeys(_SILU, "silu"), **dict.fromkeys(_GELU_TANH, "gelu_tanh")}
_PACKED = {
    "phi3": "silu",
    "glm4": "silu",
    "chatglm": "silu",
    "plamo2": "silu",
    "neo-bert": "silu",
}
_DENSE = {"gpt2": "gelu_tanh", "starcoder2": "gelu_tanh", "nemotron": "relu2", "arcee": "relu2"}
_ARCHITECTURE = "general.architecture"
#: Architectures whose weights were trained with the erf form and are evaluated with the tanh form
#: are left out: neither is theirs alone.
_DISPUTED = (
    "ggml's GELU is the tanh form. Where a model was trained with the erf form (bert, gptneox, "
    "modern-bert, …) file and runtime differ; state the variant."
)
_PREFIXES = (
    *decoder("blk.{layer}.", "dec.blk.{layer}."),
    *encoder("enc.blk.{layer}."),
)
_OUTSIDE = (
    ("ffn_norm.*", "norm"),
    ("ffn_post_norm*", "norm"),
    ("ffn_gate_inp*", "router"),
    ("ffn_*_exps.*", "experts, FFNs of their own (gguf-experts)"),
    ("ffn_*_shexp.*", "shared expert, an FFN of its own"),
)

_REFUSED = (("ffn_sub_norm.*", "a norm inside the FFN is no term of a Spec"),)

GGUF_LAYOUTS = (
    Layout(
        name="gguf",
        summary="ffn_gate activated, ffn_up linear, ffn_down",
        model_types=tuple(_GATED),
        prefixes=_PREFIXES,
        tensors=(
            wi("ffn_gate.weight", 0),
            wi("ffn_up.weight", 1),
            wo("ffn_down.weight"),
            bi("ffn_gate.bias", 0),
            bi("ffn_up.bias", 1),
            bias("bo", "ffn_down.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(gated(_ARCHITECTURE, _GATED),), also=("geglu_erf",), note=_DISPUTED
        ),
        claims=("ffn_*",),
        outside=_OUTSIDE,
        refused=_REFUSED,
        sources=(_NAMES, _GRAPH),
    ),
    Layout(
        name="gguf-packed",
        summary="ffn_up with both branches, the activated half first, and no ffn_gate",
        model_types=tuple(_PACKED),
        prefixes=_PREFIXES,
        tensors=(
            packed("ffn_up.weight", "(branch mlp) embed"),
            packed_bi("ffn_up.bias", "(branch mlp)"),
            wo("ffn_down.weight"),
            bias("bo", "ffn_down.bias"),
        ),
        num_branches=2,
        function=Function(
            rules=(gated(_ARCHITECTURE, _PACKED),),
            also=("geglu_erf", "geglu_tanh"),
            note=_DISPUTED,
        ),
        claims=("ffn_*",),
        outside=_OUTSIDE,
        refused=_REFUSED,
        sources=(
            _NAMES,
            Source(
                project="ggml-org/llama.cpp",
                revision="2026-08",
                file="src/models/phi3.cpp, glm4.cpp, chatglm.cpp",
                symbol="LLM_FFN_SWIGLU, LLM_FFN_SEQ",
            ),
        ),
        notes=("ggml's gated operations have a flag that swaps the halves; these do not set it.",),
    ),
    Layout(
        name="gguf-dense",
        summary="ffn_up and ffn_down, one branch",
        model_types=tuple(_DENSE),
        prefixes=_PREFIXES,
        tensors=(
            wi("ffn_up.weight"),
            bi("ffn_up.bias"),
            wo("ffn_down.weight"),
            bias("bo", "ffn_down.bias"),
        ),
        num_branches=1,
        function=Function(
            rules=(dense(_ARCHITECTURE, _DENSE),), also=("gelu_erf", "relu"), note=_DISPUTED
        ),
        claims=("ffn_*",),
        outside=_OUTSIDE,
        refused=_REFUSED,
        sources=(_NAMES, _GRAPH),
    ),
)

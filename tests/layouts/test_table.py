"""The table itself: its names, and its rows against what other projects say of theirs."""

import re

import pytest

from glu_lab.errors import LayoutError
from glu_lab.layouts import LAYOUTS, Prefix, Tensor, find, layouts_of_model_type
from glu_lab.layouts.axes import Span, access, parse, present
from glu_lab.layouts.names import name_of
from tests.layouts import rows

#: Conventions that a user asks for by these names.
ASKED = """
    hf-llama hf-mistral hf-qwen2 hf-smollm llama-pth internlm2 qwen1 hf-t5 hf-t5-gated t5x
    flaxformer-fused maxtext maxtext-fused hf-gpt2 hf-bert hf-gemma gemma-einsum
    gemma-einsum-transposed hf-phi3 hf-glm phi4mm-audio hf-modernbert hf-nemotron gpt-neox
    x-transformers olmo1 dbrx mixtral hf-gpt-oss torchtitan-w13 xformers-w12 te-jax megatron
    megatron-dist megatron-interleave-1 megatron-interleave-32 megatron-interleave-8 gguf
    gguf-packed exaone jais refact nomic-bert llada transformerlens harvard glu-lab
""".split()


@pytest.mark.parametrize("name", ASKED)
def test_a_layout_is_found_by_name(name):
    layout = find(name)
    assert layout.name == name or name in layout.aliases


def test_a_family_needs_its_width():
    with pytest.raises(LayoutError, match="write the width of the blocks as a number"):
        find("megatron-interleave-k")
    with pytest.raises(LayoutError, match="joins no branches in one dimension"):
        find("hf-llama-interleave-4")
    assert find("hf-phi3-interleave-4").tensors[0].interleave == 4


def test_names_and_aliases_are_unique():
    names = [name for row in LAYOUTS.values() for name in (row.name, *row.aliases)]
    assert len(set(names)) == len(names)
    assert all(row.name == name for name, row in LAYOUTS.items())


@pytest.mark.parametrize("name", rows.NAMES)
def test_a_row_says_where_it_was_seen(name):
    row = LAYOUTS[name]
    assert row.summary and row.sources
    for source in row.sources:
        assert source.project and source.file and source.symbol


def test_model_types_lead_to_their_layouts():
    assert [row.name for row in layouts_of_model_type("modernbert")] == ["hf-modernbert"]
    assert {row.name for row in layouts_of_model_type("t5")} == {"hf-t5", "hf-t5-gated"}
    assert layouts_of_model_type("gemma3n_text") == ()


def test_layers_are_numbered_as_in_the_names():
    (neox,) = find("gpt-neox").prefixes
    assert neox.at(0) == "sequential.2.mlp." and neox.at(5) == "sequential.7.mlp."
    odd = Prefix(template="layers.{layer}.1.", first=1, step=2)
    assert [odd.at(i) for i in range(3)] == ["layers.1.1.", "layers.3.1.", "layers.5.1."]


def test_tensor_names_of_gguf_files():
    gguf = pytest.importorskip("gguf")
    names = gguf.TENSOR_NAMES
    tensor = gguf.MODEL_TENSOR
    ours = {row.name for name in ("gguf", "gguf-experts") for row in find(name).tensors}
    for kind in (
        tensor.FFN_GATE,
        tensor.FFN_UP,
        tensor.FFN_DOWN,
        tensor.FFN_GATE_EXP,
        tensor.FFN_UP_EXP,
        tensor.FFN_DOWN_EXP,
    ):
        assert names[kind].removeprefix("blk.{bid}.") + ".weight" in ours
    known = set(gguf.MODEL_ARCH_NAMES.values())
    for name in ("gguf", "gguf-packed", "gguf-dense", "gguf-experts"):
        for rule in find(name).function.rules:
            assert {value for value, _ in rule.values} <= known


#: Packed rows land in FFN_UP; branches of a separate row in FFN_GATE (the activated) and FFN_UP.
MAPPED = """
    hf-llama hf-gemma hf-phi3 hf-modernbert hf-nemotron hf-gpt2 hf-starcoder2 hf-gpt-neox hf-bert
    llama-pth internlm2 qwen1 exaone jais nomic-bert llada chatglm xformers-w12 dbrx
""".split()


@pytest.mark.parametrize("name", MAPPED)
def test_gate_up_and_down_are_those_of_llama_cpps_table(name):
    """An independent table of which name is the activated branch."""
    gguf = pytest.importorskip("gguf")
    layout = find(name)
    n = layout.num_branches
    table = {}
    for kind, templates in {
        **gguf.TensorNameMap.mappings_cfg,
        **gguf.TensorNameMap.block_mappings_cfg,
    }.items():
        for template in templates:
            table.setdefault(template, set()).add(kind.name)
    checked = 0
    for prefix in layout.prefixes:
        for row in layout.rows(n):
            if row.holds not in ("wi", "wo"):
                continue
            stored = name_of(row, prefix, layer=7).replace(".7.", ".{bid}.", 1)
            kinds = table.get(re.sub(r"\.weight$", "", stored), set())
            kinds = {kind.removesuffix("_EXP") for kind in kinds if kind.startswith("FFN_")}
            if not kinds:
                continue
            if row.holds == "wo":
                want = "FFN_DOWN"
            else:
                want = "FFN_GATE" if row.branches == (0,) and n == 2 else "FFN_UP"
            assert kinds == {want}, stored
            checked += 1
    assert checked >= (n if any(len(r.branches) < 2 for r in layout.tensors) else 1)


def test_axes_read_as_they_are_written():
    assert parse("layer? (branch mlp) embed") == (
        (("layer",), True),
        (("branch", "mlp"), False),
        (("embed",), False),
    )
    assert present("layer? expert? mlp", frozenset({"expert"})) == (("expert",), ("mlp",))


@pytest.mark.parametrize("interleave", [1, 2, 3, 6])
@pytest.mark.parametrize("part", [(0, 6), (1, 5), (2, 3), (3, 6)])
def test_a_span_is_the_loop_over_its_indices(interleave, part):
    """Positions of channels in (mlp branch) of width k, as a slice or as an array."""
    got = access(
        (("mlp", "branch"),),
        {"mlp": 6, "branch": 2},
        block_axes=("mlp",),
        at={"branch": 1},
        mlp=part,
        interleave=interleave,
    )
    (span,) = got.index
    assert isinstance(span, Span)
    positions = span.positions()
    if isinstance(positions, slice):
        positions = list(range(12))[positions]
    want = [(i // interleave) * 2 * interleave + interleave + i % interleave for i in range(*part)]
    assert list(positions) == want


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(name="w{branch}", axes="(branch mlp) embed"), "'branch' both in its name"),
        (dict(name="w", axes="mlp embed"), "say which branch it holds"),
        (dict(name="w", holds="wo", axes="mlp embed", branches=(0,)), "there is one 'wo'"),
        (dict(name="phi", holds="phi", axes=""), "its name needs {scalar}"),
        (dict(name="w", axes="mlp? embed", branches=(0,)), "only layer and expert may be optional"),
    ],
)
def test_rows_that_describe_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Tensor(**{"holds": "wi", **fields})

"""Which layouts remain for a file's names and shapes, and what these cannot decide."""

import dataclasses

import numpy as np
import pytest

from glu_lab.layouts import LAYOUTS, find, from_canonical, match, plan
from glu_lab.spec import variant
from tests.layouts import rows

D, F = 4, 6


def shapes(name, text="swiglu", d_model=D, d_ff=F, bias=False, leading=("layer",), prefix=None):
    spec = variant(text, d_model=d_model, d_ff=d_ff, bias=bias)
    params = rows.random_params(spec, leading)
    tensors = from_canonical(find(name), params, spec, leading=leading, prefix=prefix)
    return {name: tensor.shape for name, tensor in tensors.items()}


def found(given):
    matches = match(given)
    return {c.layout.name: c for c in matches.candidates}, matches


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_row_recognises_its_own_tensors(name):
    layout = LAYOUTS[name]
    for spec in rows.specs(layout, D, F * rows.width(layout)):
        leading = rows.leadings(layout)[0 if name == "glu-lab" else -1]
        params = rows.random_params(spec, leading)
        tensors = from_canonical(layout, params, spec, leading=leading)
        candidates, matches = found({n: t.shape for n, t in tensors.items()})
        assert name in candidates, matches.rejected.get(name)
        mine = candidates[name]
        assert mine.known and mine.sizes["embed"] == D
        assert mine.sizes["branch"] == spec.num_branches
        if name != "dbrx":
            assert mine.sizes["mlp"] == spec.d_ff
            assert mine.ffns == np.prod([rows.SIZES[axis] for axis in leading], dtype=int)


def test_gate_up_and_down_leave_the_function_open():
    candidates, matches = found(shapes("hf-llama"))
    assert set(candidates) == {"hf-llama", "hf-gemma"}
    assert candidates["hf-llama"].ffns == 3
    (line,) = matches.undecided
    assert "gelu_erf*linear, gelu_tanh*linear" in line
    assert "config attribute hidden_act or hidden_activation decides" in line
    # One branch of the same names would leave gate_proj over.
    assert "gate_proj" in matches.rejected["hf-nemotron"]


def test_a_packed_tensor_leaves_the_order_of_its_halves_open():
    """A user's row that stores ff_proj gate first is as possible as olmo1's, up first."""
    swapped = dataclasses.replace(
        LAYOUTS["olmo1"],
        name="swapped",
        aliases=(),
        tensors=tuple(
            dataclasses.replace(row, branches=tuple(reversed(row.branches)))
            for row in LAYOUTS["olmo1"].tensors
        ),
    )
    matches = match(shapes("olmo1"), {**LAYOUTS, "swapped": swapped})
    assert {c.layout.name for c in matches.candidates} == {"olmo1", "swapped"}
    assert "branch order of 'ff_proj.weight': up, gate (olmo1) or gate, up (swapped)" in (
        matches.undecided
    )
    # One name, two orders: the biases that one of them always has tell these two apart.
    assert set(found(shapes("phi4mm-audio", bias=True, leading=()))[0]) == {"phi4mm-audio"}
    assert set(found(shapes("hf-phi3", leading=()))[0]) == {"hf-phi3", "hf-glm"}


def test_packed_and_interleaved_rows_are_told_apart_by_no_shape():
    candidates, matches = found(shapes("megatron", d_ff=32))
    assert set(candidates) == {
        "megatron",
        "megatron-dist",
        "megatron-interleave-1",
        "megatron-interleave-32",
    }
    text = "\n".join(matches.undecided)
    assert "concatenated (megatron, megatron-dist) or interleaved, width 1" in text
    assert "a whole model or one rank's part (megatron, megatron-interleave-1" in text
    # 33 channels are no blocks of 32.
    candidates, matches = found(shapes("megatron", d_ff=33))
    assert "megatron-interleave-32" not in candidates
    assert "no multiple of its blocks of 32" in matches.rejected["megatron-interleave-32"]


def test_a_square_matrix_leaves_its_orientation_open():
    square, matches = found(shapes("gemma-einsum", "geglu_tanh", d_ff=D))
    assert set(square) == {"gemma-einsum", "gemma-einsum-transposed"}
    assert matches.undecided == (
        "orientation of 'gating_einsum': in,out (gemma-einsum) or out,in (gemma-einsum-transposed)",
    )
    candidates, matches = found(shapes("gemma-einsum", "geglu_tanh"))
    assert set(candidates) == {"gemma-einsum"} and matches.undecided == ()
    square, matches = found(shapes("hf-gpt2", "gelu_tanh", d_ff=D, bias=True, leading=()))
    assert set(square) == {"hf-gpt2", "hf-starcoder2"}
    assert any("orientation of 'c_fc.weight': in,out (hf-gpt2)" in u for u in matches.undecided)


def test_one_name_for_packed_and_for_dense_is_decided_by_the_width():
    assert set(found(shapes("gguf-packed"))[0]) == {"gguf-packed"}
    assert set(found(shapes("gguf-dense", "relu2"))[0]) == {"gguf-dense"}
    assert set(found(shapes("gguf"))[0]) == {"gguf"}


def test_w1_w2_w3_mean_something_else_in_each_family():
    assert set(found(shapes("llama-pth"))[0]) == {"llama-pth", "internlm2"}
    assert set(found(shapes("qwen1"))[0]) == {"qwen1"}
    candidates, _ = found(shapes("mixtral", leading=("layer", "expert")))
    assert set(candidates) == {"mixtral"} and candidates["mixtral"].ffns == 6


def test_an_ffn_at_an_unknown_place_is_found_and_can_be_converted():
    spec = variant("swiglu", d_model=D, d_ff=F)
    from glu_lab.layouts import Prefix

    there = Prefix(template="tower.blocks.{layer}.sub.ffn.", stack="decoder")
    params = rows.random_params(spec, ("layer",))
    tensors = from_canonical(LAYOUTS["hf-phi3"], params, spec, leading=("layer",), prefix=there)
    candidates, _ = found({name: tensor.shape for name, tensor in tensors.items()})
    mine = candidates["hf-phi3"]
    assert not mine.known and mine.prefixes == (there,)
    (built,) = plan(
        LAYOUTS["hf-phi3"], LAYOUTS["hf-llama"], tensors, spec, source_prefixes=mine.prefixes
    ).run(tensors)
    assert rows.bits(built["model.layers.2.mlp.up_proj.weight"].T) == rows.bits(
        params["wi"][2, :, 1]
    )


def test_an_open_number_of_experts_is_said():
    candidates, matches = found(shapes("dbrx", leading=("layer", "expert")))
    assert "mlp" not in candidates["dbrx"].sizes
    assert any("number of experts of dbrx" in line for line in matches.undecided)


def test_names_that_fit_nothing_get_the_nearest_layouts():
    matches = match({"h.0.mlp.gate_projection.weight": (F, D), "h.0.ln.weight": (D,)})
    assert matches.candidates == () and "hf-llama" in matches.nearest
    assert match({}).candidates == ()


def test_an_incomplete_ffn_is_rejected_with_what_it_lacks():
    given = shapes("hf-llama")
    del given["model.layers.1.mlp.down_proj.weight"]
    assert match(given).rejected["hf-llama"].endswith("it lacks 'down_proj.weight'")


def test_own_layouts_are_tried_too():
    own = dataclasses.replace(LAYOUTS["hf-phi3"], name="mine", aliases=())
    (only,) = match(shapes("hf-phi3"), {"mine": own}).candidates
    assert only.layout is own

"""What a checkpoint's files prove, what they leave open, and what is merely stated beside them."""

import numpy as np
import pytest

from glu_lab.layouts import LAYOUTS, from_canonical
from glu_lab.layouts.inspection import inspect
from glu_lab.spec import variant
from tests.layouts import checkpoints as made
from tests.layouts import rows


def stored(layout, f=64, text="swiglu"):
    """FFN tensors of two layers."""
    spec = variant(text, d_model=6, d_ff=f)
    params = {k: v[:2].astype("f4") for k, v in rows.normal_params(spec, ("layer",)).items()}
    return from_canonical(LAYOUTS[layout], params, spec, leading=("layer",))


def names(found):
    return [candidate.layout.name for candidate in found.candidates]


def test_a_gated_file_names_what_nothing_in_it_decides(tmp_path):
    found = inspect(made.write(tmp_path / "a", stored("megatron")))
    assert {"megatron", "megatron-interleave-1", "megatron-interleave-32"} <= set(names(found))
    text = "\n".join(found.unproven)
    assert "packing of 'linear_fc1.weight': concatenated" in text
    assert "interleaved, width 32 (megatron-interleave-32)" in text
    assert "gate or up" in text and "tanh or erf" in text
    assert found.proven[:3] == ("branches N = 2", "d_model D = 6", "d_ff F = 64")


def test_separate_projections_leave_gate_and_activation_open_but_no_packing(tmp_path):
    found = inspect(made.write(tmp_path / "a", stored("hf-llama")))
    assert names(found)[:2] == ["hf-llama", "hf-gemma"]
    text = "\n".join(found.unproven)
    assert "'gate_proj.weight', 'up_proj.weight'" in text and "tanh or erf" in text
    assert "interleaved" not in text and "orientation" not in text


def test_one_candidate_that_packs_still_leaves_the_packing_open(tmp_path):
    found = inspect(made.write(tmp_path / "a", stored("hf-modernbert", text="geglu_erf")))
    assert names(found) == ["hf-modernbert"]
    assert any("contiguous or interleaved" in line for line in found.unproven)


def test_a_square_ffn_leaves_the_orientation_open(tmp_path):
    found = inspect(made.write(tmp_path / "a", stored("hf-llama", f=6)))
    assert any("D = F" in line for line in found.unproven)


def test_config_and_manifest_are_reported_as_stated(tmp_path):
    config = {"model_type": "llama", "hidden_act": "gelu_new"}
    found = inspect(made.write(tmp_path / "a", stored("hf-llama"), config))
    assert any("gelu_tanh*linear" in line and "hf-llama" in line for line in found.stated)
    assert any("'llama', stored as hf-llama" in line for line in found.stated)
    target = made.megatron(tmp_path / "b")
    found = inspect(target)
    assert found.ranks == 4 and "d_ff F = 2 in each rank, 8 in all" in found.proven
    assert any("layout megatron, function swiglu" in line for line in found.stated)
    made.edit(target, lambda m: m["checkpoint"].update(layout="hf-llama"))
    assert any("contradicts" in line for line in inspect(target).stated)


def test_a_file_of_no_layout_names_the_nearest(tmp_path):
    tensors = {"layers.0.gate_projj.weight": np.ones((3, 2), "f4")}
    found = inspect(made.write(tmp_path / "a", tensors))
    assert not found.candidates and "hf-llama" in found.nearest


@pytest.mark.parametrize("piece", ["up_proj", "down_proj"])
def test_a_missing_part_rules_the_layout_out_and_says_why(tmp_path, piece):
    tensors = stored("hf-llama")
    del tensors[f"model.layers.1.mlp.{piece}.weight"]
    found = inspect(made.write(tmp_path / "a", tensors))
    assert "hf-llama" not in names(found)
    assert piece in found.rejected["hf-llama"]

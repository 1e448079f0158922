"""`glu-lab convert`, `verify` and `inspect` as a user calls them."""

import importlib
import json

import pytest

from glu_lab.cli import main
from tests.cli.conftest import call
from tests.layouts import checkpoints as made
from tests.layouts import rows


@pytest.fixture(autouse=True)
def commands(monkeypatch):
    for name in ("convert", "verify", "inspect"):
        help_text = importlib.import_module(f"glu_lab.cli.{name}").HELP
        monkeypatch.setitem(main.COMMANDS, name, help_text)


@pytest.fixture
def llama(tmp_path):
    return made.write(tmp_path / "llama", made.llama_tensors())


TO_MEGATRON = ("--from", "hf-llama", "--to", "megatron", "--tp", 4, "--variant", "swiglu")


def test_convert_prints_the_largest_difference_and_the_way_back_needs_no_flags(tmp_path, llama):
    there = call("convert", llama, tmp_path / "megatron", *TO_MEGATRON)
    assert there.code == 0, there.err
    assert "proof by rows: largest difference 0 of outputs" in there.out
    assert "swiglu, silu(xW₁) ⊙ (xW₂)\n  stated by: user" in there.out
    back = call("convert", tmp_path / "megatron", tmp_path / "again", "--to", "hf-llama", "--json")
    assert back.code == 0, back.err
    document = back.json
    assert document["from"] == "megatron" and document["function_from"] == "manifest"
    assert document["proof"] == {**document["proof"], "ffns": 2, "largest_difference": 0.0}
    rows.assert_same(made.read(tmp_path / "again"), made.llama_tensors())


def test_a_refused_conversion_ends_with_code_2_one_line_and_no_target(tmp_path, llama):
    result = call("convert", llama, tmp_path / "out", "--from", "hf-llama", "--to", "hf-phi3")
    assert result.code == 2 and result.out == ""
    assert len(result.err.splitlines()) == 1 and "which function" in result.err
    assert not (tmp_path / "out").exists()
    assert call("convert", llama, tmp_path / "out", *TO_MEGATRON[:5], 0).code == 2


def test_the_rest_is_refused_by_count_and_name_unless_it_is_kept(tmp_path):
    source = made.write(tmp_path / "llama", {**made.llama_tensors(), **made.others()})
    refused = call("convert", source, tmp_path / "out", *TO_MEGATRON)
    assert refused.code == 2 and "3 tensors are of no FFN" in refused.err
    assert "model.norm.weight" in refused.err and "--rest keep" in refused.err
    kept = call("convert", source, tmp_path / "out", *TO_MEGATRON, "--rest", "keep", "--json")
    assert kept.code == 0 and sorted(kept.json["kept"]) == sorted(made.others())


def test_verify_ends_with_0_or_with_1_and_each_difference(tmp_path):
    target = made.megatron(tmp_path)
    good = call("verify", target, "--json")
    assert good.code == 0 and good.json["agrees"] and good.json["differences"] == []
    made.rewrite(target, lambda tensors: tensors.pop("decoder.layers.2.mlp.linear_fc2.weight"))
    bad = call("verify", target, "--json")
    assert bad.code == 1 and not bad.json["agrees"]
    assert {d["what"] for d in bad.json["differences"]} == {"count", "name", "layout"}
    text = call("verify", target)
    assert text.code == 1 and "name: 'decoder.layers.2.mlp.linear_fc2.weight'" in text.out
    assert text.out.splitlines()[-1].startswith("3 differences (23 tensors")


def test_verify_without_a_manifest_is_an_error(llama):
    result = call("verify", llama)
    assert result.code == 2 and "no manifest.json" in result.err


def test_inspect_says_what_is_proven_and_what_is_not(tmp_path):
    target = made.megatron(tmp_path)
    text = call("inspect", target)
    assert text.code == 0
    assert "names and shapes prove:\n  branches N = 2" in text.out
    assert "they cannot prove:\n  packing of 'linear_fc1.weight'" in text.out
    document = json.loads(call("inspect", target, "--json").out)
    assert document["ranks"] == 4
    assert "megatron" in [row["name"] for row in document["layouts"]]


def test_verify_and_inspect_read_a_training_run(trained_decoder):
    folder, _ = trained_decoder
    looked = call("inspect", folder)
    assert looked.code == 0, looked.err
    assert "manifest.json: layout glu-lab" in looked.out
    result = call("verify", folder, "--json")
    assert result.code == 0, result.out
    assert result.json["tensors"] > 0


def test_a_training_run_converts_with_the_function_of_its_manifest(tmp_path, trained_decoder):
    folder, _ = trained_decoder
    result = call(
        "convert", folder, tmp_path / "out", "--to", "hf-llama", "--rest", "keep", "--json"
    )
    assert result.code == 0, result.err
    assert result.json["function_from"] == "manifest" and result.json["from"] == "glu-lab"
    assert call("verify", tmp_path / "out").code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["training"]["initializers"]["wi"]

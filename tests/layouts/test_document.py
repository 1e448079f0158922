"""The page and the command, both made from the table."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from glu_lab.cli import layouts as command
from glu_lab.cli.main import parse
from glu_lab.errors import GluLabError
from glu_lab.layouts import LAYOUTS, describe, markdown

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"


def call(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert command.run(parse("layouts", command, list(arguments))) == 0
    return out.getvalue()


def test_the_page_is_current():
    assert PAGE.read_text("utf-8") == markdown(LAYOUTS), (
        "run: python -m glu_lab.layouts > docs/layouts.md"
    )


def test_the_pages_program_runs():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {})


def test_machines_get_every_row_in_full():
    listed = json.loads(call("--json"))
    assert [row["name"] for row in listed] == list(LAYOUTS)
    for row in listed:
        assert row.keys() >= {"name", "source", "branch_order", "packing", "orientation"}
        assert row["source"] and row["packing"] and row["orientation"] in ("in,out", "out,in")
        for tensor in row["tensors"]:
            assert tensor["shape"].startswith("(") and tensor["tensor_parallel"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf-llama", ("out,in", "separate", "gate_proj.weight: gate, up_proj.weight: up")),
        ("hf-phi3", ("out,in", "concatenated", "gate, up")),
        ("gpt-neox", ("out,in", "concatenated", "up, gate")),
        ("hf-gpt-oss", ("in,out", "interleaved, width 1", "gate, up")),
        ("megatron-interleave-32", ("out,in", "interleaved, width 32", "")),
        ("torchtitan-w13", ("out,in", "stacked axis 1", "gate, up")),
        ("gemma-einsum", ("in,out", "stacked axis 0", "gate, up")),
        ("hf-gpt2", ("in,out", "separate", "one branch")),
        ("qwen1", ("out,in", "separate", "w1.weight: up, w2.weight: gate")),
    ],
)
def test_a_row_is_described_in_the_fields_words(name, expected):
    row = describe(LAYOUTS[name])
    got = (row["orientation"], row["packing"], row["branch_order"])
    assert got[:2] == expected[:2]
    assert got[2] == expected[2] or not expected[2]


def test_places_of_layers_and_experts_are_described():
    places = {
        name: (row["layer_axis"], row["expert_axis"])
        for name in ("hf-llama", "maxtext", "mixtral", "hf-gpt-oss", "dbrx", "maxtext-moe")
        for row in [describe(LAYOUTS[name])]
    }
    assert places == {
        "hf-llama": ("name", "none"),
        "maxtext": ("axis 1", "none"),
        "mixtral": ("name", "name"),
        "hf-gpt-oss": ("name", "axis 0"),
        "dbrx": ("name", "axis 0 (joined as expert·mlp)"),
        "maxtext-moe": ("axis 1", "axis 0"),
    }


def test_one_row_is_shown_with_its_source():
    text = call("gpt-neox")
    assert "linear1.weight" in text and "up, gate" in text
    assert "megatron/model/transformer.py::Gated_Activation" in text
    (row,) = json.loads(call("hf-mistral", "--json"))
    assert row["name"] == "hf-llama"


def test_every_layout_is_listed_for_people():
    text = call()
    assert all(name[:12] in text for name in LAYOUTS)
    assert f"{len(LAYOUTS)} layouts" in text


def test_own_rows_are_listed_beside_the_built_in_ones(tmp_path):
    from tests.layouts.test_user import MINE

    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    listed = json.loads(call("--rows", str(path), "--json"))
    assert len(listed) == len(LAYOUTS) + 1 and listed[-1]["name"] == "my-packed"
    (row,) = json.loads(call("my-packed", "--rows", str(path), "--json"))
    assert row["branch_order"] == "up, gate"


def test_an_unknown_layout_is_refused():
    with pytest.raises(GluLabError, match="did you mean 'hf-phi3'"):
        call("hf-phi")

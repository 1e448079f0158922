"""Layouts in TOML: the same dataclasses, strictly, both ways."""

import dataclasses
import re
from pathlib import Path

import pytest

from glu_lab.errors import GluLabError, LayoutError
from glu_lab.layouts import (
    LAYOUTS,
    find,
    from_canonical,
    read_layouts,
    to_canonical,
    to_toml,
)
from glu_lab.layouts.document import EXAMPLE as MINE
from glu_lab.spec import variant
from tests.layouts import rows


def read(tmp_path, text):
    path = tmp_path / "rows.toml"
    path.write_text(text, "utf-8")
    return read_layouts(path)


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_row_survives_toml(name, tmp_path):
    row = LAYOUTS[name]
    renamed = dataclasses.replace(
        row, name=f"my-{name}", aliases=tuple(f"my-{alias}" for alias in row.aliases)
    )
    assert read(tmp_path, to_toml([renamed])) == {renamed.name: renamed}


def test_text_survives_toml(tmp_path):
    row = dataclasses.replace(
        LAYOUTS["hf-phi3"],
        name="odd",
        aliases=(),
        summary='quotes " and \\ and ’ and \t tabs',
        outside=(("a b.*", "x = 1"), ("{odd", "[y]")),
    )
    assert read(tmp_path, to_toml([row, dataclasses.replace(row, name="even")]))["odd"] == row


def test_a_users_row_converts(tmp_path):
    own = read(tmp_path, MINE)
    layout = find("my-packed", own)
    spec = variant("swiglu", d_model=3, d_ff=5)
    params = rows.random_params(spec, ("layer",))
    tensors = from_canonical(layout, params, spec, leading=("layer",))
    stored = tensors["stack.1.ffn.w_in"]
    assert rows.bits(stored[:5].T) == rows.bits(params["wi"][1, :, 1])
    rows.assert_same(to_canonical(layout, tensors, spec), params)


def test_the_example_of_the_page_is_a_layout(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert "my-packed" in read(tmp_path, example)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("summary", "sumary", r"unknown config key 'layout\[0\]\.sumary'; did you mean .*summary'"),
        ("holds", "hold", r"did you mean 'layout\[0\]\.tensors\[0\]\.holds'"),
        ('"wi"', '"win"', r"tensors\[0\]\.holds.*did you mean 'wi'"),
        ("[[layout]]", "[[layouts]]", "unknown config key 'layouts'; did you mean 'layout'"),
        ("(branch mlp)", "(branches mlp)", "unknown axis 'branches'; did you mean 'branch'"),
        ("(branch mlp)", "(branch mlp", r"axes '\(branch mlp embed' do not read"),
        ("(branch mlp) embed", "branch mlp", "whose axes are embed mlp; its axes .* have mlp"),
        ("(branch mlp) embed", "mlp mlp embed", "name 'mlp' twice"),
        ("(branch mlp) embed", "(mlp embed) branch", "join mlp and embed"),
        ("(branch mlp) embed", "mlp embed", r"holds branches \(1, 0\) without an axis 'branch'"),
        ("[1, 0]", "[1, 1]", "must be distinct"),
        ("[1, 0]", "[0]", r"hold branches \[0\]; an FFN of 2 has each of \[0, 1\] once"),
        ("[1, 0]", '"both"', "must be a list, got 'both'"),
        ("num_branches = 2", "num_branches = true", "must be an integer, got True"),
        ('"wo"', '"bo"', "holds 'bo', whose axes are embed"),
        ("branches = [1, 0]", "branches = [1, 0]\ninterleave = 4", "interleave=4 needs an axis"),
        ("{layer}", "{leyer}", "may have the field {layer}"),
        ('name = "w_in"', 'name = "w_{layer}"', "unknown field 'layer'"),
        ('name = "w_out"', 'name = "w_in"', "two tensors named 'w_in'"),
        ("my-packed", "hf-llama", "a layout named 'hf-llama' exists already"),
        ("my-packed", "My Packed", "must be lower-case letters"),
        ('name = "my-packed"', "", r"layout\[0\]\.name is missing"),
        ('variant = "swiglu"', 'variant = "swigloo"', "unknown variant 'swigloo'; did you mean"),
        ('variant = "swiglu"', 'variant = "relu"', "num_branches=2; its function 'relu' has 1"),
        ("[[layout.tensors]]", "[[layout.tensors]", "is no TOML"),
        (MINE, "", r"has no \[\[layout\]\]"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(old, new, message, tmp_path):
    assert old in MINE
    with pytest.raises(GluLabError, match=message):
        read(tmp_path, MINE.replace(old, new, 1) if old != MINE else new)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LayoutError, match=r"cannot read the layouts of .*nothing\.toml: No such"):
        read_layouts(tmp_path / "nothing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(LayoutError, match=r"bytes\.toml is no TOML"):
        read_layouts(tmp_path / "bytes.toml")

"""Names and shapes of any kind end in a plan or in an error of the library, never in another."""

import contextlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from glu_lab.errors import GluLabError
from glu_lab.layouts import LAYOUTS, from_canonical, infer_spec, match, plan, reshard, take_stock
from tests.layouts import rows

layouts = st.sampled_from(rows.NAMES)
shapes = st.lists(st.integers(0, 7), max_size=5).map(tuple)
numbers = st.sampled_from(["0", "1", "2", "00", "-1", "99999999", "9" * 30, "x", ""])


class Header:
    dtype = np.dtype(np.float32)

    def __init__(self, shape):
        self.shape = shape


@st.composite
def files(draw):
    """Names made of the table's own templates, with numbers and shapes that are often wrong."""
    layout = LAYOUTS[draw(layouts)]
    made = {}
    for row in draw(st.lists(st.sampled_from(layout.tensors), min_size=1, max_size=6)):
        prefix = draw(st.sampled_from(layout.all_prefixes()))
        name = prefix.template + row.name
        for field in ("layer", "expert", "branch", "scalar"):
            name = name.replace(f"{{{field}}}", draw(numbers))
        if draw(st.integers(0, 5)) == 0:
            name += draw(st.text(max_size=4))
        made[name] = Header(draw(shapes))
    return layout, made


@settings(max_examples=150)
@given(files(), st.sampled_from(["swiglu", "relu", "gpt_oss", "geglu_tanh"]), st.integers(1, 3))
def test_any_names_and_shapes_are_planned_or_refused(file, variant, ranks):
    layout, tensors = file
    match({name: tensor.shape for name, tensor in tensors.items()})
    with contextlib.suppress(GluLabError):
        spec = infer_spec(layout, [tensors] * ranks, variant=variant, experts=2)
        take_stock(layout, [tensors] * ranks, spec)
        plan(layout, LAYOUTS["glu-lab"], [tensors] * ranks, spec)


@settings(max_examples=150)
@given(layouts, st.data())
def test_one_change_to_a_right_file_is_planned_right_or_refused(name, data):
    """A tensor dropped, doubled, cut, turned or renamed never passes for the file that it was."""
    layout = LAYOUTS[name]
    spec = data.draw(st.sampled_from(rows.specs(layout, 3, 4 * rows.width(layout))))
    leading = rows.leadings(layout)[0 if name == "glu-lab" else -1]
    tensors = from_canonical(layout, rows.random_params(spec, leading), spec, leading=leading)
    changed = dict(tensors)
    victim = data.draw(st.sampled_from(sorted(tensors)))
    kind = data.draw(st.sampled_from(["drop", "cut", "turn", "rename", "double", "grow"]))
    array = changed.pop(victim)
    if kind == "cut" and array.ndim:
        changed[victim] = array[:-1]
    elif kind == "turn":
        changed[victim] = array.T
    elif kind == "rename":
        changed[victim + "_"] = array
    elif kind == "double":
        changed |= {victim: array, victim + ".copy": array}
    else:
        changed[victim] = array[None]
    if {n: t.shape for n, t in changed.items()} == {n: t.shape for n, t in tensors.items()}:
        return
    try:
        reshard(layout, [changed], 1, spec=spec)
    except GluLabError:
        return
    raise AssertionError(f"{kind} of {victim!r} passed")

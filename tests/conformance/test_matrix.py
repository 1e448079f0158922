"""Which cells the matrix has: products in full, all pairs, nothing left out without a count."""

import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

from glu_lab.conformance import matrix
from glu_lab.conformance.cases import DTYPES, MODES, PROBES, SHAPES, SPECS
from glu_lab.conformance.cells import NOT_RUN, PROBLEMS
from glu_lab.conformance.executions import EXECUTIONS, Execution, load, register
from glu_lab.conformance.matrix import Point, Stored, make_axes, narrow, plan
from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layers import ffn
from glu_lab.layouts import LAYOUTS
from glu_lab.spec.activation import ACTIVATIONS
from glu_lab.spec.variants import VARIANTS


@pytest.fixture(scope="module")
def axes():
    return make_axes()


@pytest.fixture(scope="module")
def full(axes):
    return plan(axes, "full").places


def kind(places, of):
    return [place for place in places if isinstance(place, of)]


def test_the_specs_are_all_variants_with_and_without_biases_and_every_term():
    for name in VARIANTS:
        assert {name, f"{name}+bias", f"{name}+all"} <= SPECS.keys()
    built = {name: build(8, 16) for name, build in SPECS.items()}
    used = {b.activation.name for spec in built.values() for b in spec.branches}
    # quick_gelu's general form is swish, and gpt_oss has quick_gelu itself.
    assert used == set(ACTIVATIONS)
    assert not any(b.bias for b in built["gpt_oss"].branches)
    assert all(b.bias for b in built["relu+bias"].branches) and built["relu+bias"].output_bias
    every = built["swiglu+all"]
    first = every.branches[0]
    assert first.pre and first.post and first.offset and first.scale != 1
    assert every.product_bias and every.output_scale != 1
    assert {spec.num_branches for spec in built.values()} == {1, 2, 3}


def test_spec_by_execution_is_there_in_full(full):
    at = Counter((p.spec, p.execution) for p in kind(full, Point) if p[2:] == BASE)
    assert at == Counter(itertools.product(SPECS, EXECUTIONS))


BASE = ("float64", "many_rows", "normal", "training")


def test_spec_by_layout_is_there_in_full_and_meets_every_dtype(full):
    stored = kind(full, Stored)
    assert Counter((p.spec, p.layout) for p in stored) == Counter(itertools.product(SPECS, LAYOUTS))
    assert {(p.layout, p.dtype) for p in stored} == set(itertools.product(LAYOUTS, DTYPES))
    assert {(p.spec, p.dtype) for p in stored} == set(itertools.product(SPECS, DTYPES))


def test_every_pair_of_values_meets_in_a_cell_that_runs_or_is_told_why_it_cannot(axes, full):
    points = kind(full, Point)
    runs = [p for p in points if matrix.cannot(axes, p._asdict()) is None]
    table = {name: values for name, values in axes.named().items() if name != "layout"}
    cannot = set()
    for one, other in itertools.combinations(table, 2):
        met = {(getattr(p, one), getattr(p, other)) for p in runs}
        missing = set(itertools.product(table[one], table[other])) - met
        told = {(getattr(p, one), getattr(p, other)) for p in points}
        assert missing <= told
        cannot |= {(one, other) for _ in missing}
    # Odd widths and rows over several devices.
    assert cannot == {("execution", "shape")}


def test_the_quick_tier_is_a_part_of_the_full_one_and_says_how_much_is_left(axes, full):
    quick = plan(axes, "quick")
    assert set(quick.places) < set(full) and len(set(full)) == len(full)
    assert quick.left == len(full) - len(quick.places) > 0
    assert plan(axes, "full").left == 0
    points = kind(quick.places, Point)
    assert {p.execution for p in points} == set(EXECUTIONS)
    assert {p.spec for p in points if p.execution == "jit"} == set(SPECS)
    assert kind(quick.places, Stored) == kind(full, Stored)
    for axis, values in (("dtype", DTYPES), ("shape", SHAPES), ("probe", PROBES), ("mode", MODES)):
        assert {getattr(p, axis) for p in points} == set(values)


@pytest.mark.parametrize(
    ("patterns", "specs", "executions", "layouts"),
    [
        (["swiglu"], {"swiglu"}, set(EXECUTIONS), set(LAYOUTS)),
        (["swiglu*", "jit"], {s for s in SPECS if s.startswith("swiglu")}, {"jit"}, set()),
        (["spec=relu", "layout=hf-*"], {"relu"}, set(), {n for n in LAYOUTS if n[:3] == "hf-"}),
        # A product's own * matches nothing else.
        (["silu*tanh*linear", "eager"], {"silu*tanh*linear"}, {"eager"}, set()),
        (["*_hand_4", "remat", "bfloat16"], set(SPECS), {"by_hand_4", "remat"}, set()),
    ],
)  # fmt: skip
def test_a_choice_narrows_the_axes(axes, patterns, specs, executions, layouts):
    places = plan(narrow(axes, patterns), "full").places
    points, stored = kind(places, Point), kind(places, Stored)
    assert {p.execution for p in points} == executions
    assert {p.layout for p in stored} == layouts
    assert {p.spec for p in places} == specs
    if "bfloat16" in patterns:
        assert {p.dtype for p in points} == {"bfloat16"}


def test_pairs_are_covered_anew_on_the_axes_that_are_left(axes):
    places = plan(narrow(axes, ["swiglu", "eager"]), "full").places
    met = {(p.dtype, p.probe) for p in kind(places, Point)}
    assert met == set(itertools.product(DTYPES, PROBES))


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["swigl"], "unknown name in --only 'swigl'; did you mean 'swiglu'"),
        (["by_hnd_2"], "did you mean 'by_hand_2'"),
        (["bfloat"], "did you mean 'bfloat16'"),
        (["specs=relu"], "unknown axis 'specs'; did you mean 'spec'"),
        (["spec=jit"], "unknown name in --only 'jit'"),
        (["nothing*"], r"unknown name in --only 'nothing\*'"),
    ],
)
def test_an_unknown_name_gives_the_nearest(axes, patterns, message):
    with pytest.raises(UnknownNameError, match=message):
        narrow(axes, patterns)


def test_a_choice_that_leaves_no_cell_and_an_unknown_tier_are_refused(axes):
    with pytest.raises(SpecError, match="no cell has both"):
        plan(narrow(axes, ["jit", "hf-llama"]), "quick")
    with pytest.raises(UnknownNameError, match="did you mean 'full'"):
        plan(axes, "ful")


def mine(params, x, spec, **how):
    return ffn.apply(params, x, spec, **how)


def test_a_users_variant_execution_and_layout_join_by_being_given():
    own = Execution(name="mine", summary="mine", apply=mine)
    axes = make_axes(["relu2*silu"], [own], {"my-layout": LAYOUTS["hf-llama"]})
    for tier in ("quick", "full"):
        places = plan(axes, tier).places
        points = kind(places, Point)
        # In full, in either tier: of these nothing is known yet.
        assert {p.spec for p in points if p.execution == "mine"} == set(axes.specs)
        assert {p.execution for p in points if p.spec == "relu2*silu+all"} == set(axes.executions)
        assert {p.spec for p in kind(places, Stored) if p.layout == "my-layout"} == set(axes.specs)


def test_what_runs_inference_alone_is_run_on_every_spec_in_that_mode():
    own = Execution(name="mine", summary="mine", apply=mine, modes=("inference",), why="a kernel")
    places = kind(plan(make_axes(executions=[own]), "full").places, Point)
    at = {p.spec for p in places if p.execution == "mine" and p[2:5] == BASE[:3]}
    assert at == set(SPECS)
    modes = Counter(p.mode for p in places if p.execution == "mine")
    # One cell says why for each mode that it does not have.
    assert modes["training"] == modes["dropout"] == 1 and modes["inference"] > len(SPECS)


def test_an_execution_registers_by_its_own_name_once(monkeypatch):
    monkeypatch.setattr("glu_lab.conformance.executions.EXECUTIONS", dict(EXECUTIONS))
    own = register(Execution(name="mine", summary="mine", apply=mine))
    with pytest.raises(SpecError, match="'mine' exists already"):
        register(own)
    with pytest.raises(SpecError, match="'jit' exists already"):
        make_axes(executions=[Execution(name="jit", summary="mine", apply=mine)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(name="my execution"), "a letter and then letters"),
        (dict(name="mine", apply=3), "apply must be a function"),
        (dict(name="mine", modes=("inference",)), "say why"),
        (dict(name="mine", dtypes=("float32",)), "say why"),
    ],
)
def test_an_execution_that_says_too_little_is_refused(fields, message):
    with pytest.raises(SpecError, match=message):
        Execution(**{"summary": "mine", "apply": mine, **fields})


def test_an_execution_is_loaded_from_a_users_module(tmp_path, monkeypatch):
    (tmp_path / "my_ffn_module.py").write_text(
        "from glu_lab.layers import ffn\n"
        "from glu_lab.conformance.executions import Execution\n"
        "def fused(params, x, spec, **how):\n    return ffn.apply(params, x, spec, **how)\n"
        "eager = Execution(name='my_eager', summary='s', apply=fused, compiled=False)\n"
    )
    (tmp_path / "broken_ffn_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("my_ffn_module:fused").name == "fused"
    assert load("my_ffn_module:fused").compiled
    assert not load("my_ffn_module:eager").compiled
    with pytest.raises(UnknownNameError, match="did you mean 'fused'"):
        load("my_ffn_module:fusd")
    with pytest.raises(SpecError, match="ZeroDivisionError"):
        load("broken_ffn_module:fused")
    with pytest.raises(SpecError, match="No module named"):
        load("no_such_module:fused")
    with pytest.raises(SpecError, match="module:function"):
        load("my_ffn_module")


def test_the_example_of_the_docs_runs():
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/conformance.md", "exec"), {"__name__": "docs"})


def test_the_docs_name_every_status_and_value():
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text("utf-8")
    for name in (*PROBLEMS, *NOT_RUN, *PROBES, *MODES, *DTYPES, "eager", "jit", "remat"):
        assert f"`{name}`" in page, name

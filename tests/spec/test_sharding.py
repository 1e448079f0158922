"""Text to mesh, rules, and every way in which they can be wrong."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.codec import decode, encode
from glu_lab.spec.execution import Execution
from glu_lab.spec.sharding import MESH_AXES, Rules, check_divides, parse_mesh


@pytest.mark.parametrize(
    ("text", "devices", "expected"),
    [
        ("data=2,fsdp=1,model=4", 8, (2, 1, 4)),
        ("model=4, data=2", 8, (2, 1, 4)),
        ("data=-1", 6, (6, 1, 1)),
        ("data=2,model=-1", 8, (2, 1, 4)),
        ("data=8,model=-1", 8, (8, 1, 1)),
        ("", 1, (1, 1, 1)),
    ],
)
def test_sizes(text, devices, expected):
    sizes = parse_mesh(text, devices)
    assert tuple(sizes) == MESH_AXES
    assert tuple(sizes.values()) == expected


@pytest.mark.parametrize(
    ("text", "devices", "said"),
    [
        ("data=2", 8, "needs 2 devices; there are 8"),
        ("data=16", 8, "needs 16 devices; there are 8"),
        ("", 4, "needs 1 devices; there are 4"),
        ("data=-1,model=-1", 8, "only one axis can take the rest, got data, model"),
        ("data=3,model=-1", 8, "3 does not divide the 8 devices"),
        ("data=two", 8, "must be an integer"),
        ("data=2.0", 8, "must be an integer"),
        ("data=0", 8, "≥ 1, or -1"),
        ("data=-2", 8, "≥ 1, or -1"),
        ("data", 8, "write axis=size"),
        ("data:8", 8, "write axis=size"),
        ("data=2,data=4", 8, "names axis 'data' twice"),
    ],
)
def test_bad_text_says_what_is_wrong(text, devices, said):
    with pytest.raises(SpecError, match=said):
        parse_mesh(text, devices)


def test_a_misspelt_axis_is_told_the_right_one():
    with pytest.raises(UnknownNameError, match="did you mean 'model'"):
        parse_mesh("modle=8", 8)


@given(st.permutations(MESH_AXES), st.tuples(*[st.integers(1, 6)] * 3))
def test_order_and_a_free_axis_do_not_matter(order, sizes):
    wanted = dict(zip(order, sizes, strict=True))
    devices = sizes[0] * sizes[1] * sizes[2]
    text = ",".join(f"{name}={size}" for name, size in wanted.items())
    assert parse_mesh(text, devices) == wanted
    text = ",".join(f"{n}={-1 if n == order[0] else size}" for n, size in wanted.items())
    assert parse_mesh(text, devices) == wanted


@given(st.text("datmoelfsp=,-0123456789 ", max_size=20))
def test_any_text_is_a_mesh_of_the_right_size_or_a_friendly_error(text):
    try:
        sizes = parse_mesh(text, 8)
    except SpecError:
        return
    assert sizes["data"] * sizes["fsdp"] * sizes["model"] == 8


def test_a_planned_mesh_states_every_size():
    assert parse_mesh("data=128,model=4", None) == {"data": 128, "fsdp": 1, "model": 4}
    with pytest.raises(SpecError, match="only planned states every size"):
        parse_mesh("data=-1,model=4", None)


@pytest.mark.parametrize(
    ("axes", "stored", "used"),
    [
        (("embed", "branch", "mlp"), (("fsdp",), (), ("model",)), ((), (), ("model",))),
        (("mlp", "embed"), (("model",), ("fsdp",)), (("model",), ())),
        (("heads", "head", "embed"), (("model",), (), ("fsdp",)), (("model",), (), ())),
        (
            ("layers", "embed", "kv", "head"),
            ((), ("fsdp",), ("model",), ()),
            ((), (), ("model",), ()),
        ),
        (("vocab", "embed"), (("model",), ("fsdp",)), (("model",), ())),
        (("batch", "seq", None), (("data", "fsdp"), (), ()), None),
    ],
)
def test_layouts_as_stored_and_as_used(axes, stored, used):
    rules = Rules()
    assert rules.splits(axes) == stored
    if used is not None:
        assert rules.used(axes) == used


def test_two_axes_of_one_array_on_one_mesh_axis_are_refused():
    rules = Rules(embed=("model",))
    with pytest.raises(SpecError, match="'embed' and 'mlp' both lie on mesh axis 'model'"):
        rules.splits(("embed", "branch", "mlp"))
    with pytest.raises(SpecError, match="'seq' and 'mlp' both lie"):
        Rules(seq=("model",)).splits(("batch", "seq", "mlp"))


def test_a_rule_for_an_axis_that_no_array_has_is_refused_with_the_nearest():
    tree = encode(Execution())
    tree["rules"]["embd"] = ["fsdp"]
    with pytest.raises(UnknownNameError, match="did you mean 'rules.embed'"):
        decode(Execution, tree)
    with pytest.raises(UnknownNameError, match="did you mean 'mlp'"):
        Rules().splits(("mpl",))
    with pytest.raises(UnknownNameError, match="mesh axis in the rule for 'mlp'"):
        Rules(mlp=("tensor",))
    with pytest.raises(SpecError, match="names a mesh axis twice"):
        Rules(batch=("data", "data"))


def test_rules_survive_a_config():
    execution = Execution(rules=Rules(vocab=(), batch=("data",)))
    assert decode(Execution, encode(execution)) == execution


def test_f_3_over_two_devices_is_refused_although_2f_divides():
    with pytest.raises(SpecError) as error:
        check_divides([("branch", 2), ("mlp", 3)], Rules(), {"data": 1, "fsdp": 1, "model": 2})
    text = str(error.value)
    assert "mlp = 3 does not divide over model=2" in text
    assert "nearest sizes that do are 2 and 4" in text


def test_what_all_dimensions_on_an_axis_admit_is_said():
    sizes = [("heads", 12), ("mlp", 2048), ("vocab", 32128)]
    with pytest.raises(SpecError) as error:
        check_divides(sizes, Rules(), {"data": 1, "fsdp": 1, "model": 8})
    assert "heads = 12 does not divide over model=8" in str(error.value)
    assert "heads = 12, mlp = 2048, vocab = 32128 together admit model = 1, 2, 4." in str(
        error.value
    )
    check_divides(sizes, Rules(), {"data": 1, "fsdp": 1, "model": 4})


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_a_size_is_refused_exactly_when_it_does_not_divide(size, data, fsdp):
    mesh = {"data": data, "fsdp": fsdp, "model": 1}
    try:
        check_divides([("batch", size)], Rules(), mesh)
    except SpecError:
        assert size % (data * fsdp)
    else:
        assert size % (data * fsdp) == 0


def test_every_rule_is_a_tuple_of_mesh_axes():
    for field in dataclasses.fields(Rules):
        assert set(getattr(Rules(), field.name)) <= set(MESH_AXES)

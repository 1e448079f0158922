"""Text to mesh, and every way in which the text can be wrong."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.sharding.mesh import AXES, batch_sharding, make_mesh, parse_mesh, replicated


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
    assert tuple(sizes) == AXES
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


@given(st.permutations(AXES), st.tuples(*[st.integers(1, 6)] * 3))
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


def test_the_mesh_here():
    mesh = make_mesh("data=-1")
    assert mesh.axis_names == AXES and mesh.devices.size == jax.device_count()
    assert batch_sharding(mesh).spec[0] == "data"
    assert replicated(mesh).is_fully_replicated

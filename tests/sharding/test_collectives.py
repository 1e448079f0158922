"""Collectives read off compiled programs: kind, devices, elements, number format, trips, origin.

The programs under ``programs/`` are what jax's compilers print; their ``make.py`` says from what.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import AbstractMesh

from glu_lab.errors import SpecError
from glu_lab.sharding.collectives import byte_count, bytes_by_axis, collectives, origin
from glu_lab.sharding.device_groups import device_groups, group_axes

PROGRAMS = Path(__file__).parent / "programs"
MESH = {"data": 2, "fsdp": 1, "model": 4}


def program(name):
    return (PROGRAMS / f"{name}.txt").read_text()


def facts(found, *names):
    return sorted(tuple(getattr(c, name) for name in names) for c in found)


HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
STRIDES = [[0, 4], [1, 5], [2, 6], [3, 7]]
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7]]
EVERY_SECOND = [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", HALVES),
        ("{{0,1},{2,3},{4,5},{6,7}}", PAIRS),
        ("{}", [list(range(8))]),
        ("[2,4]<=[8]", HALVES),
        ("[4,2]<=[8]", PAIRS),
        ("[1,8]<=[8]", [list(range(8))]),
        ("[4,2]<=[2,4]T(1,0)", STRIDES),
        ("[4,2]<=[2,2,2]T(0,2,1)", EVERY_SECOND),
        ("[4,2]<=[4,2]T(1,0)", [[0, 2], [4, 6], [1, 3], [5, 7]]),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", HALVES),
        ("mesh['axis_0'=2,'axis_1'=4,'axis_2'=1] {'axis_0'}", STRIDES),
        ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", [
            [0, 1, 2, 3], [4, 5, 6, 7],
        ]),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b'}", [[7, 6, 5, 4], [3, 2, 1, 0]]),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", EVERY_SECOND),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", PAIRS),
        ("mesh[axis_0=2,axis_1=4] {axis_0:(1)2}", STRIDES),
    ],
)  # fmt: skip
def test_every_form_of_device_groups(text, groups):
    found = [list(map(int, group)) for group in device_groups(text, 8)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, groups))


def test_an_unknown_form_of_device_groups_is_refused():
    with pytest.raises(SpecError, match="replica_groups=rings of 4"):
        device_groups("rings of 4", 8)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (HALVES, ["model"]),
        (STRIDES, ["data"]),
        ([list(range(8))], ["data", "model"]),
        (PAIRS, ["model"]),
        ([[0], [1]], []),
        ([[0, 5], [1, 4]], ["data", "model"]),
    ],
)
def test_axes_are_those_along_which_a_group_differs(groups, axes):
    assert group_axes(groups, MESH) == axes


def test_kinds_payloads_and_number_formats():
    """The CPU's compiler makes float32 of every one of these; the program asked for bfloat16."""
    text = program("kinds")
    assert "bf16[32,16]{1,0} all-gather" not in text and "f32[32,16]{1,0} all-gather" in text
    found = collectives(text, MESH)
    assert facts(found, "kind", "axes", "group_size", "elements", "bytes", "dtype") == [
        ("all-gather", ("model",), 4, 512, 1024, "bfloat16"),
        ("all-reduce", ("data", "model"), 8, 128, 256, "bfloat16"),
        *[("all-to-all", ("model",), 4, 32, 64, "bfloat16")] * 4,
        ("collective-permute", ("model",), 2, 128, 256, "bfloat16"),
        ("reduce-scatter", ("model",), 4, 512, 1024, "bfloat16"),
    ]
    assert bytes_by_axis(found) == {"model": 2 * 1024 + 2 * 256, "data,model": 256}
    assert {c.phase for c in found} == {"forward"}  # Without gradients there is no other.


#: 3 × 5 nested trips over model, 5 over data, and a loop from 2 to 9.
LOOPS = [("data", 128, 5), ("model", 128, 7), ("model", 128, 15)]


def test_loops_multiply():
    found = collectives(program("loops"), MESH)
    assert facts(found, "axis", "elements", "trips") == LOOPS
    assert facts(found, "bytes") == [(4 * n * trips,) for _, n, trips in LOOPS]


def test_trips_follow_from_the_counter_where_they_are_not_written():
    text = re.sub(r',"known_trip_count":\{"n":"\d+"\}', "", program("loops"))
    assert "trip_count" not in text
    assert facts(collectives(text, MESH), "axis", "elements", "trips") == LOOPS


@pytest.mark.parametrize(
    ("limit", "direction", "step", "trips"),
    [(9, "LT", 1, 7), (9, "LE", 1, 8), (9, "LT", 3, 3), (-4, "GT", -2, 3), (-4, "GE", -2, 4)],
)
def test_counters_of_every_kind(limit, direction, step, trips):
    text = f"""HloModule counted
%sum (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}}
%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %state = (s32[], f32[8]) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %step = s32[] constant({step})
  %next = s32[] add(%step, %count)
  %rows = f32[8] get-tuple-element(%state), index=1
  %summed = f32[8] all-reduce(%rows), replica_groups=[1,8]<=[8], to_apply=%sum
  ROOT %after = (s32[], f32[8]) tuple(%next, %summed)
}}
%test (state: (s32[], f32[8])) -> pred[] {{
  %state = (s32[], f32[8]) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %limit = s32[] constant({limit})
  ROOT %go = pred[] compare(%count, %limit), direction={direction}
}}
ENTRY %main (rows: f32[8]) -> f32[8] {{
  %rows = f32[8] parameter(0)
  %start = s32[] constant(2)
  %before = (s32[], f32[8]) tuple(%start, %rows)
  %loop = (s32[], f32[8]) while(%before), condition=%test, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}}
"""
    (found,) = collectives(text, MESH)
    assert found.trips == trips


def test_a_loop_that_ends_by_its_data_is_refused():
    with pytest.raises(SpecError, match="shard_map/while.* runs until its data say so"):
        collectives(program("on_data"), MESH)


def test_merged_collectives_count_apart():
    """Forward and backward in one all-reduce of two arrays, two gradients in another."""
    text = program("merged")
    assert len(re.findall(r" all-reduce\(", text)) == 2
    found = collectives(text, MESH)
    assert facts(found, "phase", "axis", "module", "operation", "elements") == [
        ("backward", "data", "ffn", "...d,dnf->...nf", 2 * 16 * 8),
        ("backward", "data", "ffn", "...f,fd->...d", 16 * 8),
        ("backward", "model", "ffn", "...d,dnf->...nf", 2 * 8 * 16),
        ("forward", "model", "ffn", "...f,fd->...d", 2 * 8 * 16),
    ]


def test_asynchronous_pairs_count_once():
    found = collectives(program("gpu"), MESH)
    assert facts(found, "kind", "axis", "elements", "module") == [
        ("all-gather", "model", 256, ""),
        ("all-reduce", "model", 4, "ffn"),
        ("all-reduce", "model", 64, "ffn"),
        ("all-to-all", "model", 64, ""),
        ("collective-permute", "data", 64, ""),
        ("reduce-scatter", "model", 64, ""),
    ]


def test_an_asynchronous_computation_counts_once():
    """The long form: what runs aside stands in a computation of its own."""
    text = """HloModule wrapped
%inner (p: f32[16,4]) -> f32[16,4] {
  %p = f32[16,4] parameter(0)
  ROOT %exchange = f32[16,4] all-to-all(%p), replica_groups=[2,4]<=[8], dimensions={0}
}, execution_thread="aside"

ENTRY %main (a: f32[16,4]) -> f32[16,4] {
  %a = f32[16,4] parameter(0)
  %start = ((f32[16,4]), f32[16,4]) async-start(%a), calls=%inner
  ROOT %done = f32[16,4] async-done(%start)
}
"""
    assert facts(collectives(text, MESH), "kind", "elements") == [("all-to-all", 64)]


def test_programs_for_tpus():
    """No trips are written; a gather that runs beside other work stands in three fusions."""
    text = program("tpu")
    assert "trip_count" not in text and text.count('chain_id="0"') == 3
    found = collectives(text, {"data": 1, "fsdp": 2, "model": 4})
    assert facts(found, "kind", "axis", "elements", "trips", "dtype") == [
        ("all-gather", "fsdp", 16 * 1024, 3, "bfloat16"),
        ("all-gather", "fsdp", 2 * 16 * 1024, 3, "bfloat16"),
        ("all-reduce", "model", 2 * 8 * 16, 3, "float32"),
    ]
    (found,) = collectives(program("tpu_scatter"), MESH)
    assert (found.kind, found.axis, found.elements) == ("reduce-scatter", "model", 1024 * 1024)
    assert found.operation == "td,df->tf"


def test_branches_of_a_conditional_count_as_if_each_ran():
    text = """HloModule branches
%yes (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  ROOT %there = f32[8] collective-permute(%p), source_target_pairs={{0,1},{1,0},{2,2}}
}
%no (q: f32[8]) -> f32[8] {
  ROOT %q = f32[8] parameter(0)
}
ENTRY %main (a: f32[8], c: s32[]) -> f32[8] {
  %a = f32[8] parameter(0)
  %c = s32[] parameter(1)
  ROOT %either = f32[8] conditional(%c, %a, %a), branch_computations={%yes, %no}
}
"""
    assert facts(collectives(text, MESH), "kind", "axis") == [("collective-permute", "model")]


def test_groups_of_one_device_are_no_communication():
    text = program("gpu").replace("{{0,1,2,3},{4,5,6,7}}", "{{0},{1},{2},{3},{4},{5},{6},{7}}")
    assert "all-reduce" not in {c.kind for c in collectives(text, MESH)}


def test_a_mesh_may_be_sizes_or_a_mesh():
    mesh = AbstractMesh((2, 1, 4), ("data", "fsdp", "model"))
    assert collectives(program("kinds"), mesh) == collectives(program("kinds"), MESH)


@pytest.mark.parametrize(
    ("text", "mesh", "message"),
    [
        (program("kinds"), {"model": 4}, "more devices than the 4 of the mesh"),
        ("module @jit_f { }", MESH, "give compiled.as_text()"),
        ("", MESH, "give compiled.as_text()"),
    ],
)
def test_what_does_not_fit_is_refused(text, mesh, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        collectives(text, mesh)


@pytest.mark.parametrize(
    ("name", "phase", "module", "operation"),
    [
        ("jit(f)/jvp(M)/enc/while/body/closed_call/layers/ffn/td,df->tf/dot_general", "forward",
         "M/enc/layers/ffn", "td,df->tf"),
        ("jit(f)/transpose(jvp(M))/checkpoint/rematted_computation/ffn/dot_general", "backward",
         "M/ffn", "dot_general"),
        ("jit(f)/transpose(jvp(a/ffn))/shard_map/psum_invariant", "backward", "a/ffn",
         "psum_invariant"),
        ("jit(f)/jvp()/reduce_sum", "forward", "", "reduce_sum"),
        ("jit(f)/vmap(adam)/jit(_where)/select_n", "update", "adam", "select_n"),
        ("", "update", "", ""),
    ],
)  # fmt: skip
def test_origin_is_read_off_the_name_stack(name, phase, module, operation):
    assert origin(name, differentiates=True) == (phase, module, operation)


def test_a_program_without_gradients_is_all_forward():
    assert origin("jit(f)/M/ffn/dot_general", differentiates=False)[0] == "forward"


def test_bytes_of_number_formats():
    sizes = {"bool": 8, "int4": 4, "float8_e4m3fn": 8, "bfloat16": 16, "float64": 64}
    for dtype, bits in sizes.items():
        assert byte_count(10, dtype) == int(np.ceil(10 * bits / 8)), dtype
    assert byte_count(3, "int4") == 2

"""Collectives beside what the algebra of an FFN needs."""

import json

import pytest

from glu_lab.sharding.audit import Site, audit, ffn_site, model_sites, table
from glu_lab.sharding.collectives import Collective
from glu_lab.spec import variant
from glu_lab.spec.sharding import Rules
from tests.training.small import small_model

MESH = {"data": 2, "fsdp": 2, "model": 4}
T, D, L = 64, 16, 3
SITE = Site(path="decoder/layers/ffn", rows=T, d_model=D, over=("model",), layers=L)


def collective(**fields):
    """The sum over `model` after the down projection of three layers, in bfloat16."""
    settings = dict(
        kind="all-reduce",
        axes=("model",),
        group_size=4,
        elements=T * D,
        dtype="bfloat16",
        trips=L,
        phase="forward",
        module="LM/decoder/layers/ffn",
        operation="...f,fd->...d",
        shape=(T, D),
        name="all-reduce.1",
    )
    return Collective(**(settings | fields))


FORWARD = collective()
BACKWARD = collective(phase="backward", operation="...d,dnf->...nf")


def ratios(found):
    return {total.phase: total.ratio for total in found.sums}


def test_one_sum_each_way_is_the_minimum():
    found = audit([FORWARD, BACKWARD], [SITE])
    assert ratios(found) == {"forward": 1.0, "backward": 1.0} and found.worst_ratio == 1.0
    for row in found.rows:
        assert row.bytes == row.minimum_bytes == T * D * L * 2 and row.ratio == 1.0


def test_written_out_layers_are_those_of_a_loop():
    found = audit([collective(trips=1, name=f"all-reduce.{i}") for i in range(L)], [SITE])
    (row,) = found.rows
    assert (row.count, row.elements, row.trips, row.ratio) == (L, L * T * D, 1, 1.0)


def test_gate_and_up_summed_apart_cost_twice():
    found = audit([FORWARD, BACKWARD, BACKWARD], [SITE])
    assert ratios(found) == {"forward": 1.0, "backward": 2.0} and found.worst_ratio == 2.0
    assert [row.ratio for row in found.rows] == [1.0, 2.0]


def test_what_an_ffn_does_not_need_has_minimum_zero_and_counts():
    F = 48
    moved = collective(kind="all-to-all", elements=T * F, operation="split")
    found = audit([FORWARD, moved], [SITE])
    extra = next(row for row in found.rows if row.kind == "all-to-all")
    assert (extra.minimum_bytes, extra.ratio) == (0, None)
    assert found.worst_ratio == pytest.approx((D + F) / D)
    assert "∞" in table(found)


def test_only_ffns_and_only_over_their_axes_have_a_minimum():
    others = [
        collective(module="LM/decoder/layers/attention"),
        collective(module="LM/decoder/layers/ffn_norm"),
        collective(module="LM/encoder/layers/ffn"),
        collective(axes=("data",)),
        collective(phase="update"),
    ]
    found = audit([FORWARD, *others], [SITE])
    assert [row.minimum_bytes for row in found.rows].count(None) == len(others)
    assert found.worst_ratio == 1.0
    assert found.axis_bytes == {"model": 5 * FORWARD.bytes, "data": FORWARD.bytes}


def test_the_gradients_of_a_split_sequence():
    """Megatron's sequence parallelism: a gather and a scatter each way, and the output bias."""
    spec = variant("swiglu", d_model=D, d_ff=32, bias=True)
    rules = Rules(seq=("model",))
    site = ffn_site(spec, "ffn", (8, 4 * T // 8), rules, MESH)
    assert site.sequence and site.rows == T
    pair = {"all-gather": T * D, "reduce-scatter": T * D}
    assert site.minimum("forward") == pair
    assert site.minimum("backward") == {**pair, "all-reduce": D}


def test_rows_of_a_device():
    """The batch is split over data and fsdp: 4 × fewer rows; the model axis has all of them."""
    site = ffn_site(variant("relu", d_model=D, d_ff=32), "ffn", (8, 32), Rules(), MESH)
    assert (site.rows, site.over, site.minimum("backward")) == (
        T,
        ("model",),
        {"all-reduce": T * D},
    )


def test_learned_scalars_are_summed_too():
    spec = variant("swish_learned*linear", d_model=D, d_ff=32)
    site = ffn_site(spec, "ffn", (8, 32), Rules(), MESH)
    assert site.minimum("forward") == {"all-reduce": T * D}
    assert site.minimum("backward") == {"all-reduce": T * D + 1}


def test_the_stacks_of_a_model():
    batch = {"encoder_tokens": (8, 32), "decoder_tokens": (8, 8), "targets": (8, 8)}
    encoder, decoder = model_sites(small_model("encoder_decoder"), batch, Rules(), MESH)
    assert (encoder.path, encoder.rows, encoder.layers) == ("encoder/layers/ffn", 64, 1)
    assert (decoder.path, decoder.rows, decoder.layers) == ("decoder/layers/ffn", 16, 2)
    (only,) = model_sites(small_model(), {"tokens": (8, 32)}, Rules(), MESH)
    assert (only.path, only.rows, only.layers) == ("decoder/layers/ffn", 64, 2)


def test_without_tensor_parallelism_there_is_no_minimum():
    flat = {"data": 8, "fsdp": 1, "model": 1}
    assert model_sites(small_model(), {"tokens": (8, 32)}, Rules(), flat) == []
    found = audit([collective(axes=("data",))])
    assert found.worst_ratio is None and found.rows[0].minimum_bytes is None
    assert "no FFN is split" in table(found)


def test_a_sum_that_is_not_found_is_below_one_and_said():
    found = audit([collective(elements=T * D // 2), BACKWARD], [SITE])
    assert ratios(found)["forward"] == 0.5
    assert "something is not seen" in table(found)
    assert "something is not seen" not in table(audit([FORWARD, BACKWARD], [SITE]))


def test_json_is_strict():
    moved = collective(kind="all-to-all", operation="split")
    found = audit([FORWARD, BACKWARD, moved, collective(axes=("data", "fsdp"))], [SITE])
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert written["worst_ratio"] == 2.0
    assert {"phase", "kind", "axis", "bytes", "minimum_bytes", "ratio"} <= set(written["rows"][0])
    assert {row["axis"] for row in written["rows"]} == {"model", "data,fsdp"}
    assert sum(row["bytes"] for row in written["rows"]) == sum(written["axis_bytes"].values())


def test_the_table_leaves_nothing_out():
    """Small rows are summed up in one line, or written out; those of an FFN always are."""
    small = [collective(module="LM", elements=n, phase="update", operation=f"s{n}") for n in (1, 2)]
    found = audit([FORWARD, BACKWARD, *small], [SITE])
    short, long = table(found), table(found, least_share=0.0)
    assert "2 smaller: 18 B together" in short and "s1" not in short
    assert "smaller" not in long and "s1" in long and "s2" in long
    large = collective(module="LM", elements=10**6, operation="large")
    assert "...d,dnf->...nf" in table(audit([FORWARD, BACKWARD, large], [SITE]))
    row = next(line for line in short.splitlines() if "...d,dnf->...nf" in line)
    assert row.split() == [
        "all-reduce", "model", "1,024", "bfloat16", "3", "6", "KiB", "6", "KiB", "1.00",
        "...d,dnf->...nf",
    ]  # fmt: skip
    assert max(map(len, short.splitlines())) <= 100

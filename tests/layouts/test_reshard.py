"""Tensor-parallel ranks: p to q, row by row, against cuts written by hand."""

import numpy as np
import pytest

from glu_lab.errors import LayoutError
from glu_lab.layouts import (
    LAYOUTS,
    from_canonical,
    infer_spec,
    join_data_shards,
    reshard,
    split_data_shards,
    to_canonical,
)
from glu_lab.spec import variant
from tests.layers import oracle
from tests.layouts import rows

D = 3
WAYS = ((4, 1), (1, 2), (1, 8), (8, 2), (2, 4), (1, 1), (4, 4))


def marked(d_ff, bias=False, text="swiglu"):
    """Parameters whose every element says which one it is."""
    spec = variant(text, d_model=D, d_ff=d_ff, bias=bias)
    start, made = 0, {}
    for name, value in rows.normal_params(spec).items():
        made[name] = (start + np.arange(value.size, dtype=np.float64)).reshape(value.shape)
        start += value.size
    return spec, made


def cut_by_hand(params, ranks):
    """Megatron's ranks: [gate_r; up_r], and the down projection's columns of the same channels."""
    size = params["wo"].shape[0] // ranks
    made = []
    for r in range(ranks):
        own = slice(r * size, (r + 1) * size)
        tensors = {
            "linear_fc1.weight": np.concatenate(
                [params["wi"][:, 0, own].T, params["wi"][:, 1, own].T]
            ),
            "linear_fc2.weight": params["wo"][own].T,
        }
        if "bo" in params:
            tensors["linear_fc1.bias"] = np.concatenate([params["bi_0"][own], params["bi_1"][own]])
            tensors["linear_fc2.bias"] = params["bo"]
        made.append(tensors)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("p", "q"), WAYS)
def test_megatrons_ranks_are_those_cut_by_hand(p, q, bias):
    _, params = marked(8, bias)
    got = reshard(LAYOUTS["megatron"], cut_by_hand(params, p), q)
    want = cut_by_hand(params, q)
    assert len(got) == q
    for mine, theirs in zip(got, want, strict=True):
        rows.assert_same(mine, theirs)


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_row_comes_back_from_any_number_of_ranks(name):
    layout = LAYOUTS[name]
    for spec in rows.specs(layout, 2, 8 * rows.width(layout)):
        for leading in rows.leadings(layout):
            if name == "glu-lab" and leading:
                continue  # tensors of a canonical FFN alone do not say which axis leads
            params = rows.random_params(spec, leading)
            whole = from_canonical(layout, params, spec, leading=leading)
            four = reshard(layout, [whole], 4, spec=spec)
            rows.assert_same(reshard(layout, four, 1, spec=spec)[0], whole)
            eight = reshard(layout, four, 8, spec=spec)
            two = reshard(layout, eight, 2, spec=spec)
            # Sizes and biases are read off the tensors where no Spec is given.
            experts = rows.SIZES["expert"] if name == "dbrx" else None
            rows.assert_same(reshard(layout, two, 1, experts=experts)[0], whole)


@pytest.mark.parametrize("name", ["gpt-neox", "hf-gpt-oss", "megatron-interleave-1", "te-jax"])
def test_a_rank_computes_its_part_of_the_output(name):
    """The outputs of all ranks, biases aside, add up to the whole's: rows of gate and up match."""
    layout = LAYOUTS[name]
    spec = variant("gpt_oss" if "oss" in name else "swiglu", d_model=4, d_ff=8)
    leading = rows.leadings(layout)[0]
    params = rows.normal_params(spec, leading)
    tensors = from_canonical(layout, params, spec, leading=leading)
    x = np.random.default_rng(0).normal(size=(3, 4))
    one = (1,) * len(leading)
    total = 0.0
    for rank in reshard(layout, [tensors], 4):
        local = infer_spec(layout, rank, variant="gpt_oss" if "oss" in name else "swiglu")
        assert local.d_ff == 2
        own = {k: v[one] for k, v in to_canonical(layout, rank, local).items()}
        total = total + oracle.ffn(
            {**own, **({"bo": 0 * own["bo"]} if "bo" in own else {})}, x, local
        )
    whole = {k: v[one] for k, v in params.items()}
    if "bo" in whole:
        total = total + whole["bo"]
    np.testing.assert_allclose(total, oracle.ffn(whole, x, spec), rtol=1e-12, atol=1e-13)


def test_contiguous_halves_of_a_packed_tensor_are_other_rows():
    """The reported fault: right shapes, right numbers, wrong rows, for gated FFNs only."""
    spec, params = marked(8)
    layout = LAYOUTS["megatron"]
    whole = from_canonical(layout, params, spec)
    right = reshard(layout, [whole], 2)
    wrong = np.split(whole["linear_fc1.weight"], 2)
    for rank in range(2):
        assert wrong[rank].shape == right[rank]["linear_fc1.weight"].shape
        assert not np.array_equal(wrong[rank], right[rank]["linear_fc1.weight"])
    # Rank 0 of the generic cut is the gate alone.
    np.testing.assert_array_equal(wrong[0], params["wi"][:, 0].T)


def test_value_first_ranks_are_value_first():
    spec, params = marked(8)
    layout = LAYOUTS["gpt-neox"]
    ranks = reshard(layout, [from_canonical(layout, params, spec)], 4)
    for r, tensors in enumerate(ranks):
        own = slice(2 * r, 2 * r + 2)
        want = np.concatenate([params["wi"][:, 1, own].T, params["wi"][:, 0, own].T])
        np.testing.assert_array_equal(tensors["linear1.weight"], want)


@pytest.mark.parametrize("width", [1, 2])
def test_interleaved_ranks_keep_their_blocks(width):
    from glu_lab.layouts import find

    spec, params = marked(8)
    layout = find(f"megatron-interleave-{width}")
    ranks = reshard(layout, [from_canonical(layout, params, spec)], 4)
    for r, tensors in enumerate(ranks):
        want = []
        for start in range(2 * r, 2 * r + 2, width):
            for branch in (0, 1):
                want += [params["wi"][:, branch, i] for i in range(start, start + width)]
        np.testing.assert_array_equal(tensors["linear_fc1.weight"], np.stack(want))


def test_the_output_bias_is_kept_once_and_never_summed():
    spec, params = marked(8, bias=True)
    layout = LAYOUTS["megatron"]
    four = reshard(layout, [from_canonical(layout, params, spec)], 4)
    for tensors in four:
        np.testing.assert_array_equal(tensors["linear_fc2.bias"], params["bo"])
    (whole,) = reshard(layout, four, 1)
    np.testing.assert_array_equal(whole["linear_fc2.bias"], params["bo"])
    four[2]["linear_fc2.bias"] = four[2]["linear_fc2.bias"] + 1
    with pytest.raises(LayoutError, match="'linear_fc2.bias' differs between ranks 0 and 2"):
        reshard(layout, four, 1)


@pytest.mark.parametrize(
    ("d_ff", "q", "message"),
    [
        (10, 4, "d_ff=10 cannot be cut into 4 equal parts; the nearest widths that can are 8 and "
         "12, and the degrees that divide 10 are 1, 2, 5, 10"),
        (7, 2, "are 6 and 8, and the degrees that divide 7 are 1, 7"),
        (3, 4, "the nearest widths that can are 4"),
        (8, 0, "ranks must be ≥ 1"),
    ],
)  # fmt: skip
def test_widths_that_do_not_divide_are_refused(d_ff, q, message):
    spec, params = marked(d_ff)
    whole = from_canonical(LAYOUTS["hf-phi3"], params, spec)
    with pytest.raises(LayoutError, match=message):
        reshard(LAYOUTS["hf-phi3"], [whole], q)


def test_blocks_that_a_rank_cannot_hold_whole_are_refused():
    spec, params = marked(64)
    layout = LAYOUTS["megatron-interleave-32"]
    whole = from_canonical(layout, params, spec)
    assert len(reshard(layout, [whole], 2)) == 2
    with pytest.raises(LayoutError, match="64 cannot be cut into 4 equal parts in blocks of 32"):
        reshard(layout, [whole], 4)


def test_ranks_that_differ_are_refused():
    spec, params = marked(8, bias=True)
    layout = LAYOUTS["megatron"]
    ranks = reshard(layout, [from_canonical(layout, params, spec)], 2)
    without = {k: v for k, v in ranks[1].items() if k != "linear_fc1.bias"}
    with pytest.raises(LayoutError, match="ranks 0 and 1 of 2 differ in 'linear_fc1.bias'"):
        reshard(layout, [ranks[0], without], 1, spec=spec)
    other = {k: v.astype(np.float32) for k, v in ranks[1].items()}
    with pytest.raises(LayoutError, match=r"is float64 \(.*\) in rank 0 and float32"):
        reshard(layout, [ranks[0], other], 1)
    with pytest.raises(LayoutError, match="no ranks"):
        reshard(layout, [], 1)


def test_names_and_layers_stay():
    layout = LAYOUTS["gpt-neox"]
    spec = variant("swiglu", d_model=2, d_ff=4)
    params = rows.random_params(spec, ("layer",))
    whole = from_canonical(layout, params, spec, leading=("layer",))
    assert set(whole) == {f"sequential.{n}.mlp.linear{i}.weight" for n in (2, 3, 4) for i in (1, 2)}
    for rank in reshard(layout, [whole], 2):
        assert rank.keys() == whole.keys()


def test_fsdp_shards_of_packed_ranks_come_back():
    """TP 2 × DP 4: each shard of the packed tensor is of one branch, or of two."""
    spec, params = marked(8, bias=True)
    layout = LAYOUTS["megatron"]
    whole = from_canonical(layout, params, spec)
    ranks = reshard(layout, [whole], 2)
    shards = [split_data_shards(tensors, 4) for tensors in ranks]
    # Shard 1 of rank 0 by hand: rows 2 and 3 of [gate 0…3; up 0…3].
    np.testing.assert_array_equal(shards[0][1]["linear_fc1.weight"], params["wi"][:, 0, 2:4].T)
    np.testing.assert_array_equal(shards[0][2]["linear_fc1.weight"], params["wi"][:, 1, 0:2].T)
    joined = [join_data_shards(own) for own in shards]
    rows.assert_same(reshard(layout, joined, 1)[0], whole)


def test_fsdp_shards_are_cut_as_torch_cuts_them():
    torch = pytest.importorskip("torch")
    array = np.arange(20.0).reshape(10, 2)
    for shards in (1, 3, 4, 7):
        want = [part.numpy() for part in torch.chunk(torch.tensor(array), shards)]
        got = [part["w"] for part in split_data_shards({"w": array}, shards) if len(part["w"])]
        assert [g.tolist() for g in got] == [w.tolist() for w in want]
    with pytest.raises(LayoutError, match="FSDP shards of 'w' differ"):
        join_data_shards([{"w": array}, {"w": array[:, :1]}])

"""Proof by rows: the formula on stored tensors, however they lie, against other statements."""

import numpy as np
import pytest

from glu_lab.layouts import LAYOUTS, Key, LayoutError, from_canonical, plan, take_stock
from glu_lab.layouts.proof import (
    Evaluated,
    Place,
    ProofError,
    compare,
    ends_of,
    evaluate,
    known_rows,
    places_of,
    prove,
)
from glu_lab.spec import variant
from glu_lab.spec.activation import ACTIVATIONS
from tests.layers import oracle
from tests.layouts import rows


def reader(by_rank):
    return lambda key: by_rank[key.rank][key.name]


@pytest.mark.parametrize("name", rows.NAMES)
def test_stored_tensors_of_every_layout_compute_the_oracles_formula(name):
    layout = LAYOUTS[name]
    spec = rows.specs(layout, 5, 3 * rows.width(layout))[-1]
    leading = rows.leadings(layout)[-1]
    params = rows.normal_params(spec, leading)
    tensors = from_canonical(layout, params, spec, leading=leading)
    stock = take_stock(layout, tensors, spec, leading=leading)
    place = places_of(stock)[-1]
    x = known_rows(spec.d_model)
    at = {"layer": place.layer, "expert": place.expert}
    own = {key: value[tuple(at[axis] for axis in leading)] for key, value in params.items()}
    got = evaluate(stock, reader([tensors]), place, x)
    want = oracle.ffn(own, x, spec)
    # The same sums of at most 96 terms in another order.
    np.testing.assert_allclose(got.y, want, rtol=1e-12, atol=1e-12 * got.magnitude.max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_has_the_oracles_value(activation):
    text = "swish(1.5)" if activation == "swish" else activation
    spec = variant(f"{text}*linear", d_model=4, d_ff=6)
    params = rows.normal_params(spec)
    stock = take_stock(LAYOUTS["glu-lab"], params, spec, leading=())
    x = known_rows(4)
    got = evaluate(stock, reader([params]), places_of(stock)[0], x).y
    np.testing.assert_allclose(got, oracle.ffn(params, x, spec), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (2, 3), (4, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_ranks_and_packing_change_no_bit(before, after, dtype):
    """Blocks are cut alike on both sides, so a right conversion differs by exactly zero."""
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    spec = variant("swiglu", d_model=5, d_ff=24)
    params = {k: v.astype(kind) for k, v in rows.normal_params(spec, ("layer",)).items()}
    whole = from_canonical(LAYOUTS["hf-llama"], params, spec, leading=("layer",))
    made = plan(LAYOUTS["hf-llama"], LAYOUTS["megatron"], whole, spec, ranks=before).run(whole)
    planned = plan(LAYOUTS["megatron"], LAYOUTS["megatron-dist"], made, spec, ranks=after)
    again = planned.run(made)
    target = take_stock(LAYOUTS["megatron-dist"], again, spec)
    found = prove(planned.source, reader(made), target, reader(again), every=True)
    assert (found.largest, len(found.places), found.total) == (0.0, 3, 3)


def _two(change):
    """A conversion to a packed layout, with one output changed."""
    spec = variant("swiglu", d_model=5, d_ff=8)
    params = rows.normal_params(spec, ("layer",))
    source = from_canonical(LAYOUTS["hf-llama"], params, spec, leading=("layer",))
    planned = plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], source, spec)
    made = planned.run(source)
    name = "model.layers.2.mlp.gate_up_proj.weight"
    made[0][name] = change(made[0][name])
    target = take_stock(LAYOUTS["hf-phi3"], made, spec)
    return planned.source, reader([source]), target, reader(made)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: np.concatenate(np.split(w, 2)[::-1]),
        lambda w: w.reshape(2, 8, 5).transpose(1, 0, 2).reshape(16, 5),
        lambda w: w * (1 + 1e-9),
        lambda w: np.where(w == w[3, 2], np.nan, w),
    ],
    ids=["value first", "interleaved", "one part in a billion", "one NaN"],
)
def test_a_wrong_output_fails(change):
    with pytest.raises(ProofError, match="hf-phi3, decoder layer 2"):
        prove(*_two(change))


def test_the_ends_of_each_stack_are_evaluated_or_all():
    places = [Place(s, i, e) for s in ("encoder", "decoder") for i in range(3) for e in range(2)]
    assert ends_of(places) == [
        Place("encoder", 0, 0),
        Place("encoder", 2, 1),
        Place("decoder", 0, 0),
        Place("decoder", 2, 1),
    ]
    assert ends_of(places[:1]) == places[:1]


def test_memory_of_an_evaluation_does_not_grow_with_the_width(monkeypatch):
    """Hidden channels are taken in blocks; the sum is that of one block to rounding."""
    from glu_lab.layouts import proof

    spec = variant("geglu_erf", d_model=4, d_ff=100, bias=True)
    params = rows.normal_params(spec)
    stock = take_stock(LAYOUTS["glu-lab"], params, spec, leading=())
    x = known_rows(4)
    whole = evaluate(stock, reader([params]), places_of(stock)[0], x)
    monkeypatch.setattr(proof, "_BLOCK", 4 * 7)
    seen = []
    monkeypatch.setattr(
        proof, "_hidden", lambda *a, real=proof._hidden: seen.append(a[-1]) or real(*a)
    )
    blocks = evaluate(stock, reader([params]), places_of(stock)[0], x)
    assert [stop - start for start, stop in seen] == [7] * 14 + [2]
    # No block crosses a multiple of 20, where another file's ranks may end.
    segments = evaluate(stock, reader([params]), places_of(stock)[0], x, 20)
    assert [stop - start for start, stop in seen[15:]] == [7, 7, 6] * 5
    scale = whole.magnitude.max()
    for cut in (blocks, segments):
        np.testing.assert_allclose(cut.y, whole.y, rtol=1e-12, atol=1e-12 * scale)


def test_an_ffn_that_is_not_there_is_refused():
    spec = variant("relu", d_model=2, d_ff=3)
    params = rows.normal_params(spec)
    stock = take_stock(LAYOUTS["glu-lab"], params, spec, leading=())
    with pytest.raises(LayoutError, match="there is no FFN layer 3"):
        evaluate(stock, lambda key: params[Key(*key).name], Place("", 3, None), known_rows(2))


def test_equal_infinities_agree_and_others_do_not():
    spec = variant("relu", d_model=2, d_ff=3)
    one, inf = np.ones((1, 2)), np.array([[np.inf, 1.0]])
    assert compare(Evaluated(inf, one), inf.copy(), spec, "x") == 0.0
    with pytest.raises(ProofError):
        compare(Evaluated(one, one), inf, spec, "x")

"""Canonical parameters to every layout and back, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glu_lab.errors import LayoutError
from glu_lab.layouts import CANONICAL, LAYOUTS, from_canonical, to_canonical
from tests.layouts import rows

#: Non-square, square, D = 2F, F = 2D, odd F, F = 1.
SHAPES = ((6, 10), (4, 4), (8, 4), (4, 8), (5, 7), (3, 1))


def round_trip(layout, spec, leading, params):
    tensors = from_canonical(layout, params, spec, leading=leading)
    own = leading if layout is CANONICAL else None
    again = to_canonical(layout, tensors, spec, leading=own)
    rows.assert_same(again, params)
    rows.assert_same(from_canonical(layout, again, spec, leading=leading), tensors)
    return tensors


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_row_inverts_at_every_shape_with_and_without_biases(name):
    layout = LAYOUTS[name]
    unit = rows.width(layout)
    seen = set()
    for d_model, d_ff in SHAPES:
        for spec in rows.specs(layout, d_model, d_ff * unit):
            for leading in rows.leadings(layout):
                params = rows.random_params(spec, leading)
                tensors = round_trip(layout, spec, leading, params)
                seen.update(tensors)
                # Nothing is created or lost.
                assert sum(t.size for t in tensors.values()) == sum(p.size for p in params.values())
    kinds = {row.holds for row in layout.tensors}
    assert kinds <= {"wi", "wo", "bi", "bp", "bo", "phi"} and seen


@pytest.mark.parametrize("name", rows.NAMES)
def test_the_dtype_is_kept(name):
    layout = LAYOUTS[name]
    spec = rows.specs(layout, 4, 6 * rows.width(layout))[-1]
    leading = rows.leadings(layout)[-1]
    for dtype in rows.DTYPES:
        tensors = round_trip(layout, spec, leading, rows.random_params(spec, leading, dtype))
        assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(dtype)}


@settings(max_examples=60)
@given(
    st.sampled_from(rows.NAMES),
    st.integers(1, 9),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_any_size_inverts(name, d_model, blocks, random):
    layout = LAYOUTS[name]
    spec = random.choice(rows.specs(layout, d_model, blocks * rows.width(layout)))
    leading = random.choice(rows.leadings(layout))
    round_trip(layout, spec, leading, rows.random_params(spec, leading))


@pytest.mark.parametrize("name", ["megatron-interleave-32", "megatron-experts-interleave-32"])
@pytest.mark.parametrize("d_ff", [31, 33, 48])
def test_blocks_that_do_not_fit_are_refused(name, d_ff):
    layout = LAYOUTS[name]
    spec = rows.specs(layout, 4, d_ff)[0]
    leading = rows.leadings(layout)[0]
    with pytest.raises(LayoutError, match="blocks of 32; the nearest widths that can are"):
        from_canonical(layout, rows.random_params(spec, leading), spec, leading=leading)


def test_a_product_in_another_order_is_stored_by_its_functions():
    """``linear*silu`` is the product ``silu*linear``: the activated branch goes into gate_proj."""
    from glu_lab.spec import variant

    layout = LAYOUTS["hf-llama"]
    spec = variant("linear*silu", d_model=3, d_ff=5)
    params = rows.random_params(spec)
    tensors = round_trip(layout, spec, (), params)
    assert rows.bits(tensors["gate_proj.weight"].T) == rows.bits(params["wi"][:, 1])
    assert rows.bits(tensors["up_proj.weight"].T) == rows.bits(params["wi"][:, 0])


def test_what_is_one_block_is_a_view():
    from glu_lab.spec import variant

    spec = variant("swiglu", d_model=4, d_ff=6)
    params = rows.random_params(spec)
    tensors = from_canonical(LAYOUTS["hf-llama"], params, spec)
    for name in ("gate_proj.weight", "up_proj.weight", "down_proj.weight"):
        owner = params["wo" if "down" in name else "wi"]
        assert np.shares_memory(tensors[name], owner), name
    back = to_canonical(LAYOUTS["hf-llama"], tensors, spec)
    assert np.shares_memory(back["wo"], params["wo"])

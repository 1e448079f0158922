"""Packed branches: read by the order and block that are stated, not by any other."""

import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.oracle import packing

GATE, UP = [f"g{i}" for i in range(8)], [f"u{i}" for i in range(8)]
CANONICAL = np.array([GATE, UP])


@pytest.mark.parametrize(
    ("order", "block", "stored"),
    [
        ((0, 1), 8, "g0 g1 g2 g3 g4 g5 g6 g7 u0 u1 u2 u3 u4 u5 u6 u7"),
        ((1, 0), 8, "u0 u1 u2 u3 u4 u5 u6 u7 g0 g1 g2 g3 g4 g5 g6 g7"),
        ((0, 1), 1, "g0 u0 g1 u1 g2 u2 g3 u3 g4 u4 g5 u5 g6 u6 g7 u7"),
        ((1, 0), 2, "u0 u1 g0 g1 u2 u3 g2 g3 u4 u5 g4 g5 u6 u7 g6 g7"),
        # Two ranks' [gate; up], end to end.
        ((0, 1), 4, "g0 g1 g2 g3 u0 u1 u2 u3 g4 g5 g6 g7 u4 u5 u6 u7"),
    ],
)
def test_stored_orders_read_back(order, block, stored):
    packed = np.array(stored.split())
    np.testing.assert_array_equal(packing.unpack(packed, order=order, block=block), CANONICAL)
    np.testing.assert_array_equal(packing.pack(CANONICAL, order=order, block=block), packed)


def test_three_branches_of_a_weight_read_back():
    wi = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    packed = packing.pack(wi, order=(2, 0, 1), block=2)
    assert packed.shape == (2, 12)
    np.testing.assert_array_equal(packed[0], [8, 9, 0, 1, 4, 5, 10, 11, 2, 3, 6, 7])
    np.testing.assert_array_equal(packing.unpack(packed, order=(2, 0, 1), block=2), wi)


def test_a_wrong_order_or_block_has_the_right_shape_and_other_numbers():
    packed = packing.pack(CANONICAL, order=(0, 1), block=8)
    for order, block in [((1, 0), 8), ((0, 1), 1), ((0, 1), 4)]:
        got = packing.unpack(packed, order=order, block=block)
        assert got.shape == CANONICAL.shape and not np.array_equal(got, CANONICAL)


@pytest.mark.parametrize(
    ("shape", "order", "block", "message"),
    [
        ((16,), (0, 0), 8, "each branch 0 to N − 1 once"),
        ((16,), (), 8, "each branch 0 to N − 1 once"),
        ((16,), (0, 1), 3, "block must divide d_ff=8"),
        ((16,), (0, 1), 0, "block must divide d_ff=8"),
        ((15,), (0, 1), 5, "last axis of 2 packed branches"),
        ((), (0, 1), 1, "last axis of 2 packed branches"),
    ],
)
def test_what_is_no_packing_is_refused(shape, order, block, message):
    with pytest.raises(SpecError, match=message):
        packing.unpack(np.zeros(shape), order=order, block=block)


def test_packing_needs_as_many_branches_as_the_order_names():
    with pytest.raises(SpecError, match=r"order \(0, 1, 2\) needs an array \(..., 3, F\)"):
        packing.pack(CANONICAL, order=(0, 1, 2), block=8)

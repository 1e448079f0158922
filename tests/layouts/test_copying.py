"""Transposes that are copied tile by tile, at sizes around a tile's."""

import numpy as np
import pytest

from glu_lab.layouts import contiguous
from glu_lab.layouts.copying import _TILE, copy_into
from tests.layouts import rows


@pytest.mark.parametrize("shape", [(1, 1), (_TILE, 3), (_TILE + 1, 2 * _TILE + 5), (300, 257)])
def test_a_transpose_is_copied_bit_for_bit(shape):
    values = np.frombuffer(np.random.default_rng(0).bytes(4 * shape[0] * shape[1]), np.float32)
    array = values.reshape(shape)
    made = contiguous(array.T)
    assert made.flags.c_contiguous and rows.bits(made) == rows.bits(array.T)
    assert contiguous(array) is array
    # Into one branch of a stack, as the canonical form holds it.
    stack = np.zeros((shape[1], 2, shape[0]), np.float32)
    copy_into(stack[:, 1], array.T)
    assert rows.bits(stack[:, 1]) == rows.bits(array.T) and not stack[:, 0].any()

"""Copies of large transposes."""

import numpy as np

#: Side of the square tiles in which a transpose is copied; four of them fit in a core's cache.
_TILE = 128


def copy_into(place: np.ndarray, values: np.ndarray) -> None:
    """``place[...] = values``, tile by tile where the two lie in transposed order.

    Element by element, a large transpose misses the cache at each step.
    """
    crossed = (
        place.ndim == 2
        and min(place.shape) > _TILE
        and (abs(place.strides[0]) < abs(place.strides[1]))
        != (abs(values.strides[0]) < abs(values.strides[1]))
    )
    if not crossed:
        place[...] = values
        return
    rows, columns = place.shape
    for i in range(0, rows, _TILE):
        for j in range(0, columns, _TILE):
            tile = slice(i, i + _TILE), slice(j, j + _TILE)
            place[tile] = values[tile]


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in C order: itself, or a copy that is fast for a transpose."""
    if array.flags.c_contiguous:
        return array
    made = np.empty(array.shape, array.dtype)
    copy_into(made, array)
    return made

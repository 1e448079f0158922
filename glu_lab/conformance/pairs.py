"""Covering arrays of strength two: every pair of values of two axes stands in some row.

Greedy, in the manner of AETG (Cohen et al. 1997, IEEE Trans. Softw. Eng. 23(7)): each row starts
with a pair that no row has yet, and takes on every other axis the value that brings most new pairs.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: Axis → value; axes that are not chosen yet are absent.
Partial = Mapping[str, str]

_Pair = tuple[tuple[str, str], tuple[str, str]]


class Covering(NamedTuple):
    """A covering array.

    Attributes:
        rows: axis → value, one mapping a row.
        impossible: pairs (axis, value) that no allowed row has.
    """

    rows: tuple[dict[str, str], ...]
    impossible: tuple[_Pair, ...]


def covering(
    axes: Mapping[str, Sequence[str]], allowed: Callable[[Partial], bool] = lambda row: True
) -> Covering:
    """Rows in which every allowed pair of values occurs; the same in every run.

    Args:
        axes: axis → its values. With an axis of one value, or none, the others' pairs remain.
        allowed: whether a row may be, and whether one that is still incomplete may become one.
    """
    names = sorted(axes, key=lambda name: -len(axes[name]))
    uncovered: dict[_Pair, None] = {}
    for one, other in itertools.combinations(names, 2):
        for a, b in itertools.product(axes[one], axes[other]):
            uncovered[(one, a), (other, b)] = None
    used: Counter[tuple[str, str]] = Counter()
    rows, impossible = [], []
    while uncovered:
        pair = next(iter(uncovered))
        row = _completed(dict(pair), names, axes, allowed, uncovered, used)
        if row is None:
            impossible.append(pair)
            del uncovered[pair]
            continue
        for covered in itertools.combinations([(name, row[name]) for name in names], 2):
            uncovered.pop(covered, None)
        used.update(row.items())
        rows.append({name: row[name] for name in axes})
    return Covering(tuple(rows), tuple(impossible))


def _completed(
    row: dict[str, str],
    names: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    allowed: Callable[[Partial], bool],
    uncovered: Mapping[_Pair, None],
    used: Mapping[tuple[str, str], int],
) -> dict[str, str] | None:
    """The row with every axis chosen; None when no choice is allowed."""
    if not allowed(row):
        return None
    if len(row) == len(names):
        return row
    axis = next(name for name in names if name not in row)
    place = {name: index for index, name in enumerate(names)}

    def new_pairs(value: str) -> int:
        chosen = (axis, value)
        return sum(
            tuple(sorted((chosen, item), key=lambda entry: place[entry[0]])) in uncovered
            for item in row.items()
        )

    # The least used of equals, so that rows differ also where nothing asks them to.
    order = sorted(axes[axis], key=lambda value: (-new_pairs(value), used[axis, value]))
    for value in order:
        found = _completed({**row, axis: value}, names, axes, allowed, uncovered, used)
        if found is not None:
            return found
    return None

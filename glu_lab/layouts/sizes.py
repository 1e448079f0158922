"""Sizes of axes from the shapes of stored tensors.

Each stored dimension is an equation: the product of its axes' sizes is its length. A shape never
decides which of two equal lengths is which axis; the layout's row does.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from glu_lab.layouts.axes import Group, parse, present
from glu_lab.layouts.layout import Tensor
from glu_lab.layouts.names import Named

#: The letters that messages use.
LETTERS = {"embed": "D", "mlp": "F", "branch": "N", "layer": "L", "expert": "E"}


class Shaped(NamedTuple):
    """A recognised tensor with its stored dimensions and shape."""

    named: Named
    dimensions: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]


class Mismatch(Exception):
    """A shape that contradicts the sizes known so far.

    Attributes:
        shaped: the tensor.
        message: what contradicts.
    """

    def __init__(self, shaped: Shaped, message: str):
        super().__init__(message)
        self.shaped, self.message = shaped, message


def required_rank(row: Tensor) -> int:
    """Number of stored dimensions without the optional ones."""
    return sum(not group.optional for group in parse(row.axes))


def optional_axes(groups: tuple[Group, ...]) -> tuple[str, ...]:
    """The axes that may be absent, in stored order."""
    return tuple(group.factors[0] for group in groups if group.optional)


def dimensions_of(
    named: Named, shape: tuple[int, ...], leading: tuple[str, ...] | None
) -> tuple[tuple[str, ...], ...]:
    """The stored dimensions of a tensor, its optional axes told from its rank.

    Args:
        named: the tensor.
        shape: its shape.
        leading: the optional axes that are there, where the caller knows; None to tell.

    Raises:
        ValueError: when the rank leaves open which optional axis is there, or fits none.
    """
    groups = parse(named.row.axes)
    choices = optional_axes(groups)
    if named.prefix.has_layer:
        choices = tuple(axis for axis in choices if axis != "layer")
    extra = len(shape) - required_rank(named.row)
    if leading is not None:
        have = tuple(axis for axis in choices if axis in leading)
    elif extra == 0:
        have = ()
    elif extra == len(choices):
        have = choices
    elif extra == 1 and "layer" in choices and named.prefix.template:
        have = ("layer",)
    elif 0 < extra < len(choices):
        raise ValueError(
            f"{named.name!r} of shape {shape} has {extra} leading axis more than one FFN; say "
            f"which with leading=: {' or '.join(repr((axis,)) for axis in choices)}."
        )
    else:
        have = ()
    return present(named.row.axes, frozenset(have))


def row_sizes(row: Tensor, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes inside one row: its ``branch`` axis is as long as the branches it holds."""
    own = dict(sizes)
    if row.branches:
        own["branch"] = len(row.branches)
    return own


class Solution(NamedTuple):
    """Sizes that shapes determine.

    Attributes:
        shared: of D, F and N, the same in all tensors.
        own: for each tensor, of all its axes. L is one a stack, E one a layer.
    """

    shared: dict[str, int]
    own: list[dict[str, int]]


def solve(tensors: Iterable[Shaped], known: Mapping[str, int]) -> Solution:
    """Sizes of every axis that the shapes determine.

    Args:
        tensors: the stored tensors.
        known: sizes that are given.

    Raises:
        Mismatch: for the first tensor whose shape contradicts.
    """
    tensors = list(tensors)
    for item in tensors:
        if len(item.shape) != len(item.dimensions):
            raise Mismatch(item, f"it has {len(item.shape)} dimensions")
    solved: dict[tuple, int] = {(axis,): size for axis, size in known.items() if axis != "expert"}
    if "expert" in known:
        solved |= {_scope("expert", item.named): known["expert"] for item in tensors}
    # Equations with one unknown first; those that join two become such on a later pass.
    pending, changed = tensors, True
    while changed:
        changed, waiting = False, []
        for item in pending:
            own = _own(item, solved)
            for factors, length in zip(item.dimensions, item.shape, strict=True):
                unknown = [factor for factor in factors if factor not in own]
                part = math.prod(own[factor] for factor in factors if factor in own)
                text = "·".join(LETTERS[factor] for factor in factors)
                if not unknown and part != length:
                    raise Mismatch(item, f"its axis {text} has length {length}, not {part}")
                if len(unknown) != 1:
                    continue
                if not part or length < part or length % part:
                    raise Mismatch(
                        item, f"the length {length} of its axis {text} is no multiple of {part}"
                    )
                own[unknown[0]] = solved[_scope(unknown[0], item.named)] = length // part
                changed = True
            if any(factor not in own for factors in item.dimensions for factor in factors):
                waiting.append(item)
        pending = waiting
    shared = {key[0]: size for key, size in solved.items() if len(key) == 1}
    return Solution(shared, [_own(item, solved) for item in tensors])


def _scope(axis: str, named: Named) -> tuple:
    """Among which tensors an axis has one size."""
    if axis == "layer":
        return (axis, named.prefix)
    return (axis, named.prefix, named.layer) if axis == "expert" else (axis,)


def _own(item: Shaped, solved: Mapping[tuple, int]) -> dict[str, int]:
    """The known sizes of one tensor's axes."""
    scopes = {axis: _scope(axis, item.named) for axis in LETTERS}
    sizes = {axis: solved[scope] for axis, scope in scopes.items() if scope in solved}
    return row_sizes(item.named.row, sizes)


def symbolic(dimensions: tuple[tuple[str, ...], ...]) -> str:
    """A shape in letters, ``(N·F, D)``."""
    inner = ", ".join("·".join(LETTERS[f] for f in factors) for factors in dimensions)
    return f"({inner}{',' if len(dimensions) == 1 else ''})"

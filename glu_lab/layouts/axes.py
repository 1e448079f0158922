"""The axes of a stored tensor as text, and where in the tensor one block of an FFN stands.

A *block* is one branch of one piece for one layer and expert: ``(D, F)`` of the input projection,
``(F, D)`` of the output projection, a vector of a bias. In every stored tensor a block is a regular
grid of elements, so that it is a view, or (interleaved in blocks) a gather along one axis.

Dimension letters: D d_model, F d_ff, N branches, L layers, E experts.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layouts.copying import copy_into

#: Logical axes that a stored tensor can have.
AXES = ("layer", "expert", "branch", "embed", "mlp")

_GROUP = re.compile(r"\(([^()]*)\)|([^\s()]+)")


class Group(NamedTuple):
    """One stored dimension: the axes that it joins, slowest first."""

    factors: tuple[str, ...]
    optional: bool = False


@functools.cache
def parse(axes: str) -> tuple[Group, ...]:
    """Reads ``"expert? (branch mlp) embed"``.

    Raises:
        UnknownNameError: for an axis that does not exist.
        SpecError: for an axis named twice, or text that is not of this form.
    """
    groups, seen = [], []
    if _GROUP.sub("", axes).strip():
        raise SpecError(f"axes {axes!r} do not read as names and (joined names).")
    for match in _GROUP.finditer(axes):
        joined, single = match.groups()
        optional = bool(single and single.endswith("?"))
        factors = tuple(joined.split()) if single is None else (single.rstrip("?"),)
        if not factors:
            raise SpecError(f"axes {axes!r} have an empty pair of parentheses.")
        for factor in factors:
            if factor not in AXES:
                raise UnknownNameError("axis", factor, AXES)
            seen.append(factor)
        if optional and factors[0] not in ("layer", "expert"):
            raise SpecError(f"axes {axes!r}: only layer and expert may be optional (?).")
        groups.append(Group(factors, optional))
    for factor in seen:
        if seen.count(factor) > 1:
            raise SpecError(f"axes {axes!r} name {factor!r} twice.")
    for group in groups:
        if "mlp" in group.factors and "embed" in group.factors:
            raise SpecError(f"axes {axes!r} join mlp and embed in one dimension.")
    return tuple(groups)


def has_field(groups: tuple[Group, ...], axis: str) -> bool:
    """Whether an axis stands among those of a tensor."""
    return any(axis in group.factors for group in groups)


def present(axes: str, optional: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """The stored dimensions, of the optional axes only those in `optional`."""
    return tuple(
        group.factors for group in parse(axes) if not group.optional or group.factors[0] in optional
    )


def shape_of(dimensions: tuple[tuple[str, ...], ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor with these dimensions."""
    return tuple(math.prod(sizes[factor] for factor in factors) for factors in dimensions)


class Span(NamedTuple):
    """The positions of indices start…stop−1 of an axis along one stored dimension.

    Index i stands at ``base + (i // width) · high + (i % width) · low``.
    """

    base: int
    high: int
    low: int
    width: int
    start: int
    stop: int

    def positions(self) -> slice | np.ndarray:
        """A slice where the positions are evenly spaced, an array of them otherwise."""
        first = self.at(self.start)
        if self.stop - self.start <= 1:
            return slice(first, first + 1)
        if self.width == 1:
            return slice(first, self.at(self.stop - 1) + 1, self.high)
        if self.start // self.width == (self.stop - 1) // self.width:
            return slice(first, self.at(self.stop - 1) + 1, self.low)
        indices = np.arange(self.start, self.stop)
        return self.base + indices // self.width * self.high + indices % self.width * self.low

    def at(self, i: int) -> int:
        """The position of one index."""
        return self.base + i // self.width * self.high + i % self.width * self.low


@dataclasses.dataclass(frozen=True)
class Access:
    """Where a block stands in a stored tensor, as data.

    Attributes:
        index: one entry a stored dimension: a position, or a span of a block's axis.
        order: permutation that takes the spans' order to the block's canonical axes.
    """

    index: tuple[int | Span, ...]
    order: tuple[int, ...]

    def _split(self) -> tuple[tuple, int | None, np.ndarray | None]:
        """Basic index, and the axis (after it) and positions of a gather, if there is one."""
        basic, axis, gather, kept = [], None, None, 0
        for item in self.index:
            if isinstance(item, int):
                basic.append(item)
                continue
            positions = item.positions()
            if isinstance(positions, slice):
                basic.append(positions)
            else:
                basic.append(slice(None))
                axis, gather = kept, positions
            kept += 1
        return (*basic, ...), axis, gather

    def read(self, array: np.ndarray) -> np.ndarray:
        """The block, in canonical orientation; a view unless it is gathered."""
        basic, axis, gather = self._split()
        block = array[basic]
        if gather is not None:
            block = np.take(block, gather, axis=axis)
        return block.transpose(self.order)

    def write(self, array: np.ndarray, block: np.ndarray) -> None:
        """Puts a block in canonical orientation into its place, bit for bit."""
        basic, axis, gather = self._split()
        place, stored = array[basic], block.transpose(_inverse(self.order))
        if gather is None:
            copy_into(place, stored)
        else:
            place[(*(slice(None),) * (axis or 0), gather)] = stored

    def stored(self, block: np.ndarray) -> np.ndarray:
        """A whole tensor that holds this one block alone, as a view of the block."""
        array = block.transpose(_inverse(self.order))
        for position, item in enumerate(self.index):
            if isinstance(item, int):
                array = np.expand_dims(array, position)
        return array

    @property
    def gathers(self) -> bool:
        """Whether reading it copies."""
        return self._split()[2] is not None


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def access(
    dimensions: tuple[tuple[str, ...], ...],
    sizes: Mapping[str, int],
    *,
    block_axes: tuple[str, ...],
    at: Mapping[str, int],
    mlp: tuple[int, int],
    interleave: int = 1,
) -> Access:
    """Where one block stands.

    Args:
        dimensions: of the stored tensor, from `present`.
        sizes: of every axis in it.
        block_axes: the block's canonical axes.
        at: position of the block along the axes that it does not have.
        mlp: first and past-the-last hidden channel of the block.
        interleave: width of alternating blocks of branches.
    """
    return _access(
        dimensions,
        tuple(sizes.items()),
        block_axes,
        tuple(at.items()),
        mlp,
        interleave,
    )


@functools.lru_cache(maxsize=4096)  # the experts of a model stand alike in tensors of their own
def _access(
    dimensions: tuple[tuple[str, ...], ...],
    size_items: tuple[tuple[str, int], ...],
    block_axes: tuple[str, ...],
    at_items: tuple[tuple[str, int], ...],
    mlp: tuple[int, int],
    interleave: int,
) -> Access:
    sizes, at = dict(size_items), dict(at_items)
    index: list[int | Span] = []
    found: list[str] = []
    for factors in dimensions:
        digits = [(factor, sizes[factor]) for factor in factors]
        width = 1
        if "mlp" in factors and "branch" in factors[factors.index("mlp") :]:
            width = interleave
            place = factors.index("mlp")
            digits[place] = ("mlp", sizes["mlp"] // width)
            digits.insert(factors.index("branch") + 1, ("low", width))
        strides, stride = {}, 1
        for name, size in reversed(digits):
            strides[name] = stride
            stride *= size
        base = sum(at[name] * strides[name] for name in factors if name in at)
        inner = [name for name in factors if name in block_axes]
        if not inner:
            index.append(base)
            continue
        (axis,) = inner
        start, stop = mlp if axis == "mlp" else (0, sizes[axis])
        index.append(Span(base, strides[axis], strides.get("low", 1), width, start, stop))
        found.append(axis)
    return Access(tuple(index), tuple(found.index(axis) for axis in block_axes))

"""Walks the rows of a target layout for every layer and expert of a source.

Dimension letters: D d_model, F d_ff, N branches, L layers, E experts, P tensor-parallel degree.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glu_lab.errors import LayoutError
from glu_lab.layouts.axes import access, parse, present, shape_of
from glu_lab.layouts.function import Fit
from glu_lab.layouts.inventory import Block, Inventory
from glu_lab.layouts.layout import PIECE_AXES, Layout, Prefix, Tensor
from glu_lab.layouts.names import name_of
from glu_lab.layouts.outputs import Copy, Key, Output
from glu_lab.layouts.sizes import optional_axes
from glu_lab.spec.ffn import FFN

#: Layer → the experts of its FFN, ``[None]`` for a dense one.
Layers = Mapping[int | None, Sequence[int | None]]


@dataclasses.dataclass
class Planner:
    """Walks the rows of the target for every layer and expert of the source."""

    stock: Inventory
    target: Layout
    fitted: Fit
    spec: FFN
    ranks: int
    replicated: dict[str, None] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.source_shapes = {
            at.named.name: shape_of(at.dimensions, at.sizes) for at in self.stock.blocks.values()
        }

    def stack(self, stack: str, prefix: Prefix, layers: Layers) -> Iterator[Output]:
        """The outputs of all FFNs of one stack."""
        for row in self.target.rows(self.spec.num_branches):
            dimensions = self._dimensions(row, prefix, layers)
            factors = {factor for group in dimensions for factor in group}
            for layer, group in self._layer_groups(prefix, layers, factors):
                for expert, experts in self._expert_groups(row, layers, group, factors):
                    for branch, slots, scalar in self._parts(row, factors):
                        fields = {"layer": layer, "expert": expert, "scalar": scalar}
                        name = name_of(row, prefix, branch=branch, **fields)
                        blocks = [
                            self._block(stack, row, at, scalar)
                            for at in _positions(group, experts, slots)
                        ]
                        sizes = {"layer": len(group), "expert": len(experts)}
                        yield from self._outputs(name, row, dimensions, sizes, blocks)

    def _dimensions(self, row: Tensor, prefix: Prefix, layers: Layers):
        optional = set(optional_axes(parse(row.axes)))
        if prefix.has_layer or list(layers) == [None]:
            optional.discard("layer")
        if all(list(experts) == [None] for experts in layers.values()):
            optional.discard("expert")
        return present(row.axes, frozenset(optional))

    def _layer_groups(self, prefix: Prefix, layers: Layers, factors: set[str]):
        """(layer in the name, layers in the tensor) of each tensor of a row."""
        numbers = list(layers)
        if "layer" in factors:
            if numbers != list(range(len(numbers))):
                have = "one FFN without a layer" if numbers == [None] else f"layers {numbers}"
                raise LayoutError(
                    f"{self.target.name} stacks layers 0, 1, 2, … in one tensor; the source has "
                    f"{have}."
                )
            return [(None, numbers)]
        if prefix.has_layer:
            if numbers == [None]:
                raise LayoutError(
                    f"prefix {prefix.template!r} needs a layer; the source is one FFN without one."
                )
            return [(number, [number]) for number in numbers]
        if len(numbers) > 1:
            raise LayoutError(
                f"{self.target.name} at prefix {prefix.template!r} stores one FFN; the source has "
                f"{len(numbers)} layers. Give a prefix with {{layer}}."
            )
        return [(None, numbers)]

    def _expert_groups(
        self, row: Tensor, layers: Layers, group: Sequence[int | None], factors: set[str]
    ):
        """(expert in the name, experts in the tensor) of each tensor of a row."""
        experts = list(layers[group[0]])
        for layer in group[1:]:
            if list(layers[layer]) != experts:
                raise LayoutError(
                    f"{self.target.name} stacks layers in one tensor; layers {group[0]} and "
                    f"{layer} have different experts."
                )
        named, stacked = "{expert}" in row.name, "expert" in factors
        if experts == [None]:
            if named or stacked:
                raise LayoutError(
                    f"{self.target.name} stores the FFNs of experts; the source's FFN has none."
                )
            return [(None, experts)]
        if stacked:
            return [(None, experts)]
        if named:
            return [(expert, [expert]) for expert in experts]
        raise LayoutError(
            f"{self.target.name} stores one FFN a layer; the source has {len(experts)} experts."
        )

    def _parts(self, row: Tensor, factors: set[str]):
        """(branch in the name, branches in the tensor, scalar) of each tensor of a row."""
        n, slots = self.spec.num_branches, self.fitted.slots
        held = self.target.branches_of(row, n)
        if row.holds == "wi":
            wanted = list(held)
        elif row.holds == "bi":
            wanted = [b for b in held if self.spec.branches[slots[b]].bias]
        elif row.holds == "phi":
            for b in held:
                for scalar in self.spec.branches[slots[b]].activation.row.learned:
                    yield b, (b,), scalar
            return
        else:
            there = {"wo": True, "bp": self.spec.product_bias, "bo": self.spec.output_bias}
            if there[row.holds]:
                yield None, (None,), None
            return
        if "branch" in factors:
            if wanted:
                yield None, tuple(held), None
        else:
            named = "{branch}" in row.name
            for b in wanted:
                yield (b if named else None), (b,), None

    def _block(self, stack: str, row: Tensor, at: Mapping[str, Any], scalar: str | None):
        slot = at["slot"]
        branch = None if slot is None else self.fitted.slots[slot]
        block = Block(stack, at["layer"], at["expert"], row.holds, branch, scalar)
        return block, {axis: at[f"{axis}_position"] for axis in ("layer", "expert", "branch")}

    def _outputs(
        self,
        name: str,
        row: Tensor,
        dimensions: tuple[tuple[str, ...], ...],
        lengths: Mapping[str, int],
        blocks: list[tuple[Block, dict[str, int]]],
    ) -> Iterator[Output]:
        """One tensor in every rank."""
        local = self.spec.d_ff // self.ranks
        sizes = {"embed": self.spec.d_model, "mlp": local, **lengths}
        sizes["branch"] = 1 + max(at["branch"] for _, at in blocks)
        factors = {factor for group in dimensions for factor in group}
        shape = shape_of(dimensions, sizes)
        if "mlp" not in factors:
            self.replicated[name] = None
        for rank in range(self.ranks):
            copies: list[Copy] = []
            filled = 0
            for block, at in blocks:
                here = {axis: position for axis, position in at.items() if axis in factors}
                for copy, size in self._copies(block, rank, dimensions, sizes, here, row):
                    copies.append(copy)
                    filled += size
            dtype = self._dtype(name, copies, blocks)
            order = {copy.source: i for i, copy in reversed(list(enumerate(copies)))}
            copies.sort(key=lambda copy: order[copy.source])
            full = filled == math.prod(shape)
            yield Output(
                key=Key(name, rank),
                shape=shape,
                dtype=dtype,
                copies=tuple(copies),
                full=full,
                renames=self._renames(copies, shape) if full else None,
            )

    def _copies(
        self,
        block: Block,
        rank: int,
        dimensions: tuple[tuple[str, ...], ...],
        sizes: Mapping[str, int],
        at: Mapping[str, int],
        row: Tensor,
    ) -> Iterator[tuple[Copy, int]]:
        """A block's part in one target rank, from each source rank that holds some of it."""
        location = self.stock.blocks.get(block)
        if location is None:
            return
        axes = PIECE_AXES[row.holds]
        theirs = location.sizes
        source_rank = range(self.stock.ranks)
        one, other = theirs["mlp"], sizes["mlp"]
        if "mlp" not in axes:
            ranges = [(0, 0, 0, 0)]
        else:
            ranges = [
                (r, max(r * one, rank * other), min((r + 1) * one, (rank + 1) * other), one)
                for r in source_rank
            ]
        for r, start, stop, width in ranges:
            if width and start >= stop:
                continue
            take = access(
                location.dimensions,
                theirs,
                block_axes=axes,
                at=location.at,
                mlp=(start - r * one, stop - r * one),
                interleave=location.named.row.interleave,
            )
            put = access(
                dimensions,
                sizes,
                block_axes=axes,
                at=at,
                mlp=(start - rank * other, stop - rank * other),
                interleave=row.interleave,
            )
            replicas = () if width else tuple(Key(location.named.name, i) for i in source_rank[1:])
            size = math.prod(stop - start if axis == "mlp" else sizes[axis] for axis in axes)
            yield Copy(Key(location.named.name, r), take, put, replicas), size

    def _dtype(self, name: str, copies: list[Copy], blocks: list[tuple[Block, dict]]) -> Any:
        """The one dtype of all inputs: nothing is cast."""
        dtypes = {copy.source.name: self.stock.dtypes[copy.source.name] for copy in copies}
        if not dtypes:  # zeros, in the format of the FFN's own weights
            wo = self.stock.blocks[blocks[0][0]._replace(piece="wo", branch=None)]
            return self.stock.dtypes[wo.named.name]
        if len(set(dtypes.values())) > 1:
            listed = ", ".join(f"{key!r} {dtype}" for key, dtype in sorted(dtypes.items())[:4])
            raise LayoutError(
                f"{self.target.name} stores {name!r} as one tensor, of inputs that differ in "
                f"dtype: {listed}. Nothing is cast silently."
            )
        return next(iter(dtypes.values()))

    def _renames(self, copies: list[Copy], shape: tuple[int, ...]) -> Key | None:
        """The source that already is the output, byte for byte."""
        source = copies[0].source
        same = all(copy.source == source and copy.take == copy.put for copy in copies)
        return source if same and self.source_shapes[source.name] == shape else None


def _positions(
    layers: Sequence[int | None],
    experts: Sequence[int | None],
    slots: Sequence[int | None],
) -> Iterator[dict[str, Any]]:
    """Every FFN and branch in one tensor, with its positions along the tensor's axes."""
    for i, layer in enumerate(layers):
        for j, expert in enumerate(experts):
            for k, slot in enumerate(slots):
                yield {
                    "layer": layer,
                    "expert": expert,
                    "slot": slot,
                    "layer_position": i,
                    "expert_position": j,
                    "branch_position": k,
                }

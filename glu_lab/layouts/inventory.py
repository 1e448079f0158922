"""What a file's tensors hold, block by block, after every check that needs no values.

Dimension letters: D d_model, F d_ff, N branches, L layers, E experts, P tensor-parallel degree.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from glu_lab.errors import LayoutError
from glu_lab.layouts import hints
from glu_lab.layouts.biases import check_biases
from glu_lab.layouts.function import Fit, fit
from glu_lab.layouts.layout import BRANCH_PIECES, Layout, Prefix, Tensor
from glu_lab.layouts.names import Named, Recognised, name_of, recognise
from glu_lab.layouts.sizes import Mismatch, Shaped, dimensions_of, solve
from glu_lab.spec.ffn import FFN


class Stored(Protocol):
    """What is known of a tensor without reading it; arrays have it, and so do file headers."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...


#: The tensors of one rank, by name.
Tensors = Mapping[str, Stored]


class Block(NamedTuple):
    """One branch of one piece of one FFN.

    Attributes:
        stack: of the FFN.
        layer, expert: of the FFN; None where it has none.
        piece: the canonical piece.
        branch: number of the Spec's branch; None for pieces that are not one a branch.
        scalar: name of a learned scalar.
    """

    stack: str
    layer: int | None
    expert: int | None
    piece: str
    branch: int | None = None
    scalar: str | None = None


class Location(NamedTuple):
    """The stored tensor that a block stands in.

    Attributes:
        named: the tensor.
        dimensions: its stored dimensions.
        at: the block's position along the axes that it does not have itself.
        sizes: of the tensor's axes.
    """

    named: Named
    dimensions: tuple[tuple[str, ...], ...]
    at: Mapping[str, int]
    sizes: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Inventory:
    """Every block of a file and where it stands.

    Attributes:
        layout, spec: what the file was read as.
        fit: how the Spec's branches are numbered in the layout.
        ranks: P, over how many files each FFN is spread.
        sizes: of D, F of one rank, and N.
        blocks: block → location; the same in every rank.
        dtypes: name → dtype.
        recognised: names of the first rank.
    """

    layout: Layout
    spec: FFN
    fit: Fit
    ranks: int
    sizes: Mapping[str, int]
    blocks: Mapping[Block, Location]
    dtypes: Mapping[str, Any]
    recognised: Recognised

    def places(self) -> dict[str, dict[int | None, list[int | None]]]:
        """Stack → layer → experts, each in order."""
        found: dict[str, dict[int | None, set]] = {}
        for block in self.blocks:
            found.setdefault(block.stack, {}).setdefault(block.layer, set()).add(block.expert)

        def order(keys: Iterable[int | None]) -> list[int | None]:
            return sorted(keys, key=lambda k: -1 if k is None else k)

        return {
            stack: {layer: order(layers[layer]) for layer in order(layers)}
            for stack, layers in found.items()
        }


def blocks_of(spec: FFN, stack: str, layer: int | None, expert: int | None) -> list[Block]:
    """The blocks of one FFN of a Spec."""
    place = (stack, layer, expert)
    found = [Block(*place, "wi", i) for i in range(spec.num_branches)]
    found.append(Block(*place, "wo"))
    for i, branch in enumerate(spec.branches):
        if branch.bias:
            found.append(Block(*place, "bi", i))
        found += [Block(*place, "phi", i, name) for name in branch.activation.row.learned]
    if spec.product_bias:
        found.append(Block(*place, "bp"))
    if spec.output_bias:
        found.append(Block(*place, "bo"))
    return found


def row_for(layout: Layout, fitted: Fit, block: Block, n: int) -> tuple[Tensor, int | None] | None:
    """The row that holds a block, and the branch's number in the layout."""
    slot = None if block.branch is None else fitted.slots.index(block.branch)
    for row in layout.rows(n):
        if row.holds == block.piece and (slot is None or slot in layout.branches_of(row, n)):
            return row, slot
    return None


def take_stock(
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    spec: FFN,
    *,
    prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
) -> Inventory:
    """Finds every block of every FFN of a Spec in the tensors of a file.

    Args:
        layout: the storage convention.
        tensors: by name, or one such mapping a tensor-parallel rank.
        spec: of one FFN (of one expert).
        prefixes: where FFNs stand; by default the layout's own and that of an FFN alone.
        leading: for tensors of an FFN alone, which optional axes are there.

    Raises:
        LayoutError: for missing tensors, tensors that would be left over, wrong shapes, ranks that
            differ, or a function or biases that the layout cannot have; each with its name.
    """
    by_rank = [tensors] if isinstance(tensors, Mapping) else list(tensors)
    if not by_rank:
        raise LayoutError(f"{layout.name}: no ranks were given.")
    fitted = fit(layout, spec)
    check_biases(layout, spec)
    p, n = len(by_rank), spec.num_branches
    first = by_rank[0]
    recognised = recognise(layout, first, n, prefixes)
    _check_names(layout, recognised, first, n)
    _check_prefixes(layout, recognised)
    _same_ranks(layout, by_rank, recognised, n, prefixes)
    if spec.d_ff % p:
        raise LayoutError(hints.indivisible(spec.d_ff, p))
    known = {"embed": spec.d_model, "mlp": spec.d_ff // p, "branch": n}
    shaped = []
    for named in recognised.named:
        shape = tuple(first[named.name].shape)
        try:
            shaped.append(Shaped(named, dimensions_of(named, shape, leading), shape))
        except ValueError as error:
            raise LayoutError(f"{layout.name}: {error}") from None
    try:
        solved = solve(shaped, known)
    except Mismatch as mismatch:
        raise LayoutError(hints.wrong_shape(layout, mismatch, known, p)) from None
    for item in shaped:
        width = item.named.row.interleave
        if known["mlp"] % width:
            raise LayoutError(hints.uneven_blocks(layout, width, spec.d_ff, p))
    blocks: dict[Block, Location] = {}
    for item, own in zip(shaped, solved.own, strict=True):
        for block, location in _expand(layout, fitted, item, own, n):
            if block in blocks:
                other = blocks[block].named.name
                raise LayoutError(
                    f"{layout.name}: {other!r} and {item.named.name!r} hold the same part of one "
                    "FFN; name the prefix that is meant."
                )
            blocks[block] = location
    _check_complete(layout, fitted, spec, blocks)
    dtypes = {item.named.name: first[item.named.name].dtype for item in shaped}
    return Inventory(layout, spec, fitted, p, solved.shared, blocks, dtypes, recognised)


def _same_ranks(
    layout: Layout,
    by_rank: Sequence[Tensors],
    found: Recognised,
    n: int,
    prefixes: Sequence[Prefix] | None,
) -> None:
    """Every rank has the FFN tensors of the first, alike in shape and dtype."""
    first = {named.name for named in found.named}
    for rank, other in enumerate(by_rank[1:], start=1):
        theirs = recognise(layout, other, n, prefixes)
        differ = sorted(first ^ {named.name for named in theirs.named})
        differ += [*theirs.strange, *theirs.refused]
        if differ:
            raise LayoutError(
                f"{layout.name}: ranks 0 and {rank} of {len(by_rank)} differ in "
                f"{hints.some(differ)}."
            )
        for name in first:
            here, there = by_rank[0][name], other[name]
            if tuple(here.shape) != tuple(there.shape) or here.dtype != there.dtype:
                raise LayoutError(
                    f"{layout.name}: {name!r} is {here.dtype} {tuple(here.shape)} in rank 0 and "
                    f"{there.dtype} {tuple(there.shape)} in rank {rank}."
                )


def _check_names(layout: Layout, found: Recognised, tensors: Tensors, n: int) -> None:
    if not found.named:
        raise LayoutError(hints.nothing_found(layout, tensors, n))
    for name, why in found.refused.items():
        raise LayoutError(f"{layout.name}: {name!r} cannot be converted: {why}.")
    if found.strange:
        raise LayoutError(hints.unknown_tensors(layout, found.strange, n))


def _check_prefixes(layout: Layout, found: Recognised) -> None:
    """The FFNs of a stack stand at one prefix: what is written has one, too."""
    templates: dict[str, dict[str, None]] = {}
    for named in found.named:
        templates.setdefault(named.prefix.stack, {})[named.prefix.template] = None
    for stack, used in templates.items():
        if len(used) > 1:
            raise LayoutError(
                f"{layout.name}: FFNs of {stack or 'no stack'!r} stand at {hints.some(used)}; name "
                "the prefix that is meant, or give each a stack of its own."
            )


def _expand(layout: Layout, fitted: Fit, item: Shaped, own: Mapping[str, int], n: int):
    """The blocks in one stored tensor, each with its location."""
    named, row = item.named, item.named.row
    factors = {factor for group in item.dimensions for factor in group}
    layers = range(own["layer"]) if "layer" in factors else (named.layer,)
    experts = range(own["expert"]) if "expert" in factors else (named.expert,)
    slots: Sequence[int | None] = (None,)
    if row.holds in BRANCH_PIECES:
        slots = layout.branches_of(row, n) if named.branch is None else (named.branch,)
    for layer in layers:
        for expert in experts:
            for position, slot in enumerate(slots):
                if slot is not None and slot >= n:
                    raise LayoutError(
                        f"{layout.name}: {named.name!r} is of branch {slot}; the Spec has {n}."
                    )
                values = {"layer": layer, "expert": expert, "branch": position}
                yield (
                    Block(
                        named.prefix.stack,
                        layer,
                        expert,
                        row.holds,
                        None if slot is None else fitted.slots[slot],
                        named.scalar,
                    ),
                    Location(
                        named,
                        item.dimensions,
                        {axis: values[axis] for axis in factors & values.keys()},
                        own,
                    ),
                )


def _check_complete(
    layout: Layout, fitted: Fit, spec: FFN, blocks: Mapping[Block, Location]
) -> None:
    """Every block of the Spec is there, and no other."""
    places = {(b.stack, b.layer, b.expert) for b in blocks}
    prefixes = {(b.stack, b.layer): loc.named.prefix for b, loc in blocks.items()}
    wanted = {block for place in places for block in blocks_of(spec, *place)}
    missing = []
    for block in wanted - blocks.keys():
        found = row_for(layout, fitted, block, spec.num_branches)
        if found is None:
            raise LayoutError(hints.no_place(layout, block.piece, spec))
        row, slot = found
        prefix = prefixes[block.stack, block.layer]
        fields = {"layer": block.layer, "expert": block.expert}
        missing.append(name_of(row, prefix, branch=slot, scalar=block.scalar, **fields))
    if missing:
        raise LayoutError(
            f"{layout.name}: {hints.some(sorted(set(missing)))} missing. "
            + hints.biases(layout, spec)
        )
    extra = sorted({blocks[block].named.name for block in blocks.keys() - wanted})
    if extra:
        raise LayoutError(
            f"{layout.name}: {hints.some(extra)} would be dropped, since the Spec has no such "
            f"parameter. {hints.biases(layout, spec)}"
        )
    experts: dict[tuple[str, int | None], set[int]] = {}
    for stack, layer, expert in places:
        if expert is not None:
            experts.setdefault((stack, layer), set()).add(expert)
    for (_, layer), numbers in experts.items():
        # By count, since a name may claim any number.
        if max(numbers) >= len(numbers):
            gap = next(i for i in range(len(numbers)) if i not in numbers)
            where = f" of layer {layer}" if layer is not None else ""
            raise LayoutError(
                f"{layout.name}: expert {gap}{where} is missing; there are {len(numbers)}, up to "
                f"number {max(numbers)}."
            )

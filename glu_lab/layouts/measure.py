"""The Spec of stored tensors: sizes from shapes, biases from names, the function from elsewhere.

Shapes and names never say which function the tensors are of: it comes from a config, from the user,
or from a convention that has one alone.

Dimension letters: D d_model, F d_ff, N branches, E experts, P tensor-parallel degree.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from glu_lab.errors import LayoutError
from glu_lab.layouts import hints
from glu_lab.layouts.function import branches_from_config, fit, variants_of
from glu_lab.layouts.inventory import Tensors
from glu_lab.layouts.layout import Layout, Prefix
from glu_lab.layouts.names import Named, Recognised, recognise
from glu_lab.layouts.sizes import Mismatch, Shaped, dimensions_of, solve
from glu_lab.spec.activation import ACTIVATIONS, Activation
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.variants import branches_of, with_bias


@dataclasses.dataclass(frozen=True)
class Measured:
    """What names and shapes tell.

    Attributes:
        sizes: of D, F (of all ranks together), and N.
        ffns: how many FFNs (of one layer and expert) there are, as far as shapes tell.
        biases: for each of ``bi``, ``bp``, ``bo`` the branches (numbered as in the layout) of
            which one is there; ``bp`` and ``bo`` count as branch 0.
        named: the tensors.
    """

    sizes: Mapping[str, int]
    ffns: int
    biases: Mapping[str, frozenset[int]]
    named: tuple[Named, ...]


def measure(
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    num_branches: int,
    *,
    prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
    experts: int | None = None,
    open_sizes: bool = False,
    complete: bool = False,
) -> Measured:
    """Reads sizes and biases off names and shapes.

    Args:
        layout: the storage convention.
        tensors: by name, or one such mapping a rank.
        num_branches: N.
        prefixes, leading: as in `take_stock`.
        experts: E, for layouts that join the experts with another axis.
        open_sizes: lets shapes leave D or F open.
        complete: whether every FFN must have all that it cannot be without, and nothing that the
            layout does not know.

    Raises:
        LayoutError: when no tensor is the layout's, shapes contradict each other, or leave a size
            open that they must not.
    """
    by_rank = [tensors] if isinstance(tensors, Mapping) else list(tensors)
    found = recognise(layout, by_rank[0], num_branches, prefixes)
    if not found.named:
        raise LayoutError(hints.nothing_found(layout, by_rank[0], num_branches))
    if complete:
        _check_complete(layout, found, num_branches)
    known = {"branch": num_branches, **({} if experts is None else {"expert": experts})}
    shaped = []
    for named in found.named:
        shape = tuple(by_rank[0][named.name].shape)
        try:
            shaped.append(Shaped(named, dimensions_of(named, shape, leading), shape))
        except ValueError as error:
            raise LayoutError(f"{layout.name}: {error}") from None
    try:
        solved = solve(shaped, known)
    except Mismatch as mismatch:
        raise LayoutError(hints.wrong_shape(layout, mismatch, known, len(by_rank))) from None
    sizes = solved.shared
    for axis, letter in (("embed", "d_model"), ("mlp", "d_ff")):
        if axis not in sizes and not open_sizes:
            experts_help = " Say how many experts there are." if experts is None else ""
            raise LayoutError(f"{layout.name}: the shapes do not determine {letter}.{experts_help}")
    if "mlp" in sizes:
        sizes["mlp"] *= len(by_rank)
    biases: dict[str, set[int]] = {"bi": set(), "bp": set(), "bo": set()}
    for named in found.named:
        if named.row.holds in biases:
            held = (
                (named.branch,)
                if named.branch is not None
                else layout.branches_of(named.row, num_branches)
                if named.row.holds == "bi"
                else (0,)
            )
            biases[named.row.holds].update(held)
    frozen = {piece: frozenset(held) for piece, held in biases.items()}
    ffns = sum(
        math.prod(own.get(axis, 1) for axis in ("layer", "expert") if _has(item, axis))
        for item, own in zip(shaped, solved.own, strict=True)
        if item.named.row.holds == "wo"
    )
    return Measured(sizes, ffns, frozen, found.named)


def _has(item: Shaped, axis: str) -> bool:
    return any(axis in factors for factors in item.dimensions)


def _check_complete(layout: Layout, found: Recognised, n: int) -> None:
    """Nothing unknown among the FFNs' tensors, and each FFN has all that it cannot be without."""
    for name, why in found.refused.items():
        raise LayoutError(f"{layout.name}: {name!r}: {why}")
    if found.strange:
        raise LayoutError(f"{layout.name}: it does not know {hints.some(found.strange, 3)}")
    wanted = {
        row.name: set(range(n)) if "{branch}" in row.name else {None}
        for row in layout.rows(n)
        if not row.optional and row.holds != "phi"
    }
    have: dict[tuple[str, int | None], dict[str, set[int | None]]] = {}
    for item in found.named:
        place = have.setdefault((item.prefix.at(item.layer), item.expert), {})
        place.setdefault(item.row.name, set()).add(item.branch)
    for (start, _), rows in have.items():
        lacking = [name for name, branches in wanted.items() if rows.get(name) != branches]
        if lacking:
            raise LayoutError(f"{layout.name}: at {start!r} it lacks {hints.some(lacking, 3)}")


def infer_spec(
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    *,
    config: Mapping[str, Any] | None = None,
    variant: str | None = None,
    prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
    experts: int | None = None,
    **fields: Any,
) -> FFN:
    """The Spec that stored tensors are of.

    Args:
        layout: the storage convention.
        tensors: by name, or one such mapping a rank; shapes are enough.
        config: the model's config, which states the function.
        variant: the function, as a variant's name or product; overrides nothing: a config that
            states another is an error.
        prefixes, leading, experts: as in `measure`.
        **fields: further fields of the Spec, such as dropout.

    Raises:
        LayoutError: when nothing states the function, or two say different ones; and as `measure`.
    """
    branches = _stated(layout, config, variant)
    measured = measure(
        layout, tensors, len(branches), prefixes=prefixes, leading=leading, experts=experts
    )
    return _build(layout, branches, measured, fields)


def _build(
    layout: Layout, branches: tuple[Branch, ...], measured: Measured, fields: Mapping[str, Any]
) -> FFN:
    spec = FFN(
        d_model=measured.sizes["embed"],
        d_ff=measured.sizes["mlp"],
        branches=with_bias(branches, False),
        product_bias=bool(measured.biases["bp"]),
        output_bias=bool(measured.biases["bo"]),
        **fields,
    )
    slots = fit(layout, spec).slots
    biased = {slots[b] for b in measured.biases["bi"] if b < len(slots)}
    return spec.replace(
        branches=tuple(
            dataclasses.replace(branch, bias=i in biased) for i, branch in enumerate(spec.branches)
        )
    )


def _stated(
    layout: Layout, config: Mapping[str, Any] | None, variant: str | None
) -> tuple[Branch, ...]:
    """The function that config, user or convention state; an error where they differ."""
    given = None if variant is None else branches_of(variant)
    if config is not None and (layout.function.variant or layout.function.rules):
        stated = branches_from_config(layout, config)
        if given is not None and sorted(map(repr, given)) != sorted(map(repr, stated)):
            names = "*".join(str(branch.activation) for branch in stated)
            raise LayoutError(
                f"{layout.name}: the config states {names!r}, and the variant asked for is "
                f"{variant!r}."
            )
        return given or stated
    if given is not None:
        return given
    if layout.function.variant:
        return branches_of(layout.function.variant)
    asked = " or ".join(rule.attribute for rule in layout.function.rules) or "no attribute"
    raise LayoutError(
        f"{layout.name}: tensors do not say which function they are of. Give the model's config "
        f"({asked} decides) or the variant"
        + (f": {', '.join(variants_of(layout))}." if variants_of(layout) else ".")
    )


def stand_in_spec(
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    *,
    prefixes: Sequence[Prefix] | None = None,
    experts: int | None = None,
) -> FFN:
    """A Spec of the tensors' sizes and biases whose function is any that the layout has.

    For work that moves values about within one layout and never asks what they compute.

    Raises:
        LayoutError: as `measure`.
    """
    errors = []
    for n in layout.branch_counts():
        branches = _any_branches(layout, n)
        if branches is None:
            continue
        try:
            measured = measure(
                layout, tensors, n, prefixes=prefixes, experts=experts, complete=True
            )
        except LayoutError as error:
            errors.append(error)
            continue
        return _build(layout, _with_scalars(branches, measured.named), measured, {})
    raise errors[0]


def _with_scalars(branches: tuple[Branch, ...], named: Sequence[Named]) -> tuple[Branch, ...]:
    """The branches, with an activation that learns the scalars that are there."""
    learned: dict[int, set[str]] = {}
    for item in named:
        if item.row.holds == "phi" and item.branch is not None and item.scalar is not None:
            learned.setdefault(item.branch, set()).add(item.scalar)
    changed = list(branches)
    for i, scalars in learned.items():
        fitting = [name for name, row in ACTIVATIONS.items() if set(row.learned) == scalars]
        if i < len(changed) and fitting:
            changed[i] = dataclasses.replace(changed[i], activation=Activation(fitting[0]))
    return tuple(changed)


def _any_branches(layout: Layout, n: int) -> tuple[Branch, ...] | None:
    function = layout.function
    if function.each_branch:
        return tuple(Branch(activation=Activation.parse(variants_of(layout)[0])) for _ in range(n))
    if not variants_of(layout):
        return tuple(Branch(activation=Activation("linear")) for _ in range(n))
    return next((branches_of(text) for text in variants_of(layout, n)), None)

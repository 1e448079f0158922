"""Which biases a layout has, held against those of a Spec."""

import dataclasses

from glu_lab.errors import LayoutError
from glu_lab.layouts import hints
from glu_lab.layouts.function import fit
from glu_lab.layouts.layout import Layout, Tensor
from glu_lab.spec.ffn import FFN

_BIASES = ("bi", "bp", "bo")


def _held(layout: Layout, spec: FFN, row: Tensor) -> list[bool]:
    """For each bias vector of a row, whether the Spec has it."""
    if row.holds == "bp":
        return [spec.product_bias]
    if row.holds == "bo":
        return [spec.output_bias]
    slots = fit(layout, spec).slots
    return [spec.branches[slots[b]].bias for b in layout.branches_of(row, spec.num_branches)]


def check_biases(layout: Layout, spec: FFN) -> None:
    """Refuses biases that the layout cannot store, and the lack of those that it always has.

    Raises:
        LayoutError: with what the layout has and what the Spec has.
    """
    rows = [row for row in layout.rows(spec.num_branches) if row.holds in _BIASES]
    held = {row.name: _held(layout, spec, row) for row in rows}
    pieces = {row.holds for row in rows}
    wanted = {
        "bi": any(branch.bias for branch in spec.branches),
        "bp": spec.product_bias,
        "bo": spec.output_bias,
    }
    for piece, has in wanted.items():
        if has and piece not in pieces:
            raise LayoutError(hints.no_place(layout, piece, spec))
    if any(b.activation.row.learned for b in spec.branches):
        if not any(row.holds == "phi" for row in layout.tensors):
            raise LayoutError(hints.no_place(layout, "phi", spec))
    lacking = [row.name for row in rows if not row.optional and not all(held[row.name])]
    if lacking:
        raise LayoutError(
            f"{layout.name} always has {hints.some(lacking)}. {hints.biases(layout, spec)} Biases "
            "of zeros are created only when asked for."
        )
    optional = [has for row in rows if row.optional for has in held[row.name]]
    if layout.biases == "all" and any(optional) and not all(optional):
        raise LayoutError(
            f"{layout.name} has all of its biases or none. {hints.biases(layout, spec)}"
        )
    for row in rows:
        if any(held[row.name]) and not all(held[row.name]):
            raise LayoutError(
                f"{layout.name}: {row.name!r} holds the biases of several branches, of which the "
                f"Spec has some. {hints.biases(layout, spec)}"
            )


def with_required_biases(layout: Layout, spec: FFN) -> FFN:
    """The Spec with the biases that a layout always has switched on."""
    slots = fit(layout, spec).slots
    branches = list(spec.branches)
    for row in layout.rows(spec.num_branches):
        if row.optional:
            continue
        if row.holds == "bi":
            for b in layout.branches_of(row, spec.num_branches):
                branches[slots[b]] = dataclasses.replace(branches[slots[b]], bias=True)
        elif row.holds == "bp":
            spec = spec.replace(product_bias=True)
        elif row.holds == "bo":
            spec = spec.replace(output_bias=True)
    return spec.replace(branches=tuple(branches))

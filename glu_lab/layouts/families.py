"""Layouts made from others by one change."""

import dataclasses

from glu_lab.errors import LayoutError
from glu_lab.layouts.axes import parse
from glu_lab.layouts.layout import Layout, Tensor


def interleaved(layout: Layout, width: int) -> Layout:
    """The same layout with its joined branches alternating in blocks.

    Raises:
        LayoutError: when it has no ``(branch mlp)`` axis.
    """

    def change(row: Tensor) -> Tensor:
        if not _joined(row):
            return row
        return dataclasses.replace(
            row, axes=row.axes.replace("branch mlp", "mlp branch"), interleave=width
        )

    if not any(_joined(row) for row in layout.tensors):
        raise LayoutError(
            f"layout {layout.name!r} joins no branches in one dimension; it cannot be interleaved."
        )
    return dataclasses.replace(
        layout,
        name=f"{layout.name}-interleave-{width}",
        summary=f"{layout.summary}; branches alternating in blocks of {width}",
        aliases=(),
        model_types=(),
        tensors=tuple(change(row) for row in layout.tensors),
    )


def _joined(row: Tensor) -> bool:
    return any(
        group.factors[i : i + 2] == ("branch", "mlp")
        for group in parse(row.axes)
        for i in range(len(group.factors))
    )

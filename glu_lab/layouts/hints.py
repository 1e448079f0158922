"""Messages about tensors that do not fit: what was expected, and the nearest right choice."""

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glu_lab.layouts.axes import present, shape_of
from glu_lab.layouts.layout import Layout
from glu_lab.layouts.sizes import Mismatch, row_sizes, symbolic
from glu_lab.spec.ffn import FFN


def some(items: Iterable[Any], most: int = 6) -> str:
    """A list cut short: the first few, and how many more."""
    items = [repr(item) for item in items]
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def divisors(n: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def indivisible(d_ff: int, ranks: int, width: int = 1) -> str:
    """Why a width cannot be cut evenly, and the nearest that can."""
    unit = ranks * width
    below, above = d_ff // unit * unit, -(-d_ff // unit) * unit
    nearest = " and ".join(str(size) for size in (below, above) if size)
    degrees = [d for d in divisors(d_ff) if d_ff // d % width == 0]
    blocks = f" in blocks of {width}" if width > 1 else ""
    return (
        f"d_ff={d_ff} cannot be cut into {ranks} equal parts{blocks}; the nearest widths that can "
        f"are {nearest}, and the degrees that divide {d_ff} are {some(degrees, 12)}."
    )


def uneven_blocks(layout: Layout, width: int, d_ff: int, ranks: int) -> str:
    """Why branches cannot alternate in blocks of a width."""
    return f"{layout.name}: {indivisible(d_ff, ranks, width)}"


def biases(layout: Layout, spec: FFN) -> str:
    """What a layout and a Spec say of biases."""
    have = [f"b_{i}" for i, branch in enumerate(spec.branches) if branch.bias]
    have += ["product bias"] * spec.product_bias + ["output bias"] * spec.output_bias
    rows = [r for r in layout.rows(spec.num_branches) if r.holds in ("bi", "bp", "bo")]
    if not rows:
        policy = "never has biases"
    elif all(not row.optional for row in rows):
        policy = "always has biases"
    else:
        policy = "may have biases"
        if layout.bias_attribute:
            policy += f" (config attribute {layout.bias_attribute})"
    return f"The layout {policy}; the Spec has {', '.join(have) or 'none'}."


def no_place(layout: Layout, piece: str, spec: FFN) -> str:
    """A parameter of the Spec that a layout cannot store."""
    what = {
        "bi": "branch biases",
        "bp": "a product bias",
        "bo": "an output bias",
        "phi": "learned activation scalars",
    }.get(piece, piece)
    return f"{layout.name} has no place for {what}. {biases(layout, spec)}"


def nothing_found(layout: Layout, names: Iterable[str], n: int) -> str:
    """No tensor of the layout is there: which layouts know these names."""
    from glu_lab.layouts.match import layouts_with_names

    names = list(names)
    expected = ", ".join(row.name for row in layout.rows(n))
    where = " or ".join(repr(p.template) for p in layout.prefixes) or "no prefix"
    message = (
        f"{layout.name}: no tensor of an FFN is among {some(names) or 'nothing'}; expected "
        f"{expected} after {where}."
    )
    others = [name for name in layouts_with_names(names) if name != layout.name]
    return message + (f" These names fit {', '.join(others)}." if others else "")


def unknown_tensors(layout: Layout, names: Sequence[str], n: int) -> str:
    """Tensors among the FFN's that the layout does not know."""
    from glu_lab.layouts.match import layouts_with_tensor

    known = [row.name for row in layout.rows(n)]
    message = f"{layout.name} does not know {some(names)}, and drops nothing silently."
    tail = names[0]
    nearest = difflib.get_close_matches(tail.rsplit("/", 1)[-1], known, n=1, cutoff=0.5)
    if nearest:
        message += f" Did you mean {nearest[0]!r}?"
    others = [name for name in layouts_with_tensor(tail) if name != layout.name]
    if others:
        message += f" Layouts that have {tail!r}: {', '.join(others)}."
    return message + f" Known: {', '.join(known)}."


def wrong_shape(layout: Layout, mismatch: Mismatch, known: Mapping[str, int], ranks: int) -> str:
    """A shape that contradicts the Spec: what was expected, and what else it would fit."""
    from glu_lab.layouts.match import rows_like

    item = mismatch.shaped
    row, shape = item.named.row, item.shape
    own = row_sizes(row, known)
    expected = symbolic(item.dimensions)
    if all(factor in own for factors in item.dimensions for factor in factors):
        expected += f" = {shape_of(item.dimensions, own)}"
    local = f" (of {ranks} ranks)" if ranks > 1 else ""
    message = (
        f"{layout.name}: {item.named.name!r} has shape {shape}, expected {expected}{local}; "
        f"{mismatch.message}."
    )
    if len(shape) == len(item.dimensions):
        for order in itertools.permutations(item.dimensions):
            fits = order != item.dimensions and all(f in own for group in order for f in group)
            if fits and shape_of(order, own) == shape:
                message += f" It would fit the orientation {symbolic(order)}."
                break
    fitting = []
    for other, candidate in rows_like(row):
        sizes = row_sizes(candidate, known)
        dimensions = present(candidate.axes, frozenset())
        if all(f in sizes for group in dimensions for f in group):
            if shape_of(dimensions, sizes) == shape and other.name != layout.name:
                fitting.append(other.name)
    if fitting:
        message += f" A tensor of this name has this shape in {', '.join(dict.fromkeys(fitting))}."
    return message

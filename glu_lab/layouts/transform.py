"""The FFNs of a layout as canonical parameters, and back, bit for bit.

Canonical parameters are those of `glu_lab.layers.ffn`: ``wi (D, N, F)``, ``wo (F, D)``, and where
the Spec has them ``bi_<i> (F,)``, ``bp (F,)``, ``bo (D,)``, ``phi_<i>_<name> ()``; with leading
axes L (layers) and E (experts) where the tensors are of several.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts import hints
from glu_lab.layouts.axes import has_field, parse
from glu_lab.layouts.inventory import Tensors
from glu_lab.layouts.layout import BARE, Layout, Prefix
from glu_lab.layouts.lookup import CANONICAL
from glu_lab.layouts.names import recognise
from glu_lab.layouts.plan import plan
from glu_lab.spec.ffn import FFN


def to_canonical(
    layout: Layout,
    tensors: Tensors | Sequence[Tensors],
    spec: FFN,
    *,
    prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
) -> dict[str, np.ndarray]:
    """Canonical parameters of the FFNs of one stack.

    Args:
        layout: how the tensors lie.
        tensors: name → array, or one such mapping a tensor-parallel rank.
        spec: the function of one FFN.
        prefixes: where the FFNs stand; by default the layout's own and that of an FFN alone.
        leading: for a canonical FFN alone, which of the axes ``layer`` and ``expert`` it has.

    Returns:
        Parameters of the tensors' dtypes; leading axes L and E wherever names or tensors have
        layers and experts. Views where the values need no joining.

    Raises:
        LayoutError: for everything that `plan` refuses, and for tensors that are no part of an
            FFN: what goes in is used.
    """
    names = tensors if isinstance(tensors, Mapping) else tensors[0] if tensors else {}
    found = recognise(layout, names, spec.num_branches, prefixes).named
    stacks = list(dict.fromkeys(named.prefix.stack for named in found))
    if len(stacks) > 1:
        raise LayoutError(
            f"{layout.name}: tensors of several stacks, {hints.some(stacks)}; give those of one."
        )
    planned = plan(
        layout,
        CANONICAL,
        tensors,
        spec,
        source_prefixes=prefixes,
        target_prefixes=[Prefix(template="", stack=stack) for stack in stacks] or [BARE],
        leading=leading,
    )
    if planned.rest:
        named = [
            f"{name!r} ({planned.outside[name]})" if name in planned.outside else repr(name)
            for name in planned.rest
        ]
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        raise LayoutError(
            f"{layout.name}: no part of the FFN, and so without a place in its parameters: "
            f"{', '.join(named[:6])}{more}."
        )
    return planned.run(tensors)[0]


def from_canonical(
    layout: Layout,
    params: Mapping[str, np.ndarray],
    spec: FFN,
    *,
    leading: tuple[str, ...] = (),
    prefix: Prefix | None = None,
    zero_biases: bool = False,
) -> dict[str, np.ndarray]:
    """The tensors of a layout from canonical parameters; the inverse of `to_canonical`.

    Args:
        layout: how the tensors shall lie.
        params: canonical parameters.
        spec: their function.
        leading: which leading axes they have, of ``layer`` and ``expert`` in this order.
        prefix: where the FFNs stand in the names; by default nowhere for one FFN (its tensors have
            their own names alone), and the layout's first prefix for a stack of layers.
        zero_biases: creates biases of zeros where the layout always has one.

    Returns:
        Name → array, views of the parameters where they can be.

    Raises:
        LayoutError: for everything that `plan` refuses.
    """
    stacks = any(has_field(parse(row.axes), "layer") for row in layout.tensors)
    if prefix is None and "layer" in leading and not stacks:
        if not layout.prefixes:
            raise LayoutError(f"{layout.name} has no prefix with a layer; give one.")
        prefix = layout.prefixes[0]
    targets = [BARE if prefix is None else prefix]
    planned = plan(
        CANONICAL,
        layout,
        params,
        spec,
        source_prefixes=[BARE],
        target_prefixes=targets,
        leading=leading,
        zero_biases=zero_biases,
    )
    return planned.run(params)[0]


def aliases(tensors: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], ...]:
    """Groups of names that are one array in memory: tied weights.

    Args:
        tensors: name → array.

    Returns:
        Each group of two or more names, in the order given. Written out, each becomes a tensor of
        its own; a manifest says that they were one.
    """
    groups: dict[tuple, list[str]] = {}
    for name, array in tensors.items():
        if array.size:
            where = array.__array_interface__
            key = (where["data"][0], array.shape, array.strides, array.dtype)
            groups.setdefault(key, []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)

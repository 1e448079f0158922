"""From one layout to another: every output tensor with the inputs that it needs.

A plan is made from names, shapes and dtypes alone. All checks come before it; no value is read or
written until `Output.build`.

Dimension letters: D d_model, F d_ff, N branches, L layers, E experts, P tensor-parallel degree.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts import hints
from glu_lab.layouts.biases import check_biases, with_required_biases
from glu_lab.layouts.function import fit
from glu_lab.layouts.inventory import Inventory, Tensors, take_stock
from glu_lab.layouts.layout import BARE, Layout, Prefix
from glu_lab.layouts.outputs import Key, Output
from glu_lab.layouts.walk import Layers, Planner
from glu_lab.spec.ffn import FFN


@dataclasses.dataclass(frozen=True)
class Plan:
    """A conversion, ready to run.

    Attributes:
        outputs: the target's tensors, rank by rank.
        source: what was found in the source.
        target: the layout written.
        spec: the function of the target: the source's, with the zero biases asked for.
        ranks: over how many tensor-parallel ranks the target is spread.
        settings: config attributes that make the target's own code compute the function.
        rest: names of source tensors that are no part of an FFN.
        outside: those among them that stand beside the FFN, and what they are (routers, norms).
        replicated: names of outputs of which every rank holds a whole copy.
    """

    outputs: tuple[Output, ...]
    source: Inventory
    target: Layout
    spec: FFN
    ranks: int
    settings: Mapping[str, Any]
    rest: tuple[str, ...]
    outside: Mapping[str, str]
    replicated: tuple[str, ...]

    def run(self, tensors: Tensors | Sequence[Tensors]) -> list[dict[str, np.ndarray]]:
        """Builds everything from arrays in memory.

        Args:
            tensors: name → array, or one such mapping a rank, as planned with.

        Returns:
            Name → array, one mapping a target rank.
        """
        by_rank: list[Any] = [tensors] if isinstance(tensors, Mapping) else list(tensors)
        built: list[dict[str, np.ndarray]] = [{} for _ in range(self.ranks)]
        for output in self.outputs:
            array = output.build(lambda key: by_rank[key.rank][key.name])
            built[output.key.rank][output.key.name] = array
        return built


def plan(
    source: Layout,
    target: Layout,
    tensors: Tensors | Sequence[Tensors],
    spec: FFN,
    *,
    ranks: int = 1,
    source_prefixes: Sequence[Prefix] | None = None,
    target_prefixes: Sequence[Prefix] | None = None,
    leading: tuple[str, ...] | None = None,
    zero_biases: bool = False,
) -> Plan:
    """Plans the conversion of every FFN in a file.

    Args:
        source: how the tensors lie.
        target: how they shall lie.
        tensors: name → anything with ``shape`` and ``dtype``; a sequence has one mapping a rank.
        spec: the function of one FFN (of one expert).
        ranks: over how many tensor-parallel ranks the target is spread.
        source_prefixes: where the source's FFNs stand; by default the layout's own prefixes and
            that of an FFN alone.
        target_prefixes: where the target's stand; by default the layout's own.
        leading: for a source FFN alone, which of the optional axes ``layer`` and ``expert`` it has.
        zero_biases: lets the plan create biases of zeros where the target always has one.

    Returns:
        The plan.

    Raises:
        LayoutError: for all that `take_stock` refuses; for a function, biases, layers or experts
            that the target cannot store; for a width that the ranks do not divide.
    """
    if ranks < 1:
        raise LayoutError(f"ranks must be ≥ 1, got {ranks}.")
    stock = take_stock(source, tensors, spec, prefixes=source_prefixes, leading=leading)
    wanted = with_required_biases(target, spec) if zero_biases else spec
    fitted = fit(target, wanted)
    check_biases(target, wanted)
    for row in target.rows(spec.num_branches):
        if spec.d_ff % (ranks * row.interleave):
            raise LayoutError(
                f"{target.name}: {hints.indivisible(spec.d_ff, ranks, row.interleave)}"
            )
    planner = Planner(stock, target, fitted, wanted, ranks)
    outputs: list[Output] = []
    places = stock.places()
    for stack, layers in places.items():
        prefix = _prefix(target, stack, places, target_prefixes)
        outputs += planner.stack(stack, prefix, layers)
    outputs.sort(key=lambda output: output.key.rank)
    seen: set[Key] = set()
    for output in outputs:
        if output.key in seen:
            raise LayoutError(
                f"{target.name}: two tensors would be named {output.key.name!r}; give each stack a "
                "prefix of its own."
            )
        seen.add(output.key)
    found = stock.recognised
    return Plan(
        outputs=tuple(outputs),
        source=stock,
        target=target,
        spec=wanted,
        ranks=ranks,
        settings=fitted.settings,
        rest=(*found.rest, *found.outside),
        outside=found.outside,
        replicated=tuple(planner.replicated) if ranks > 1 else (),
    )


def _prefix(
    target: Layout, stack: str, places: Mapping[str, Layers], given: Sequence[Prefix] | None
) -> Prefix:
    """Where the target's FFNs of one of the source's stacks go."""
    choices = target.prefixes if given is None else tuple(given)
    if given is None and stack == "":
        return BARE
    same = [prefix for prefix in choices if prefix.stack == stack]
    if same:
        return same[0]
    if len(places) == 1 and len({prefix.stack for prefix in choices}) == 1:
        return choices[0]
    if given is None and len(places) == 1 and list(places[stack]) == [None]:
        return BARE
    have = ", ".join(dict.fromkeys(repr(prefix.stack) for prefix in choices)) or "none"
    raise LayoutError(
        f"{target.name} has no prefix for the FFNs of {stack or 'an FFN alone'!r}; its stacks are "
        f"{have}. Give the prefix to write them at."
    )

"""Which function a layout's branches compute, and whether a Spec is one of them.

Branches have numbers in the layout's function (the activated one first); a Spec may state the same
product in another order. `slots` is the bridge between the two numberings.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

from glu_lab.errors import LayoutError, UnknownNameError
from glu_lab.layouts.layout import Layout
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.variants import branches_of, variant_name, with_bias


def attribute(config: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted attribute of a config; None where it is absent or null."""
    value: Any = config
    for part in name.split("."):
        if isinstance(value, list | tuple) and part.isdecimal():
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(part)
        else:
            return None
    return value


def branches_from_config(layout: Layout, config: Mapping[str, Any]) -> tuple[Branch, ...]:
    """The branches that a model's config states, without biases.

    Args:
        layout: the storage convention.
        config: a model's config, as read from JSON.

    Raises:
        LayoutError: when the config does not state what the layout leaves open, or states
            something that the layout's source computes and a Spec cannot say.
        UnknownNameError: for an activation that the layout's table does not list.
    """
    function = layout.function
    for name, only in function.assumes:
        value = attribute(config, name)
        if value is not None and value != json.loads(only):
            raise LayoutError(
                f"{layout.name}: config attribute {name}={value!r} is not handled; the layout's "
                f"function is that of {name}={only}."
            )
    if function.variant:
        return branches_of(function.variant)
    if not function.rules:
        raise LayoutError(
            f"{layout.name} stores any function and no config says which; state the variant."
        )
    for rule in function.rules:
        value = attribute(config, rule.attribute)
        if value is None:
            continue
        table = dict(rule.values)
        if function.each_branch:
            if not isinstance(value, list | tuple):
                raise LayoutError(
                    f"{layout.name}: config attribute {rule.attribute} must list the activation of "
                    f"each branch, got {value!r}."
                )
            names = [_known(layout, rule.attribute, str(item), table) for item in value]
            return tuple(Branch(activation=Activation.parse(name)) for name in names)
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        return branches_of(_known(layout, rule.attribute, text, table))
    asked = " or ".join(rule.attribute for rule in function.rules)
    raise LayoutError(
        f"{layout.name}: the config does not state {asked}, which decides the activation; it never "
        f"has a default here. Possible: {', '.join(variants_of(layout))}."
    )


def _known(layout: Layout, name: str, value: str, table: Mapping[str, str]) -> str:
    if value not in table:
        raise UnknownNameError(
            f"value of {name} for layout {layout.name}", value, table, layout.function.note
        )
    return table[value]


def variants_of(layout: Layout, num_branches: int = 0) -> tuple[str, ...]:
    """The functions that a layout's tensors may compute, as variant texts; empty for any.

    Where a list names each branch, the activations that it may name.

    Args:
        layout: the storage convention.
        num_branches: keeps those of N branches; by default those of the layout's own number.
    """
    texts = layout.function.texts()
    n = num_branches or layout.num_branches
    if not n or layout.function.each_branch:
        return texts
    return tuple(text for text in texts if len(branches_of(text)) == n)


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a Spec's function is stored in a layout.

    Attributes:
        slots: for each branch of the layout, the number of the Spec's branch.
        settings: config attributes, and the values that make the layout's source compute the
            Spec's function.
    """

    slots: tuple[int, ...]
    settings: Mapping[str, Any]


def fit(layout: Layout, spec: FFN) -> Fit:
    """Checks that a layout's source can compute a Spec, and finds its branches.

    Raises:
        LayoutError: when it cannot, with what it can.
    """
    n = spec.num_branches
    if layout.num_branches and layout.num_branches != n:
        raise LayoutError(
            f"{layout.name} stores {_count(layout.num_branches, 'branch', 'es')}; the Spec "
            f"{variant_name(spec)!r} has {n}."
        )
    if not layout.rows(n) or not any(row.holds == "wi" for row in layout.rows(n)):
        raise LayoutError(f"{layout.name} has no tensors for {_count(n, 'branch', 'es')}.")
    function = layout.function
    if not function.variant and not function.rules:
        return Fit(tuple(range(n)), {})
    if spec.output_scale != 1.0:
        raise LayoutError(
            f"{layout.name} has no output scale; the Spec has output_scale={spec.output_scale!r}."
        )
    plain = with_bias(spec.branches, False)
    if function.each_branch:
        return _fit_each(layout, spec, plain)
    options: list[tuple[str, dict[str, Any]]] = (
        [(function.variant, {})]
        if function.variant
        else [
            *((text, {r.attribute: value}) for r in function.rules for value, text in r.values),
            *((text, {}) for text in function.also),
        ]
    )
    for text, settings in options:
        order = _permutation(plain, branches_of(text))
        if order is not None:
            assumed = {name: json.loads(only) for name, only in function.assumes}
            return Fit(order, {**assumed, **settings})
    raise LayoutError(
        f"{layout.name} does not compute {variant_name(spec)!r}; it computes "
        f"{', '.join(variants_of(layout))}."
    )


def _fit_each(layout: Layout, spec: FFN, plain: tuple[Branch, ...]) -> Fit:
    (rule,) = layout.function.rules
    names = {}
    for value, text in rule.values:
        names.setdefault(text, value)
    listed = []
    for branch in plain:
        text = str(branch.activation)
        if branch != Branch(activation=branch.activation) or text not in names:
            raise LayoutError(
                f"{layout.name} does not compute {variant_name(spec)!r}; each branch is one of "
                f"{', '.join(names)}, without clamps, scales or offsets."
            )
        listed.append(names[text])
    return Fit(tuple(range(len(plain))), {rule.attribute: listed})


def _permutation(have: tuple[Branch, ...], want: tuple[Branch, ...]) -> tuple[int, ...] | None:
    """For each wanted branch the number of an equal one; the order kept where it can be."""
    if len(have) != len(want):
        return None
    for order in itertools.permutations(range(len(have))):
        if all(have[i] == branch for i, branch in zip(order, want, strict=True)):
            return order
    return None


def _count(n: int, noun: str, plural: str = "s") -> str:
    return f"{n} {noun}{plural if n != 1 else ''}"

"""Names of tensors: which stored tensor of which layer and expert a name is.

Reads names by the templates of a layout, and writes them.
"""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glu_lab.layouts.layout import Layout, Prefix, Tensor

#: The part of a pattern that a field matches. Numbers have no leading zeros, and a length that no
#: model exceeds.
_NUMBER = r"0|[1-9][0-9]{0,8}"
_FIELD_PATTERNS = {
    "layer": f"(?P<layer>{_NUMBER})",
    "expert": f"(?P<expert>{_NUMBER})",
    "branch": f"(?P<branch>{_NUMBER})",
    "scalar": r"(?P<scalar>[A-Za-z]\w*)",
}


@functools.cache
def pattern(template: str) -> re.Pattern[str]:
    """The expression that matches exactly the names of a template."""
    parts = re.split(r"\{(\w+)\}", template)
    text = "".join(
        _FIELD_PATTERNS[part] if i % 2 else re.escape(part) for i, part in enumerate(parts)
    )
    return re.compile(text)


class Named(NamedTuple):
    """A stored tensor, recognised.

    Attributes:
        name: as given.
        row: the layout's row.
        prefix: the prefix that matched.
        layer, expert, branch, scalar: what its name says; None where it says nothing.
    """

    name: str
    row: Tensor
    prefix: Prefix
    layer: int | None
    expert: int | None
    branch: int | None
    scalar: str | None


@dataclasses.dataclass(frozen=True)
class Recognised:
    """The tensors of a file, sorted by what a layout knows of them.

    Attributes:
        named: the FFN's own.
        outside: name → what it is, for neighbours that are no part of the FFN (routers, norms).
        strange: names among the FFN's tensors that the layout does not know.
        refused: name → why, for tensors that make the FFN another function.
        rest: all others.
    """

    named: tuple[Named, ...]
    outside: dict[str, str]
    strange: tuple[str, ...]
    refused: dict[str, str]
    rest: tuple[str, ...]


def recognise(
    layout: Layout,
    names: Iterable[str],
    num_branches: int,
    prefixes: Sequence[Prefix] | None = None,
) -> Recognised:
    """Sorts the names of a file.

    Args:
        layout: the storage convention.
        names: of all tensors.
        num_branches: N.
        prefixes: where FFNs stand; by default the layout's own and that of an FFN alone.
    """
    rows = layout.rows(num_branches)
    known = layout.all_prefixes() if prefixes is None else tuple(prefixes)
    named, left = [], []
    for name in names:
        found = _find(name, rows, known)
        if found is None:
            left.append(name)
        else:
            named.append(found)
    places = {(n.prefix, n.prefix.at(n.layer)) for n in named}
    outside, strange, refused, rest = {}, [], {}, []
    for name in left:
        own = next(
            (
                (prefix, name[len(start) :])
                for prefix, start in sorted(places, key=lambda p: -len(p[1]))
                if name.startswith(start)
            ),
            None,
        )
        if own is None:
            rest.append(name)
            continue
        prefix, tail = own
        what = _first(layout.outside, tail)
        why = _first(layout.refused, tail)
        if what is not None:
            outside[name] = what
        elif why is not None:
            refused[name] = why
        elif claims(layout, prefix, tail):
            strange.append(name)
        else:
            rest.append(name)
    return Recognised(tuple(named), outside, tuple(strange), refused, tuple(rest))


def _find(name: str, rows: Sequence[Tensor], prefixes: Sequence[Prefix]) -> Named | None:
    for prefix in prefixes:
        start = pattern(prefix.template).match(name)
        if start is None:
            continue
        layer = None
        if prefix.has_layer:
            layer, remainder = divmod(int(start["layer"]) - prefix.first, prefix.step)
            if layer < 0 or remainder:
                continue
        for row in rows:
            end = pattern(row.name).fullmatch(name, start.end())
            if end is not None:
                fields = end.groupdict()
                return Named(
                    name,
                    row,
                    prefix,
                    layer,
                    _number(fields.get("expert")),
                    _number(fields.get("branch")),
                    fields.get("scalar"),
                )
    return None


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _first(patterns: Sequence[tuple[str, str]], tail: str) -> str | None:
    return next((what for glob, what in patterns if fnmatch.fnmatchcase(tail, glob)), None)


def claims(layout: Layout, prefix: Prefix, tail: str) -> bool:
    """Whether a name after a prefix stands among the FFN's tensors."""
    if not prefix.template:
        return True
    if layout.claims:
        return any(fnmatch.fnmatchcase(tail, glob) for glob in layout.claims)
    return not re.search(r"\{layer\}\W?$", prefix.template)


def name_of(
    row: Tensor,
    prefix: Prefix,
    *,
    layer: int | None = None,
    expert: int | None = None,
    branch: int | None = None,
    scalar: str | None = None,
) -> str:
    """The name of one stored tensor."""
    name = row.name
    for field, value in (("expert", expert), ("branch", branch), ("scalar", scalar)):
        name = name.replace(f"{{{field}}}", str(value))
    return prefix.at(layer) + name

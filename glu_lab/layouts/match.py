"""Which layouts remain possible for the tensors of a file, and what its shapes leave open.

Names and shapes can rule layouts out. They never say which branch is the activated one, by which
function, or whether branches are joined or interleaved; where two candidates differ in one of
these, it is listed as undecided and never guessed.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Mapping

from glu_lab.errors import LayoutError
from glu_lab.layouts.document import branch_order, orientation, packing
from glu_lab.layouts.function import variants_of
from glu_lab.layouts.layout import Layout, Prefix, Tensor
from glu_lab.layouts.lookup import LAYOUTS
from glu_lab.layouts.measure import measure
from glu_lab.layouts.names import pattern

#: The part of a name before a tensor's own.
_ANY_PREFIX = r"(?P<start>(?:.*[./])?)"
#: More parts than any row's name has.
_LONGEST = 8


class _Header:
    """Shape of a tensor of which nothing else is known."""

    dtype = None

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A layout that names and shapes do not contradict.

    Attributes:
        layout: the row.
        prefixes: where its FFNs stand in this file; `plan` takes them as ``source_prefixes``.
        known: whether each of them is among the layout's own.
        sizes: of D, F (of one rank) and N; F is absent where the shapes leave the number of experts
            open.
        ffns: how many FFNs (of one layer and expert) there are.
        biases: the kinds of biases that are there, of ``bi``, ``bp``, ``bo``.
        functions: what they may compute, as variant texts; empty for any.
    """

    layout: Layout
    prefixes: tuple[Prefix, ...]
    known: bool
    sizes: Mapping[str, int]
    ffns: int
    biases: tuple[str, ...]
    functions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Matches:
    """What `match` found.

    Attributes:
        candidates: the layouts that remain, those first whose prefixes are known too.
        rejected: layout → why, for layouts whose names are there and contradict.
        undecided: what the candidates differ in, one line each.
        nearest: without a candidate, layouts with similar names.
    """

    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, str]
    undecided: tuple[str, ...]
    nearest: tuple[str, ...]


def match(
    shapes: Mapping[str, tuple[int, ...]], layouts: Mapping[str, Layout] | None = None
) -> Matches:
    """Holds every layout against the names and shapes of a file.

    Args:
        shapes: name → shape of every tensor.
        layouts: the layouts to try; by default the built-in ones.
    """
    rows = LAYOUTS if layouts is None else layouts
    candidates, rejected = [], {}
    index = _Index(shapes)
    tensors = {name: _Header(tuple(shape)) for name, shape in shapes.items()}
    for layout in rows.values():
        found, why = _try(layout, tensors, index)
        if found is not None:
            candidates.append(found)
        elif why:
            rejected[layout.name] = why
    candidates.sort(key=lambda c: not c.known)
    nearest = () if candidates else tuple(_nearest(shapes, rows))
    return Matches(tuple(candidates), rejected, tuple(undecided(candidates)), nearest)


def _try(
    layout: Layout, tensors: Mapping[str, _Header], index: "_Index"
) -> tuple[Candidate | None, str | None]:
    """The candidate, or why the layout is none; None and None where no name is its own."""
    reason = None
    for n in layout.branch_counts():
        prefixes = _prefixes(layout, index, n)
        if not prefixes:
            continue
        try:
            measured = measure(
                layout, tensors, n, prefixes=prefixes, open_sizes=True, complete=True
            )
        except LayoutError as error:
            reason = reason or str(error).removeprefix(f"{layout.name}: ")
            continue
        width = max(row.interleave for row in layout.rows(n))
        if measured.sizes.get("mlp", 0) % width:
            return None, f"F={measured.sizes['mlp']} is no multiple of its blocks of {width}"
        return (
            Candidate(
                layout=layout,
                prefixes=prefixes,
                known=all(prefix in layout.all_prefixes() for prefix in prefixes),
                sizes=measured.sizes,
                ffns=measured.ffns,
                biases=tuple(piece for piece, held in measured.biases.items() if held),
                functions=variants_of(layout, n),
            ),
            None,
        )
    return None, reason


class _Index:
    """The names of a file by their endings, so that each row finds its own at once."""

    def __init__(self, names: Iterable[str]):
        self.names = tuple(names)
        self._endings: dict[str, list[str]] = {}
        for name in self.names:
            cuts = [0, *(found.end() for found in re.finditer(r"[./]", name))]
            for cut in cuts[-_LONGEST:]:
                self._endings.setdefault(name[cut:], []).append(name)

    def starts(self, row: Tensor) -> Iterable[str]:
        """What stands before a row's own name, in each name that ends with it."""
        if "{" not in row.name:
            return [name[: -len(row.name)] for name in self._endings.get(row.name, ())]
        literal = max(re.split(r"\{\w+\}", row.name), key=len)
        found = (_ending(row).fullmatch(name) for name in self.names if literal in name)
        return [match["start"] for match in found if match]


def _prefixes(layout: Layout, index: _Index, n: int) -> tuple[Prefix, ...]:
    """Where the layout's tensors stand: at its own prefixes, or at others made from the names."""
    rows = layout.rows(n)
    wanted = {row.name for row in rows if row.holds in ("wi", "wo")}
    starts: dict[str, set[str]] = {}
    for row in rows:
        if row.name in wanted:
            for start in index.starts(row):
                starts.setdefault(start, set()).add(row.name)
    made: dict[Prefix, None] = {}
    unknown = []
    for start, held in starts.items():
        if wanted <= held:
            own = _own_prefix(layout, start)
            if own is None:
                unknown.append(start)
            else:
                made[own] = None
    made.update(dict.fromkeys(_made_prefixes(unknown)))
    return tuple(made)


@functools.cache
def _ending(row: Tensor) -> re.Pattern[str]:
    return re.compile(_ANY_PREFIX + pattern(row.name).pattern)


def _own_prefix(layout: Layout, start: str) -> Prefix | None:
    """The layout's own prefix that a beginning is of."""
    for prefix in layout.all_prefixes():
        found = pattern(prefix.template).fullmatch(start)
        if found is None:
            continue
        if prefix.has_layer:
            layer, remainder = divmod(int(found["layer"]) - prefix.first, prefix.step)
            if layer < 0 or remainder:
                continue
        return prefix
    return None


_NUMBER = re.compile(r"(?<![0-9A-Za-z])(?:0|[1-9][0-9]*)(?![0-9A-Za-z])")


def _made_prefixes(starts: Iterable[str]) -> list[Prefix]:
    """Prefixes of beginnings that no layout knows: the number that varies is the layer's.

    Where two numbers vary the FFNs are of experts, and of no layout without an expert's number.
    """
    groups: dict[str, list[list[str]]] = {}
    for start in starts:
        groups.setdefault(_NUMBER.sub("{}", start), []).append(_NUMBER.findall(start))
    made = []
    for skeleton, numbers in groups.items():
        columns = list(zip(*numbers, strict=True))
        varying = [i for i, column in enumerate(columns) if len(set(column)) > 1]
        if len(varying) > 1:
            continue
        layer = varying[0] if varying else len(columns) - 1
        fields = ["{layer}" if i == layer else column[0] for i, column in enumerate(columns)]
        template = skeleton.format(*fields)
        stack = "encoder" if re.search(r"(^|[._/])enc", template) else "decoder"
        made.append(Prefix(template=template, stack=stack))
    return made


def undecided(candidates: Iterable[Candidate]) -> list[str]:
    """What the candidates differ in, or each of them leaves open."""
    candidates = list(candidates)
    lines = []
    tensors: dict[str, list[tuple[Layout, Tensor]]] = {}
    for candidate in candidates:
        n = candidate.sizes["branch"]
        for row in candidate.layout.rows(n):
            if row.holds in ("wi", "wo"):
                tensors.setdefault(row.name, []).append((candidate.layout, row))
    for name, owners in tensors.items():
        for what, view in (
            ("branch order", branch_order),
            ("packing", packing),
            ("orientation", orientation),
        ):
            values: dict[str, list[str]] = {}
            for layout, row in owners:
                values.setdefault(view(layout, row), []).append(layout.name)
            values.pop("", None)
            if len(values) > 1:
                said = " or ".join(f"{value} ({', '.join(who)})" for value, who in values.items())
                lines.append(f"{what} of {name!r}: {said}")
    for candidate in candidates:
        if "mlp" not in candidate.sizes:
            lines.append(f"the number of experts of {candidate.layout.name}, and with it d_ff")
    whole = {c.layout.per_rank for c in candidates}
    if whole == {True, False}:
        ranks = ", ".join(c.layout.name for c in candidates if c.layout.per_rank)
        lines.append(f"whether it is a whole model or one rank's part ({ranks})")
    functions = dict.fromkeys(text for c in candidates for text in c.functions)
    if len(functions) > 1 or any(not c.functions for c in candidates):
        asked = dict.fromkeys(
            rule.attribute for c in candidates for rule in c.layout.function.rules
        )
        if any(not c.functions for c in candidates):
            functions = dict.fromkeys((*functions, "any that a Spec can say"))
        by = f"; the config attribute {' or '.join(asked)} decides" if asked else ""
        lines.append(f"the function: {', '.join(functions)}{by}")
    return lines


def layouts_with_names(names: Iterable[str]) -> list[str]:
    """Layouts of which some FFN could be among the names, whatever their shapes."""
    index = _Index(names)
    return [
        layout.name
        for layout in LAYOUTS.values()
        if any(_prefixes(layout, index, n) for n in layout.branch_counts())
    ]


def layouts_with_tensor(name: str) -> list[str]:
    """Layouts that have a tensor of this name, wherever it stands."""
    return [
        layout.name
        for layout in LAYOUTS.values()
        if any(_ending(row).fullmatch(name) for row in layout.tensors)
    ]


def rows_like(row: Tensor) -> list[tuple[Layout, Tensor]]:
    """Rows of any layout that share a row's name."""
    return [
        (layout, other)
        for layout in LAYOUTS.values()
        for other in layout.tensors
        if other.name == row.name
    ]


def _nearest(names: Iterable[str], layouts: Mapping[str, Layout]) -> list[str]:
    """Layouts whose tensors are called almost like some of the names."""
    tails = {re.split(r"[./](?=\D)", name, maxsplit=0)[-1]: name for name in names}
    endings = {".".join(re.split(r"[./]", name)[-2:]) for name in names} | set(tails)
    scores: dict[str, float] = {}
    for layout in layouts.values():
        for row in layout.tensors:
            own = row.name.replace("/", ".")
            for ending in endings:
                ratio = difflib.SequenceMatcher(None, own, ending).ratio()
                if ratio > 0.75:
                    scores[layout.name] = max(scores.get(layout.name, 0.0), ratio)
    return sorted(scores, key=lambda name: -scores[name])[:5]

"""What a program communicates, beside the least that its FFNs' algebra needs.

The minimum is of tensor parallelism: hidden channels are split over devices, so that every device
holds a part of each output row and of each input row's gradient.

    rows outside      forward                                backward
    whole             all-reduce T·D                         all-reduce T·D
    split (``seq``)   all-gather T·D, reduce-scatter T·D     the same

In backward the gradients of all branches are summed before they are exchanged, so that there is one
T·D and not one a branch. Added there are the gradients of what the devices share and each use on a
part: learned scalars, and the output bias where positions are split.

What goes over the batch's axes alone has no minimum here: how often weights are gathered and their
gradients summed is a choice of memory (stored pieces, micro-batches), and not of algebra.

Elements are compared, in each row's own number format; see `glu_lab.sharding.collectives` for what
counts as payload. Dimension letters: D d_model, T rows of one device, L layers.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glu_lab.sharding.collectives import (
    BACKWARD,
    FORWARD,
    PHASES,
    UPDATE,
    Collective,
    byte_count,
    bytes_by_axis,
)
from glu_lab.spec.ffn import FFN
from glu_lab.spec.model import Model
from glu_lab.spec.sharding import Rules, Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """An FFN of a program.

    Attributes:
        path: the modules and scopes around it, ``"encoder/layers/ffn"``; "" for a program that is
            nothing else.
        rows: T, in one call of the program.
        d_model: D.
        over: mesh axes that split its hidden channels.
        layers: L of the same path.
        sequence: whether positions are split over the same axes outside of it.
        shared: elements whose gradients the devices of `over` have parts of.
    """

    path: str
    rows: int
    d_model: int
    over: Split
    layers: int = 1
    sequence: bool = False
    shared: int = 0

    def minimum(self, phase: str) -> dict[str, int]:
        """Kind of collective → elements that a call needs."""
        activations = self.rows * self.d_model * self.layers
        if self.sequence:
            least = {"all-gather": activations, "reduce-scatter": activations}
        else:
            least = {"all-reduce": activations}
        if phase == BACKWARD and self.shared:
            least["all-reduce"] = least.get("all-reduce", 0) + self.shared * self.layers
        return least

    def holds(self, collective: Collective) -> bool:
        """Whether it arises inside, between devices that have different channels."""
        inside = not self.path or f"/{self.path}/" in f"/{collective.module}/"
        return inside and not set(self.over).isdisjoint(collective.axes)


def ffn_site(
    spec: FFN, path: str, shape: Sequence[int], rules: Rules, mesh: Mapping[str, int], **more: Any
) -> Site | None:
    """The FFN of a Spec on a mesh.

    Args:
        spec: which function.
        path: where its collectives arise.
        shape: (batch, position) of all devices' rows together.
        rules, mesh: how they are laid out.
        **more: `Site.layers`.

    Returns:
        None where its channels are not split.
    """
    over = tuple(axis for axis in rules.mlp if mesh[axis] > 1)
    if not over:
        return None
    sequence = set(rules.seq) >= set(over)
    apart = {axis for axis in (*rules.batch, *rules.seq) if axis not in over}
    learned = sum(len(branch.activation.row.learned) for branch in spec.branches)
    return Site(
        path=path,
        rows=math.prod(shape) // math.prod(mesh[axis] for axis in apart),
        d_model=spec.d_model,
        over=over,
        sequence=sequence,
        shared=learned + (spec.d_model if sequence and spec.output_bias else 0),
        **more,
    )


def model_sites(
    model: Model, batch: Mapping[str, Sequence[int]], rules: Rules, mesh: Mapping[str, int]
) -> list[Site]:
    """The FFNs of a Transformer.

    Args:
        model: its Spec.
        batch: shapes of a batch's arrays, by name.
        rules, mesh: how it is laid out.
    """
    stacks = {"decoder": (model.num_layers, "tokens")}
    if model.kind == "encoder_decoder":
        stacks = {
            "encoder": (model.num_encoder_layers, "encoder_tokens"),
            "decoder": (model.num_layers, "decoder_tokens"),
        }
    sites = [
        ffn_site(model.ffn, f"{stack}/layers/ffn", batch[tokens], rules, mesh, layers=layers)
        for stack, (layers, tokens) in stacks.items()
    ]
    return [site for site in sites if site is not None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Collectives that differ in nothing but which they are.

    Attributes:
        phase, kind, axis, group_size, dtype, trips, module, operation: as of a `Collective`.
        count: how many.
        elements: their payloads together, of one trip.
        bytes: of a call of the program.
        minimum_bytes: the part of it that the algebra needs; None where that is not defined, 0
            for what an FFN does not need.
    """

    phase: str
    kind: str
    axis: str
    group_size: int
    dtype: str
    trips: int
    module: str
    operation: str
    count: int
    elements: int
    bytes: int
    minimum_bytes: int | None

    @property
    def ratio(self) -> float | None:
        """Bytes by their minimum; None where there is none, or it is 0."""
        return self.bytes / self.minimum_bytes if self.minimum_bytes else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sum:
    """All that an FFN communicates in a phase over the axes that split it.

    Attributes:
        site: its path.
        phase: forward or backward.
        elements: of a call.
        minimum_elements: what the algebra needs.
    """

    site: str
    phase: str
    elements: int
    minimum_elements: int

    @property
    def ratio(self) -> float:
        """1.0 for what cannot be better."""
        return self.elements / self.minimum_elements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Every collective of a program.

    Attributes:
        rows: by phase, then as the program runs them.
        sums: one an FFN and phase.
        axis_bytes: bytes of a call over each mesh axis.
    """

    rows: list[Row]
    sums: list[Sum]
    axis_bytes: dict[str, int]

    @property
    def worst_ratio(self) -> float | None:
        """The largest of the sums' ratios; None where no FFN is split."""
        return max((total.ratio for total in self.sums), default=None)

    def to_json(self) -> dict[str, Any]:
        """Rows, sums, bytes by axis and the worst ratio, ready for JSON."""
        return {
            "rows": [{**dataclasses.asdict(row), "ratio": row.ratio} for row in self.rows],
            "ffn": [{**dataclasses.asdict(total), "ratio": total.ratio} for total in self.sums],
            "axis_bytes": self.axis_bytes,
            "worst_ratio": self.worst_ratio,
        }


def audit(found: Iterable[Collective], sites: Sequence[Site] = ()) -> Audit:
    """Collectives beside the minimum.

    Args:
        found: from `glu_lab.sharding.collectives.collectives`.
        sites: the FFNs of the program; without any, all minima are None.
    """
    found = list(found)
    groups: dict[tuple[Any, ...], list[Collective]] = {}
    for collective in found:
        site = next((s for s in sites if s.holds(collective)), None)
        key = (
            *(collective.phase, collective.kind, collective.axis, collective.group_size),
            *(collective.dtype, collective.trips, collective.module, collective.operation),
            site if collective.phase != UPDATE else None,
        )
        groups.setdefault(key, []).append(collective)

    phases = [FORWARD] + [BACKWARD] * any(c.phase != FORWARD for c in found)
    left = {(site, phase): site.minimum(phase) for site in sites for phase in phases}
    moved = dict.fromkeys(left, 0)
    rows = {}
    # The largest first, so that the many small ones of a wrong layout do not take their place.
    for key, members in sorted(groups.items(), key=lambda item: -_elements(item[1])):
        site, total, minimum = key[-1], _elements(members), None
        if site is not None:
            budget = left[site, key[0]]
            allotted = min(total, budget.get(key[1], 0))
            budget[key[1]] = budget.get(key[1], 0) - allotted
            moved[site, key[0]] += total
            minimum = byte_count(allotted, members[0].dtype)
        rows[key] = _row(members, minimum)
    ordered = [rows[key] for phase in PHASES for key in groups if key[0] == phase]
    sums = [
        Sum(
            site=site.path,
            phase=phase,
            elements=moved[site, phase],
            minimum_elements=sum(site.minimum(phase).values()),
        )
        for site, phase in left
    ]
    return Audit(rows=ordered, sums=sums, axis_bytes=bytes_by_axis(found))


def _elements(members: Sequence[Collective]) -> int:
    return sum(member.total_elements for member in members)


def _row(members: Sequence[Collective], minimum: int | None) -> Row:
    first = members[0]
    return Row(
        phase=first.phase,
        kind=first.kind,
        axis=first.axis,
        group_size=first.group_size,
        dtype=first.dtype,
        trips=first.trips,
        module=first.module,
        operation=first.operation,
        count=len(members),
        elements=sum(member.elements for member in members),
        bytes=sum(member.bytes for member in members),
        minimum_bytes=minimum,
    )


# As text.

_COLUMNS = (
    "kind",
    "axis",
    "elements",
    "format",
    "trips",
    "bytes",
    "minimum",
    "ratio",
    "from",
)
_SUM_COLUMNS = ("", "phase", "elements", "minimum", "ratio")
_LEFT = {"kind", "axis", "format", "from", "", "phase"}

#: A line of a table: cells, or a heading.
_Line = Sequence[str] | str


def table(found: Audit, *, least_share: float = 0.01) -> str:
    """The audit for people: rows by phase and module, the FFNs' sums, bytes by axis.

    Args:
        found: the audit.
        least_share: of all bytes; rows without a minimum that are less are summed up in one line
            a phase. 0 writes out all of them.
    """
    least = least_share * sum(found.axis_bytes.values())
    lines: list[_Line] = []
    for phase in PHASES:
        rows = [row for row in found.rows if row.phase == phase]
        if rows:
            lines += [phase, *_phase_lines(rows, least)]
    sums = [
        (t.site or "all", t.phase, f"{t.elements:,}", f"{t.minimum_elements:,}", f"{t.ratio:.2f}")
        for t in found.sums
    ]
    out = [*_aligned(_COLUMNS, lines), ""]
    if sums:
        out += ["FFNs, over the axes that split them, a call", *_aligned(_SUM_COLUMNS, sums)]
        out.append(f"worst ratio: {found.worst_ratio:.2f}")
        if any(total.ratio < 1 for total in found.sums):
            out.append(
                "Below 1, something is not seen: a program that leaves an output out, or names "
                "that the compiler lost."
            )
        out.append("")
    else:
        out += ["no FFN is split over devices", ""]
    out += [f"over {axis}: {bytes_text(size)} a call" for axis, size in found.axis_bytes.items()]
    return "\n".join(out)


def _aligned(columns: Sequence[str], lines: Sequence[_Line]) -> list[str]:
    """Lines with their cells below one another."""
    cells = [columns, *(line for line in lines if not isinstance(line, str))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def aligned(line: _Line) -> str:
        if isinstance(line, str):
            return line
        shown = [
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        return ("    " + "  ".join(shown)).rstrip()

    return [aligned(line) for line in (columns, *lines)]


def _phase_lines(rows: Sequence[Row], least: float) -> list[_Line]:
    """Lines of a phase under their modules; those of the largest row first."""
    small = [row for row in rows if row.minimum_bytes is None and row.bytes < least]
    modules: dict[str, list[Row]] = {}
    for row in rows:
        if row not in small:
            modules.setdefault(row.module, []).append(row)
    lines: list[_Line] = []
    for module, members in sorted(modules.items(), key=lambda m: -max(r.bytes for r in m[1])):
        lines += [f"  {module or '(outside of modules)'}", *map(_cells, members)]
    if small:
        count, size = sum(row.count for row in small), bytes_text(sum(row.bytes for row in small))
        lines.append(f"  {count} smaller: {size} together")
    return lines


def _cells(row: Row) -> list[str]:
    minimum, ratio = "–", "–"
    if row.minimum_bytes is not None:
        minimum = bytes_text(row.minimum_bytes)
        ratio = "∞" if row.ratio is None else f"{row.ratio:.2f}"
    return [
        row.kind,
        row.axis,
        f"{row.elements:,}",
        row.dtype,
        f"{row.trips:,}",
        bytes_text(row.bytes),
        minimum,
        ratio,
        row.operation if row.count == 1 else f"{row.operation} ({row.count})",
    ]


def bytes_text(size: int) -> str:
    """Bytes in the largest binary unit that leaves at least one."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.4g} {name}"
    return f"{size} B"

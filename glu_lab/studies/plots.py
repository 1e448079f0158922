"""Figures of a study: loss curves, and paired differences with their intervals."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from glu_lab.files.atomic import write_bytes
from glu_lab.studies.groups import load_groups
from glu_lab.studies.records import read_metrics
from glu_lab.studies.table import Row, Table

# Okabe & Ito 2008, "Color Universal Design": told apart with every kind of colour blindness. Its
# yellow is left out, being too light for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (4, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_MARK_COLOURS = {"better": "#0072B2", "worse": "#D55E00"}
_NEUTRAL = "#777777"

#: File formats, and what each is saved with; a date would make equal figures differ.
SUFFIXES: Mapping[str, dict[str, Any]] = {
    ".png": {"dpi": 160},
    ".svg": {"metadata": {"Date": None}},
}

Curve = tuple[list[float], list[float]]
#: Point → seed → lines of metrics.
Curves = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]


def load_curves(
    results: Path, *, select: Mapping[str, str] | None = None
) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Point → seed → lines of metrics, of every run that has a folder.

    Raises:
        RecordError: for unreadable metrics, or runs that do not belong in one figure.
    """
    _, groups, _ = load_groups(results, select=select or {})
    return {
        name: {
            seed: read_metrics(record.directory)
            for seed, record in runs.items()
            if record is not None
        }
        for name, runs in groups.items()
    }


def draw(table: Table, curves: Curves, output: Path) -> list[Path]:
    """Draws what there is to draw as PNG and SVG: ``loss_curves`` and ``paired_differences``.

    Args:
        table: the study's table.
        curves: from `load_curves`.
        output: folder of the files; made if missing.

    Returns:
        The files written, each atomically; none when no run has metrics or a result yet. An older
        figure of which there is nothing to draw any more is removed.

    Raises:
        RecordError: when a file cannot be written.
    """
    figures: dict[str, Figure | None] = {"loss_curves": None, "paired_differences": None}
    if any(lines for runs in curves.values() for lines in runs.values()):
        figures["loss_curves"] = loss_curves(table, curves)
    if any(row.delta is not None for row in table.rows if row.mark != "baseline"):
        figures["paired_differences"] = forest(table)
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths += _save(figure, Path(output) / name)
            continue
        for suffix in SUFFIXES:
            # One of an earlier state of the study would belie the table beside it.
            (Path(output) / name).with_suffix(suffix).unlink(missing_ok=True)
    return paths


def loss_curves(table: Table, curves: Curves) -> Figure:
    """Losses over the whole run, and its last part magnified.

    Thin lines are the training loss of each seed, smoothed; marks are validation, mean of the
    complete seeds.

    Args:
        table: the study.
        curves: point → seed → lines of metrics.
    """
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    whole, end = figure.subplots(1, 2)
    handles = []
    drawn: list[Curve] = []
    for index, row in enumerate(table.rows):
        runs = curves.get(row.point, {})
        if not any(runs.values()):
            continue
        colour, dash, marker = _style(index)
        label = f"{row.point}" + ("" if row.status == "complete" else f" ({row.status})")
        line = {"color": colour, "linestyle": dash}
        handles.append(Line2D([], [], marker=marker, label=label, **line))
        training = [_series(lines, "train", "loss") for lines in runs.values()]
        training = [(steps, smoothed(values)) for steps, values in training]
        # As in the table, only complete runs enter a mean.
        complete = [runs[seed] for seed in row.seeds]
        validation = _mean_series([_series(lines, "eval", "log_perplexity") for lines in complete])
        for axes in (whole, end):
            for steps, values in training:
                axes.plot(steps, values, linewidth=0.8, alpha=0.35, **line)
            axes.plot(*validation, linewidth=1.6, marker=marker, markersize=5, zorder=3, **line)
        drawn += [*training, validation]
    for axes, share, name in ((whole, 0.0, "whole run"), (end, 0.6, "last 40 % of the steps")):
        axes.set_xlabel(f"step ({name})")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("loss (nats per target token)")
        _fit(axes, drawn, share)
        _plain(axes)
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=4)
    _titles(
        figure,
        table,
        "thin: training loss of each seed, smoothed; marks: validation, mean of complete seeds",
    )
    return figure


def forest(table: Table) -> Figure:
    """Paired differences to the baseline with 95 % intervals, in the table's order."""
    rows = [row for row in table.rows if row.mark != "baseline"]
    figure = Figure(figsize=(9, 2.1 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="black", linewidth=1)
    for position, row in enumerate(rows):
        _forest_row(axes, position, row)
    axes.set_yticks(range(len(rows)), [f"{row.point}  (d_ff {row.d_ff})" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(f"log-perplexity minus that of {table.baseline}, paired by seed   (← better)")
    axes.margins(x=0.1)
    _plain(axes)
    axes.grid(axis="y", visible=False)
    _titles(
        figure, table, "points: mean over seeds; bars: 95 % Student interval of paired differences"
    )
    return figure


def smoothed(values: Sequence[float], share: float = 0.05) -> list[float]:
    """A centred running mean over a share of the points, narrower at the ends."""
    half = max(1, round(len(values) * share / 2)) if len(values) > 10 else 0
    result = []
    for index in range(len(values)):
        reach = min(half, index, len(values) - 1 - index)
        window = values[index - reach : index + reach + 1]
        result.append(math.fsum(window) / len(window))
    return result


def _forest_row(axes: Axes, position: int, row: Row) -> None:
    colour = _MARK_COLOURS.get(row.mark, _NEUTRAL)
    if row.delta_ci95 is not None:
        axes.plot(row.delta_ci95, [position, position], color=colour, linewidth=2.2)
    if row.delta is not None:
        fill = colour if row.mark in _MARK_COLOURS else "white"
        style = {"color": colour, "markerfacecolor": fill, "markersize": 7}
        axes.plot([row.delta], [position], "o", zorder=3, **style)
    axes.annotate(
        row.mark if row.status == "complete" else f"{row.mark}; {row.status}",
        (1.02, position),
        xycoords=("axes fraction", "data"),
        va="center",
        size=9,
        color=colour,
    )


def _style(index: int) -> tuple[str, Any, str]:
    turn = index // len(PALETTE)
    return (
        PALETTE[index % len(PALETTE)],
        DASHES[turn % len(DASHES)],
        MARKERS[(index + turn) % len(MARKERS)],
    )


def _series(lines: Sequence[Mapping[str, Any]], kind: str, key: str) -> Curve:
    """Steps and finite values of one quantity; a diverged loss has no place on an axis."""
    pairs = [
        (float(line["step"]), float(line[key]))
        for line in lines
        if line["kind"] == kind
        and isinstance(line.get(key), int | float)
        and math.isfinite(line[key])
    ]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _mean_series(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds at the steps that every seed with such points has."""
    tables = [dict(zip(*curve, strict=True)) for curve in curves if curve[0]]
    if not tables:
        return [], []
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    return steps, [math.fsum(table[step] for table in tables) / len(tables) for step in steps]


def _fit(axes: Axes, curves: Sequence[Curve], share: float) -> None:
    """Shows the steps after a share of the run, and the losses that occur there."""
    last = max((steps[-1] for steps, _ in curves if steps), default=0.0)
    shown = [
        value
        for steps, values in curves
        for step, value in zip(steps, values, strict=True)
        if step >= share * last
    ]
    if last > 0:
        axes.set_xlim((share - 0.02) * last if share else 0.0, 1.02 * last)
    if shown and max(shown) > min(shown):
        margin = 0.06 * (max(shown) - min(shown))
        axes.set_ylim(min(shown) - margin, max(shown) + margin)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _titles(figure: Figure, table: Table, reading: str) -> None:
    title = f"{table.name}: {table.question}" if table.question else table.name
    lines = [
        part for line in (title, *table.contract, reading) for part in textwrap.wrap(line, 110)
    ]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9)


def _save(figure: Figure, stem: Path) -> list[Path]:
    paths = []
    for suffix, options in SUFFIXES.items():
        buffer = io.BytesIO()
        # A fixed salt names the SVG's parts the same each time.
        with matplotlib.rc_context({"svg.hashsalt": stem.name, "svg.fonttype": "path"}):
            figure.savefig(buffer, format=suffix[1:], **options)
        write_bytes(stem.with_suffix(suffix), buffer.getvalue())
        paths.append(stem.with_suffix(suffix))
    return paths

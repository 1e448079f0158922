"""``glu-lab conformance``: every Spec, execution and layout against the float64 oracle."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HELP = "hold every variant, execution and storage layout against the float64 oracle"
EPILOG = """\
examples:
  the cells that matter most, in about a minute:
    glu-lab conformance
  all of them, as one file to read and one to keep:
    glu-lab conformance --tier full --html conformance.html --json > conformance.json
  one variant compiled in two number formats; a name may state its axis:
    glu-lab conformance --only 'swiglu*' jit bfloat16 float32
    glu-lab conformance --only spec=gpt_oss layout='hf-*' --tier full
  a function, an execution and a layout of your own beside the built-in ones:
    glu-lab conformance --variant 'relu2*silu' --register my_ffn:fused --rows my_layouts.toml

A share is an error divided by what rounding explains (glu_lab/oracle/tolerances.py says how much
that is, and why); at most 1 passes. The command ends with 0 only when every cell passed that has to
run. docs/conformance.md explains the rest.
"""

EXIT_PROBLEMS = 1

_WORST = 10
_ERRORS = ("share", "absolute", "relative", "ulps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="names of Specs, executions, dtypes, shapes, probes, modes or layouts, or AXIS=NAME; "
        "* matches anything",
    )
    parser.add_argument("--tier", default="quick", help="quick (default) or full")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="TEXT",
        help="a further variant, as a product of activations; may be repeated",
    )
    parser.add_argument(
        "--register",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="a further execution, found from here: a function like glu_lab.layers.ffn.apply, or a "
        "glu_lab.conformance.executions.Execution; may be repeated",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="TOML file with your own layouts")
    parser.add_argument(
        "--here",
        action="store_true",
        help="run on this machine's own devices instead of virtual CPU devices",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="write its numbers and worst cells as Markdown",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the cells and prints what they are; 1 when not all of them passed."""
    from glu_lab.conformance import executions, matrix, report
    from glu_lab.layouts import read_layouts
    from glu_lab.sharding.targets import use_virtual_devices

    layouts = {} if args.rows is None else read_layouts(args.rows)
    if args.register:
        # As `python -m` finds modules: a user's file stands where the command is given.
        sys.path.insert(0, os.getcwd())
    own = [executions.load(text) for text in args.register]
    every = matrix.make_axes(args.variant, own, layouts)
    axes = matrix.narrow(every, args.only)
    planned = matrix.plan(axes, args.tier)
    if not args.here:
        use_virtual_devices(max(way.devices for way in every.executions.values()))
    started = time.perf_counter()
    done = _walk(axes, planned)
    seconds = time.perf_counter() - started
    found = report.document(done, planned, report.identity(axes, args.tier, args.only))
    _write(args, found)
    if args.json:
        print(json.dumps(found, ensure_ascii=False, separators=(",", ":")))
    else:
        _print(found, args.tier, seconds)
    return 0 if report.is_complete(found) else EXIT_PROBLEMS


def _write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """The files that were asked for."""
    from glu_lab.conformance.page import markdown, page
    from glu_lab.files.atomic import write_text

    if args.html is not None:
        write_text(args.html, page(found))
    if args.markdown is not None:
        only = f" --only {' '.join(args.only)}" if args.only else ""
        write_text(args.markdown, markdown(found, f"glu-lab conformance --tier {args.tier}{only}"))


def _walk(axes: Any, planned: Any) -> list:
    """The cells under a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from glu_lab.conformance import matrix

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("cells", total=len(planned.places))

        def on_cell(place: Any, result: Any) -> None:
            name = place.execution if hasattr(place, "execution") else "layouts"
            bar.update(task, advance=1, description=name)

        return matrix.run(axes, planned, on_cell=on_cell)


def _print(found: dict[str, Any], tier: str, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from glu_lab.conformance import cells, report

    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(header_style="bold")
    table.add_column("execution")
    for column in ("cells", "passed", "failed", "not run", "largest share"):
        table.add_column(column, justify="right")
    for line in report.lines(found):
        worst = "–" if line.worst is None else _short(line.worst["share"])
        counts = (line.cells, line.passed, line.failed, line.not_run)
        table.add_row(line.name, *(f"{n:,}" if n else "–" for n in counts), worst)
    console.print(table)

    rows = [r for r in report.worst_first(found["rows"]) if r["status"] not in cells.NOT_RUN]
    console.print("worst cells:")
    for row in rows[: max(_WORST, min(found["failed"], 3 * _WORST))]:
        numbers = [f"{name} {_short(row[name])}" for name in _ERRORS if name in row]
        text = f"  {row['status']}: {report.place_of(row)}: "
        text += ", ".join([*numbers, *([row["array"]] if "array" in row else [])])
        console.print(text + row.get("detail", ""), soft_wrap=True)

    for name, count in found["not_run"].items():
        console.print(f"{count:,} cells were not run: {cells.NOT_RUN[name]}", soft_wrap=True)
    if found["left_to_full"]:
        console.print(f"{found['left_to_full']:,} cells are left to --tier full")
    console.print(
        f"{found['cells']:,} cells in {seconds:.0f} s: {found['passed']:,} passed, "
        f"{found['failed']:,} failed ({tier} tier, {found['identity']['device']}, jax "
        f"{found['identity']['libraries']['jax']})"
    )
    console.print(f"sha256 {found['sha256']}")


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"

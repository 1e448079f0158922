"""``glu-lab failure-lab``: known faults planted on purpose, and the checks that find them."""

import argparse
import contextlib
import functools
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glu_lab.conformance.failures.lab import Result
    from glu_lab.conformance.failures.row import Failure, Planted

HELP = "plant known faults of Transformer MLPs and show that the checks find every one"

EPILOG = """\
examples:
  every row that is built, about a minute:
    glu-lab failure-lab
  gate and up exchanged on conversion; one packing written and another read:
    glu-lab failure-lab 16 25
  for a machine, and the table for people beside it:
    glu-lab failure-lab --json --output results/conformance

docs/failures.md lists the rows. Ends with 0 when every built row that was asked for is detected and
no clean twin raises an alarm. Computes on the CPU.
"""

EXIT_FOUND = 1

#: Characters of a terminal from which the evidence has a column of its own.
_WIDE = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help="numbers of rows, 1 to 42; all of them by default"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of rows instead")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="also write failure_lab.json and failure_lab.md there",
    )


def run(args: argparse.Namespace) -> int:
    """Plants, checks and prints; 1 when a fault is missed or a clean twin raises an alarm."""
    from glu_lab.conformance.failures.lab import all_good, choose, run

    chosen = choose(args.ids)
    # What is measured is measured alike everywhere, and an accelerator is left alone.
    from glu_lab.sharding.targets import use_virtual_devices
    from glu_lab.training.cache import enable_compilation_cache

    use_virtual_devices(1)
    enable_compilation_cache()
    results = [run(row, _more(row)) for row in _with_bar(chosen)]
    listed = [result.to_json() for result in results]
    if args.output is not None:
        _write(args.output, results, listed)
    if args.json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    else:
        _print_table(results)
    return 0 if all_good(results) else EXIT_FOUND


def _with_bar(rows: "Sequence[Failure]") -> "Iterator[Failure]":
    """The rows, with a bar of how many are done on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(file=sys.stderr)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=len(rows))
        for row in rows:
            bar.update(task, description=row.title)
            yield row
            bar.advance(task)


def _more(row: "Failure") -> "Callable[[], Sequence[Planted]]":
    """Of rows about claims: the same sentences in what the commands print."""

    def planted() -> "Sequence[Planted]":
        if row.kind != "claim":
            return ()
        from glu_lab.conformance.failures.rows.boundary import plant

        return plant(command_reports(), row.id)

    return planted


@functools.cache
def command_reports() -> tuple[Any, ...]:
    """What ``describe`` and ``plan`` print of a small decoder."""
    from glu_lab.cli import describe, plan
    from glu_lab.cli.main import parse
    from glu_lab.conformance.failures.wording import Report

    made = []
    with tempfile.TemporaryDirectory(prefix="glu_lab_reports_") as folder:
        config = Path(folder) / "small.py"
        config.write_text(_CONFIG, encoding="utf-8")
        for module, options in ((describe, ()), (plan, ("--mesh=data=4", "--target=cuda"))):
            name = module.__name__.rpartition(".")[2]
            out = io.StringIO()
            with _wide_terminal(), contextlib.redirect_stdout(out):
                module.run(parse(name, module, [f"--config={config}", *options]))
            made.append(Report(name, out.getvalue()))
    return tuple(made)


_CONFIG = """\
from glu_lab.configs import to_config
from glu_lab.conformance.failures.proposed import small_experiment


def get_config():
    return to_config(small_experiment())
"""


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    """A terminal so wide that no sentence is folded inside of a cell."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "250"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _write(folder: Path, results: "Sequence[Result]", listed: list[dict[str, Any]]) -> None:
    from glu_lab.conformance.failures.document import results_markdown
    from glu_lab.files.atomic import write_json, write_text

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "failure_lab.json", listed)
    write_text(folder / "failure_lab.md", results_markdown(results))


def _print_table(results: "Sequence[Result]") -> None:
    from rich.console import Console
    from rich.table import Table

    from glu_lab.conformance.failures.document import verdicts
    from glu_lab.conformance.failures.lab import summary

    console = Console(highlight=False, markup=False, emoji=False)
    beside = console.width >= _WIDE
    table = Table(header_style="bold")
    table.add_column("", justify="right")
    table.add_column("failure" if beside else "failure, evidence", overflow="fold")
    for column in ("naive test", "our check", "clean twin", *(("evidence",) * beside)):
        table.add_column(column, overflow="fold")
    for result in results:
        faults = len(result.trials)
        more = f" ({faults} faults planted)" if faults > 1 else ""
        evidence = _short(result.evidence) + more if faults else "–"
        title = result.failure.title
        cells = [title if beside else f"{title}\n{evidence}", *verdicts(result)]
        table.add_row(str(result.failure.id), *cells, *((evidence,) * beside))
    console.print(table)
    console.print(f"{summary(results)}.")


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"

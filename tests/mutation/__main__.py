"""``python -m tests.mutation``: plants known faults and checks that the tests notice them."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from glu_lab.errors import UnknownNameError
from glu_lab.files.atomic import write_json, write_text
from tests.mutation import report, runner
from tests.mutation.mutation import Mutation
from tests.mutation.mutations import MUTATIONS
from tests.mutation.workshop import TIMEOUT, WorkshopError

ROOT = Path(__file__).resolve().parents[2]

_COLOURS = {"caught": "green", "survived": "red", "timeout": "yellow", "broken": "magenta"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description="Plants known faults in a copy of this repository, one at a time, and runs the "
        "tests that should notice each. Ends with 1 when fewer than "
        f"{report.FLOOR:.0%} are caught, or one is not and its row does not say why.",
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows to try (default: all)")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    parser.add_argument("--sample", type=int, metavar="N", help="N rows of as many areas")
    parser.add_argument("--seed", type=int, default=0, help="which sample (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="copies that run tests at a time")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of one run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the result as a page")
    arguments = parser.parse_args()
    if min(arguments.workers, 1 if arguments.sample is None else arguments.sample) < 1:
        parser.error("--workers and --sample are at least 1")
    return arguments


def _chosen(arguments: argparse.Namespace) -> list[Mutation]:
    rows = {mutation.id: mutation for mutation in MUTATIONS}
    for name in arguments.ids:
        if name not in rows:
            raise UnknownNameError("mutation", name, rows)
    chosen = [rows[name] for name in arguments.ids] or list(MUTATIONS)
    return (
        chosen
        if arguments.sample is None
        else runner.sample(chosen, arguments.sample, arguments.seed)
    )


def main() -> int:
    """Runs and reports."""
    arguments = _arguments()
    out, console = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        chosen = _chosen(arguments)
    except UnknownNameError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    if arguments.list:
        for mutation in chosen:
            out.print(f"{mutation.id}  ({mutation.area}): {mutation.why}", markup=False)
        return 0
    try:
        outcomes = _run(arguments, chosen, console)
    except WorkshopError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    if arguments.json is not None:
        write_json(arguments.json, report.as_json(outcomes))
    if arguments.markdown is not None:
        write_text(arguments.markdown, report.as_markdown(outcomes))
    _tell(out, outcomes)
    return 0 if report.passed(outcomes) else 1


def _run(
    arguments: argparse.Namespace, chosen: list[Mutation], console: Console
) -> list[runner.Outcome]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bars:
        task = bars.add_task("mutations, and a control", total=len(chosen) + 1)

        def told(outcome: runner.Outcome) -> None:
            bars.update(task, advance=1)
            mutation, result = outcome
            # A log has no bar to look at.
            if result.status != "caught" or not bars.console.is_terminal:
                colour, note = _COLOURS[result.status], result.message or mutation.why
                bars.console.print(
                    f"[{colour}]{result.status}[/] {mutation.id}: {escape(note)}", soft_wrap=True
                )

        return runner.run(
            ROOT, chosen, workers=arguments.workers, timeout=arguments.timeout, told=told
        )


def _tell(out: Console, outcomes: list[runner.Outcome]) -> None:
    if not out.is_terminal:
        out.width = max(out.width, 160)
    table = Table("mutation", "area", "status", "noticed by", header_style="bold")
    for mutation, result in outcomes:
        status = f"[{_COLOURS[result.status]}]{result.status}[/]"
        table.add_row(mutation.id, mutation.area, status, result.by.rsplit("/", 1)[-1])
    out.print(table)
    counts = report.totals(outcomes)
    out.print(
        f"{counts['caught']} of {len(outcomes)} caught ({report.share(outcomes):.1%}), "
        f"{counts['survived']} survived, {counts['timeout']} timed out, {counts['broken']} broken"
    )
    for outcome in outcomes:
        if outcome.fault:
            out.print(f"{outcome.mutation.id}: {outcome.fault}", markup=False)


if __name__ == "__main__":
    sys.exit(main())

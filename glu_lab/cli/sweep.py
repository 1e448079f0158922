"""``glu-lab sweep``: runs what is missing of a study, then writes its table and figures."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from glu_lab.studies.launch import BUSY, Outcome, launch, plan
from glu_lab.studies.loading import (
    load_study,
    parse_filters,
    parse_overrides,
    select,
    with_overrides,
    with_seeds,
)
from glu_lab.studies.render import grids, to_rich
from glu_lab.studies.reports import describe_budgets, write_reports
from glu_lab.studies.resolved import budget_text
from glu_lab.studies.study import Member, Study, expand
from glu_lab.studies.table import build_table, to_json

HELP = "train what is missing of a study, then write its table and figures"

EPILOG = """\
examples:
  the whole study; a second call runs only what is missing, interrupted or failed:
    glu-lab sweep experiments/quickstart
  the realised budgets, nothing trained:
    glu-lab sweep experiments/quickstart --dry_run
  one variant and one seed, with fewer steps, in a results folder of its own:
    glu-lab sweep experiments/quickstart --only variant=swiglu --seeds 0 \\
        --set training.steps=20 --results /tmp/try

Exit code: 0 when every run has a result, 1 when one failed or is being trained by another process,
130 when interrupted.
A diverged run is a result; the table says so.
"""

_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130
#: Characters of an error that are shown.
_LONGEST = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("study", type=Path, help="folder with a study.py, or the file itself")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="run these members only: variant=swiglu,relu, point=…, seed=…; may be repeated",
    )
    parser.add_argument("--seeds", metavar="0,1,2", help="seeds instead of the study's own")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change entries of the base config, e.g. training.steps=100",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="the study's runs go to DIR/<study name> (default: results)",
    )
    parser.add_argument(
        "--dry_run", "--dry-run", action="store_true", help="show the realised budgets and stop"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Runs the sweep."""
    overrides = parse_overrides(args.set)
    study = with_overrides(load_study(args.study), overrides)
    if args.seeds is not None:
        study = with_seeds(study, args.seeds)
    members = expand(study)
    chosen = select(members, parse_filters(args.only))
    if args.dry_run:
        _print_budgets(study, chosen, as_json=args.json)
        return 0
    from glu_lab.training.cache import enable_compilation_cache

    enable_compilation_cache()
    results = args.results / study.name
    planned = plan(study, members, results, overrides=overrides)
    outcomes, interrupted = launch(
        [run for run in planned if run.member in chosen], resume_command=_command(args)
    )
    table = build_table(results)
    files = write_reports(results, table)
    failed = [outcome for outcome in outcomes if outcome.status in ("failed", BUSY)]
    if args.json:
        summary = {
            "study": study.name,
            "results": str(results),
            "interrupted": interrupted,
            "runs": [_outcome(outcome) for outcome in outcomes],
            "files": [str(path) for path in files],
            "table": to_json(table),
        }
        print(json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        console = Console()
        console.print(to_rich(table, console.width))
        console.print(f"\nWritten: {', '.join(map(str, files))}", markup=False, highlight=False)
        for outcome in failed:
            console.print(_failure(outcome), markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        return _EXIT_INTERRUPTED
    return _EXIT_FAILED if failed else 0


def _command(args: argparse.Namespace) -> list[str]:
    """The command line that takes an interrupted sweep up again."""
    command = ["glu-lab", "sweep", str(args.study)]
    for only in args.only:
        command += ["--only", only]
    if args.seeds is not None:
        command += ["--seeds", args.seeds]
    if args.set:
        command += ["--set", *args.set]
    if args.results != Path("results"):
        command += ["--results", str(args.results)]
    return command


def _failure(outcome: Outcome) -> str:
    """One line; an error that ran through the libraries below may have hundreds."""
    first = (str(outcome.error).strip().splitlines() or [""])[0]
    if outcome.status == BUSY:
        return f"Not run: {outcome.member.label}: {first}"
    if len(first) > _LONGEST:
        first = f"{first[:_LONGEST]}…"
    summary = outcome.directory / "summary.json"
    return f"Failed: {outcome.member.label}: {first} (in full: {summary})"


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "point": outcome.member.point,
        "seed": outcome.member.seed,
        "run_id": outcome.directory.name,
        "status": outcome.status,
        "ran": outcome.ran,
        "error": outcome.error,
    }


def _print_budgets(study: Study, members: Sequence[Member], *, as_json: bool) -> None:
    entries = describe_budgets(study, members)
    budget = budget_text(study.budget, study.tolerance)
    if as_json:
        content = {
            "study": study.name,
            "baseline": study.baseline,
            "budget": budget,
            "runs": len(members),
            "points": entries,
        }
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    columns = [
        ("point", [entry["point"] for entry in entries]),
        ("d_ff", [f"{entry['d_ff']:,}" for entry in entries]),
        ("FFN parameters", [f"{entry['ffn_params']:,}" for entry in entries]),
        ("Δ", [f"{entry['ffn_param_delta']:+,}" for entry in entries]),
        ("Δ model", [_signed(entry["model_param_delta"]) for entry in entries]),
        ("FFN MACs/token", [f"{entry['macs_per_token']:,}" for entry in entries]),
        ("Δ", [f"{entry['mac_delta']:+,}" for entry in entries]),
    ]
    shared = ""
    for name in ("steps", "seeds"):
        values = [_seeds(e["seeds"]) if name == "seeds" else f"{e[name]:,}" for e in entries]
        if len(set(values)) == 1:  # said once
            shared += f", {name}: {values[0]}"
        else:
            columns.append((name, values))
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(
        f"{study.name}: {len(members)} runs, baseline {study.baseline}, {budget}{shared}",
        style="italic",
    )
    headings, values = zip(*columns, strict=True)
    for grid in grids(headings, list(zip(*values, strict=True)), named=1, width=console.width):
        console.print(grid)


def _seeds(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _signed(value: int | None) -> str:
    return "–" if value is None else f"{value:+,}"

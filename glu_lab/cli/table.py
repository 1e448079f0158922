"""``glu-lab table``: the results of a study, with what its differences do and do not show."""

import argparse
from pathlib import Path

from rich.console import Console

from glu_lab.errors import SpecError
from glu_lab.files.atomic import write_text
from glu_lab.studies.loading import parse_filters
from glu_lab.studies.published import PUBLISHED
from glu_lab.studies.render import WRITERS, render, to_rich
from glu_lab.studies.table import build_table

HELP = "tabulate a study's results with paired differences to its baseline"

EPILOG = """\
examples:
  glu-lab table results/quickstart
  glu-lab table results/quickstart --format json
  glu-lab table results/ablation --published glu_variants_2020 --format md --output table.md
  glu-lab table results/mixed --baseline relu --select steps=200

Rows stand in the study's order, which is no ranking. A difference whose 95 % interval contains 0 is
reported as not separated. Published numbers stand in columns of their own.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("results", type=Path, help="a study's folder, results/<study>")
    parser.add_argument("--format", choices=("rich", *WRITERS), default="rich")
    parser.add_argument("--baseline", help="point to compare with (default: the study's)")
    parser.add_argument(
        "--published", choices=tuple(PUBLISHED), help="a paper's numbers beside ours"
    )
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="keep the runs with these steps=… or data_fingerprint=…; may be repeated",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to a file instead")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the table."""
    if args.output is not None and args.format == "rich":
        raise SpecError(f"--output needs --format with one of {', '.join(WRITERS)}; rich is shown.")
    table = build_table(
        args.results,
        baseline=args.baseline,
        published_name=args.published,
        select=parse_filters(args.select),
    )
    if args.format == "rich":
        console = Console()
        console.print(to_rich(table, console.width))
    elif args.output is not None:
        write_text(args.output, render(table, args.format))
    else:
        print(render(table, args.format), end="")
    return 0

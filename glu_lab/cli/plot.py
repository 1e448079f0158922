"""``glu-lab plot``: loss curves and paired differences of a study, as PNG and SVG."""

import argparse
from pathlib import Path

from glu_lab.errors import RecordError
from glu_lab.studies.loading import parse_filters
from glu_lab.studies.plots import draw, load_curves
from glu_lab.studies.reports import FIGURES
from glu_lab.studies.table import build_table

HELP = "draw a study's loss curves and paired differences as PNG and SVG"

EPILOG = """\
examples:
  glu-lab plot results/quickstart
  glu-lab plot results/quickstart --output /tmp/figures
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("results", type=Path, help="a study's folder, results/<study>")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to (default: RESULTS/figures)"
    )
    parser.add_argument("--baseline", help="point to compare with (default: the study's)")
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="keep the runs with these steps=… or data_fingerprint=…; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Draws the figures and prints their paths."""
    selection = parse_filters(args.select)
    table = build_table(args.results, baseline=args.baseline, select=selection)
    output = args.output or args.results / FIGURES
    paths = draw(table, load_curves(args.results, select=selection), output)
    if not paths:
        raise RecordError(
            f"{args.results} has nothing to draw yet: no run has metrics or a result."
        )
    for path in paths:
        print(path)
    return 0

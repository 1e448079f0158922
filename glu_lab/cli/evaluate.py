"""``glu-lab evaluate``: a run's validation numbers, recomputed from its checkpoint."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

HELP = "recompute a run's validation numbers from a checkpoint"
EPILOG = """\
examples:
  glu-lab evaluate results/quickstart/RUN
  glu-lab evaluate /tmp/lm --step 200 --json

The validation text is the run's own: the data are prepared as its config says, and refused when
their content differs from what the run was trained on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("workdir", type=Path, help="a run's folder")
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints."""
    from glu_lab.training.cache import enable_compilation_cache
    from glu_lab.training.trained import TrainedRun

    enable_compilation_cache()
    trained = TrainedRun(args.workdir, args.step)
    measured = trained.evaluate()
    if args.json:
        print(json.dumps({"step": trained.step, **measured}))
        return 0
    table = Table(title=f"{args.workdir}, step {trained.step}", show_header=False)
    for name, value in measured.items():
        table.add_row(name, "–" if value is None else f"{value:,.6g}")
    Console().print(table)
    return 0

"""``glu-lab evaluate``: validation numbers of a run's checkpoint, or of published weights."""

import argparse
import json

from rich.console import Console
from rich.table import Table

from glu_lab.cli.model import add_model, open_model

HELP = "compute the validation numbers of a run's checkpoint, or of a config's published weights"
EPILOG = """\
examples:
  glu-lab evaluate results/quickstart/RUN
  glu-lab evaluate /tmp/lm --step 200 --json
  glu-lab evaluate --config=configs/smollm2_135m.py

The validation text is the run's own: the data are prepared as its config says, and refused when
their content differs from what the run was trained on. With --config, the weights are those that
the config starts from (initial.path)."""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints."""
    model = open_model(args)
    with Console(stderr=True).status("evaluating"):
        measured = model.evaluate()
    if args.json:
        print(json.dumps({"step": model.step, **measured}))
        return 0
    table = Table(title=f"{model.name}, step {model.step}", show_header=False)
    for name, value in measured.items():
        table.add_row(name, "–" if value is None else f"{value:,.6g}")
    Console().print(table)
    return 0

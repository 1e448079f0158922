"""``glu-lab sample``: words from a trained run."""

import argparse
import json
from pathlib import Path

from rich.console import Console

HELP = "write text with a trained run: fill spans, or continue a beginning"
EPILOG = """\
examples:
  glu-lab sample /tmp/swiglu --text "The state of the <extra_id_0> is <extra_id_1>."
  glu-lab sample /tmp/lm --text "My fellow citizens," --samples 3 --temperature 0.8
  glu-lab sample /tmp/lm --text "The Congress" --temperature 0 --json

An encoder–decoder fills the marks, shown in [brackets]; a decoder continues the text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("workdir", type=Path, help="a run's folder")
    parser.add_argument("--text", default="", help="the prompt")
    parser.add_argument("--samples", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens at most (default 48)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 for the likeliest (default 0.8)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
    """Samples and prints."""
    from glu_lab.training.cache import enable_compilation_cache
    from glu_lab.training.trained import TrainedRun

    enable_compilation_cache()
    trained = TrainedRun(args.workdir, args.step)
    texts = trained.sample(
        args.text,
        samples=args.samples,
        tokens=args.tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    if args.json:
        print(json.dumps({"step": trained.step, "prompt": args.text, "samples": texts}))
        return 0
    console = Console()
    for text in texts:
        console.print(text, highlight=False, markup=False)
        console.rule()
    return 0

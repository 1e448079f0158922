"""``glu-lab data``: what a config trains and validates on."""

import argparse
import json

from rich.console import Console

from glu_lab.cli.config import add_config, load_config

HELP = "prepare a config's corpus and show its counts and first example"
EPILOG = """\
examples:
  glu-lab data --config=configs/t5_tiny_sotu.py
  glu-lab data --config=configs/lm_tiny_sotu.py --config.data.corpus=text \\
      --config.data.path='books/*.txt' --json"""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(args: argparse.Namespace) -> int:
    """Prepares and prints."""
    from glu_lab.data import load

    experiment = load_config(args)
    console = Console(stderr=args.json)
    dataset = load(
        experiment.data, progress=lambda line: console.print(line, style="dim", highlight=False)
    )
    if args.json:
        print(json.dumps({"fingerprint": dataset.fingerprint, **dataset.statistics}))
        return 0
    console.print(dataset.summary(), highlight=False)
    batch = next(
        dataset.train_iterator(seed=experiment.seed, batch_size=experiment.data.logical_shards)
    )
    for name in ("encoder_tokens", "tokens", "targets"):
        if name in batch:
            console.print(f"\nfirst row of {name}:", style="bold")
            console.print(dataset.tokenizer.decode(batch[name][0]), highlight=False, markup=False)
    return 0

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
      --config.data.path='books/*.txt' --json

Of a long row the beginning is shown; --full shows all of it, and --json holds all of it."""
PASS_THROUGH = True

#: Characters of a row that are shown: some ten lines of a terminal.
_SHOWN = 800


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument("--full", action="store_true", help="show the first rows whole")
    parser.add_argument(
        "--json", action="store_true", help="print the counts and the first rows as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Prepares and prints."""
    from glu_lab.data import load

    experiment = load_config(args)
    console = Console(stderr=args.json)
    dataset = load(
        experiment.data, progress=lambda line: console.print(line, style="dim", highlight=False)
    )
    batch = next(
        dataset.train_iterator(seed=experiment.seed, batch_size=experiment.data.logical_shards)
    )
    rows = {
        name: dataset.tokenizer.decode(batch[name][0])
        for name in ("encoder_tokens", "tokens", "targets")
        if name in batch
    }
    if args.json:
        counts = {"fingerprint": dataset.fingerprint, **dataset.statistics}
        print(json.dumps({**counts, "first_row": rows}))
        return 0
    console.print(dataset.summary(), highlight=False)
    for name, text in rows.items():
        console.print(f"\nfirst row of {name}:", style="bold")
        shown = text if args.full else text[:_SHOWN]
        console.print(shown, highlight=False, markup=False)
        if len(shown) < len(text):
            rest = len(text) - len(shown)
            console.print(
                f"… and {rest:,} of {len(text):,} characters more; --full shows them.",
                style="dim",
                highlight=False,
            )
    return 0

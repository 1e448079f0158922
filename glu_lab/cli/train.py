"""``glu-lab train``: one run, from the beginning or from where it stopped."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config

HELP = "train one run, or resume it"
EPILOG = f"""\
examples:
  glu-lab train --config=configs/t5_tiny_sotu.py:swiglu --workdir=/tmp/swiglu
  glu-lab train --config=configs/lm_tiny_sotu.py:drelu --workdir=/tmp/lm --config.seed=1
  glu-lab train --config=configs/lm_tiny_sotu.py --workdir=/tmp/mine \\
      --config.data.corpus=text --config.data.path='books/**/*.txt'

The same command resumes a run that was stopped. {CONFIG_EPILOG}
Exit code: 0 complete, 1 diverged, 130 interrupted with a checkpoint to go on from, 2 bad input."""
PASS_THROUGH = True

_EXIT_CODES = {"complete": 0, "diverged": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument("--workdir", type=Path, required=True, help="the run's own folder")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Trains; 0 when complete, 1 when it diverged, 130 when it was interrupted."""
    experiment = load_config(args)
    from glu_lab.training.cache import enable_compilation_cache
    from glu_lab.training.loop import train

    enable_compilation_cache()
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
        console=console,
    ) as bars:
        task = bars.add_task(experiment.name, total=experiment.training.steps, detail="")

        def show(entry: Mapping[str, Any]) -> None:
            kind = entry["kind"]
            if kind == "train":
                detail = f"loss {entry['loss']:.3f}, {entry['tokens_per_second']:,.0f} tokens/s"
                bars.update(task, completed=entry["step"], detail=detail)
            elif kind == "eval":
                value = entry["log_perplexity"]
                text = "not finite" if value is None else f"{value:.4f}"
                bars.console.print(
                    f"step {entry['step']}: validation log-perplexity {text}", highlight=False
                )
            elif kind == "status":
                bars.update(task, completed=entry["step"], detail=entry["message"])

        summary = train(experiment, args.workdir, progress=show)
    if args.json:
        print(json.dumps(summary))
    else:
        _tell(console, args, summary)
    return _EXIT_CODES[summary["status"]]


def _tell(console: Console, args: argparse.Namespace, summary: Mapping[str, Any]) -> None:
    status = summary["status"]
    if status == "complete":
        bits, error = summary["bits_per_byte"], summary["log_perplexity_se"]
        console.print(
            f"complete: log-perplexity {summary['log_perplexity']:.4f}"
            + (f" ± {error:.4f} (token standard error)" if error is not None else "")
            + (f", {bits:.4f} bits per byte" if bits is not None else "")
            + f"; see {args.workdir}",
            highlight=False,
            soft_wrap=True,
        )
    elif status == "diverged":
        console.print(
            f"diverged: {summary['error']}", highlight=False, markup=False, soft_wrap=True
        )
    else:
        command = shlex.join(["glu-lab", *sys.argv[1:]])
        console.print(
            f"interrupted at step {summary['steps']}; a checkpoint is saved. Go on with:\n"
            f"  {command}",
            highlight=False,
            markup=False,
            soft_wrap=True,  # so that the command can be pasted
        )

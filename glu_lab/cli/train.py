"""``glu-lab train``: one run, from the beginning or from where it stopped."""

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config
from glu_lab.errors import SpecError
from glu_lab.spec.experiment import Experiment

HELP = "train one run, or resume it"
EPILOG = f"""\
examples:
  glu-lab train --config=configs/t5_tiny_sotu.py:swiglu --workdir=/tmp/swiglu
  glu-lab train --config=configs/lm_tiny_sotu.py:drelu --workdir=/tmp/lm --config.seed=1
  glu-lab train --config=configs/lm_tiny_sotu.py --workdir=/tmp/mine \\
      --config.data.corpus=text --config.data.path='books/**/*.txt'
  glu-lab train --config=configs/t5_base_c4.py --workdir=/shared/run --mesh=data=2,model=4
  srun glu-lab train --distributed --config=configs/t5_base_c4.py --workdir=/shared/run \\
      --mesh=data=-1,model=4

With --distributed every process runs this command and sees one --workdir; process 0 writes the
records. Under Slurm, on a TPU, under Open MPI or Kubernetes they find each other; elsewhere give
--coordinator=HOST:PORT --processes=N --process=I.

The same command resumes a run that was stopped. {CONFIG_EPILOG}
Exit code: 0 complete, 1 diverged, 130 interrupted with a checkpoint to go on from, 2 bad input."""
PASS_THROUGH = True

_EXIT_CODES = {"complete": 0, "diverged": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument("--workdir", type=Path, required=True, help="the run's own folder")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--distributed", action="store_true", help="one of several processes of the run"
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    parser.add_argument("--processes", type=int, metavar="N", help="how many there are")
    parser.add_argument("--process", type=int, metavar="I", help="which one this is, from 0")


def run(args: argparse.Namespace) -> int:
    """Trains; 0 when complete, 1 when it diverged, 130 when it was interrupted."""
    experiment = load_config(args)
    from glu_lab.sharding import processes
    from glu_lab.training.cache import enable_compilation_cache
    from glu_lab.training.last_words import last_words

    together = contextlib.ExitStack()
    if args.distributed:
        processes.connect(args.coordinator, args.processes, args.process)
        together.enter_context(last_words(args.workdir))
        together.enter_context(_stdout_for_json())
    elif args.coordinator or args.processes is not None or args.process is not None:
        raise SpecError("--coordinator, --processes and --process need --distributed.")
    enable_compilation_cache()
    # The others stay silent but for errors.
    console = Console(stderr=True, quiet=not processes.is_leader())
    with together:
        summary = _train(experiment, args.workdir, console)
        processes.disconnect()
    if not processes.is_leader():
        return _EXIT_CODES[summary["status"]]
    if args.json:
        print(json.dumps(summary))
    else:
        _tell(console, args, summary)
    return _EXIT_CODES[summary["status"]]


@contextlib.contextmanager
def _stdout_for_json() -> Iterator[None]:
    """Sends to stderr what libraries print on stdout: Gloo tells of its connections there."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _train(experiment: Experiment, workdir: Path, console: Console) -> dict[str, Any]:
    """Trains under a progress bar."""
    from glu_lab.training.loop import train

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

        return train(experiment, workdir, progress=show)


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

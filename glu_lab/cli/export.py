"""``glu-lab export``: a run's model as transformers loads it."""

import argparse
import json
import sys
from pathlib import Path

HELP = "write a run's whole model as a Hugging Face checkpoint, with tokenizer and manifest"
EPILOG = """\
examples:
  glu-lab export /tmp/lm exported/ --to llama
  glu-lab export /tmp/t5 exported/ --to t5 --step 400 --json

Then, with transformers: AutoModelForCausalLM.from_pretrained("exported/"). A model that the
architecture does not compute is refused, with what differs; glu-lab convert writes the FFNs alone
in any of many layouts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("workdir", type=Path, help="a run's folder")
    parser.add_argument("target", type=Path, help="the folder to be")
    parser.add_argument(
        "--to", required=True, metavar="TYPE", help="llama, mistral, qwen2, qwen3 or t5"
    )
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(args: argparse.Namespace) -> int:
    """Exports and prints what was written."""
    from rich.console import Console
    from rich.progress import Progress

    from glu_lab.files.revision import source_revision
    from glu_lab.pretrained.export import export

    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("writing", total=None)
        done = export(
            args.workdir,
            args.target,
            args.to,
            step=args.step,
            revision=source_revision(),
            progress=lambda count, total: bars.update(task, completed=count, total=total),
        )
    if args.json:
        summary = {
            "target": str(done.target),
            "step": done.step,
            "model_type": done.model_type,
            "tensors": done.tensors,
            "bytes": done.nbytes,
            "ffns": done.proof.total,
            "largest_difference": done.proof.largest,
        }
        print(json.dumps(summary))
        return 0
    print(
        f"step {done.step} as {done.model_type}: {done.target}\n"
        f"written: {done.tensors} tensors, {done.nbytes:,} bytes, config.json, manifest.json\n"
        f"proof by rows: largest difference {done.proof.largest:.3g} of outputs up to "
        f"{done.proof.magnitude:.3g} ({len(done.proof.places)} of {done.proof.total} FFNs, float64)"
    )
    return 0

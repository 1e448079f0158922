"""``glu-lab convert``: a checkpoint's FFNs from one storage layout to another."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from glu_lab.errors import SpecError
from glu_lab.layouts.claims import settings_text
from glu_lab.layouts.conversion import Conversion, Progress, Request
from glu_lab.layouts.convert import convert
from glu_lab.layouts.user import read_layouts

HELP = "convert a checkpoint's FFNs to another storage layout, proven by known rows"

EPILOG = """\
examples:
  Llama's separate gate and up, as four Megatron ranks with both packed:
    glu-lab convert llama/ megatron/ --from hf-llama --to megatron --tp 4
  and back; the manifest that convert wrote states the layout and the function:
    glu-lab convert megatron/ again/ --to hf-llama
  without a config that states the activation, state it yourself:
    glu-lab convert mlp.safetensors packed/ --from hf-llama --to hf-phi3 --variant swiglu
  a whole model; what is of no FFN (attention, norms, embeddings) is carried over as it is:
    glu-lab convert llama/ olmo/ --from hf-llama --to olmo1 --rest keep
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("source", type=Path, help="checkpoint: a file, a folder, or ranks' folder")
    parser.add_argument("target", type=Path, help="folder to write; it must not exist")
    parser.add_argument(
        "--from",
        dest="source_layout",
        metavar="LAYOUT",
        help="how the source's tensors lie; by default what its manifest states",
    )
    parser.add_argument(
        "--to", dest="target_layout", required=True, metavar="LAYOUT", help="layout to write"
    )
    parser.add_argument(
        "--tp", type=int, default=1, metavar="P", help="tensor-parallel ranks to write (default 1)"
    )
    parser.add_argument("--variant", help="the function, where no config or manifest states it")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the model's config.json; by default the one beside the source",
    )
    parser.add_argument(
        "--rest",
        dest="unconverted",  # the parser itself uses `rest`
        choices=("refuse", "keep"),
        default="refuse",
        help="tensors that are of no FFN: refuse them (default), or keep them unconverted",
    )
    parser.add_argument(
        "--zero-biases",
        action="store_true",
        help="create biases of zeros where the target always has some",
    )
    parser.add_argument(
        "--experts", type=int, metavar="E", help="number of experts, where shapes leave it open"
    )
    parser.add_argument(
        "--from-prefix",
        metavar="TEXT",
        help="what stands before the source's own names, such as 'lm.layers.{layer}.mlp.', where "
        "it is none that the layout knows (glu-lab inspect shows it)",
    )
    parser.add_argument("--to-prefix", metavar="TEXT", help="likewise for the target's names")
    parser.add_argument("--step", type=int, help="of a training run; the newest by default")
    parser.add_argument(
        "--prove-all",
        action="store_true",
        help="evaluate every FFN by rows, not only the first and last of each stack",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="TOML file with your own layouts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Converts and prints what was done."""
    if args.tp < 1:
        raise SpecError(f"--tp must be ≥ 1, got {args.tp}.")
    # Of the training room for now, whose import takes a second; nothing is read or written yet.
    from glu_lab.files.revision import source_revision

    request = Request(
        source=args.source,
        target=args.target,
        source_layout=args.source_layout,
        target_layout=args.target_layout,
        ranks=args.tp,
        variant=args.variant,
        config=args.config,
        rest=args.unconverted,
        zero_biases=args.zero_biases,
        experts=args.experts,
        source_prefix=args.from_prefix,
        target_prefix=args.to_prefix,
        step=args.step,
        every=args.prove_all,
        layouts={} if args.rows is None else read_layouts(args.rows),
        revision=source_revision(),
    )
    done = _with_progress(request)
    summary = _summary(done)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        _print(summary)
    return 0


def _with_progress(request: Request) -> Conversion:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        progress: Progress = show
        return convert(request, progress)


def _summary(done: Conversion) -> dict[str, Any]:
    planned, proof = done.plan, done.proof
    return {
        "target": str(done.target),
        "from": planned.source.layout.name,
        "to": planned.target.name,
        "source_ranks": planned.source.ranks,
        "target_ranks": planned.ranks,
        "variant": done.manifest["architecture"]["variant"],
        "formula": done.manifest["architecture"]["formula"],
        "function_from": done.function_from,
        "d_model": planned.spec.d_model,
        "d_ff": planned.spec.d_ff,
        "ffns": proof.total,
        "tensors": len(done.manifest["checkpoint"]["tensors"]),
        "bytes": done.nbytes,
        "created_zeros": done.manifest["checkpoint"]["created_zeros"],
        "kept": list(done.kept),
        "config_attributes": dict(planned.settings),
        "proof": {
            "ffns": len(proof.places),
            "largest_difference": proof.largest,
            "largest_magnitude": proof.magnitude,
        },
    }


def _print(summary: dict[str, Any]) -> None:
    ranks = summary["target_ranks"]
    over = f" over {ranks} ranks" if ranks > 1 else ""
    print(
        f"{summary['ffns']} FFNs ({summary['d_model']} → {summary['d_ff']}) from {summary['from']} "
        f"to {summary['to']}{over}: {summary['target']}"
    )
    print(f"function: {summary['variant']}, {summary['formula']}")
    print(f"  stated by: {summary['function_from']}")
    if summary["config_attributes"]:
        settings = settings_text(summary["config_attributes"])
        print(f"  the target's own code computes it with {settings}")
    proof = summary["proof"]
    print(
        f"proof by rows: largest difference {proof['largest_difference']:.3g} of outputs up to "
        f"{proof['largest_magnitude']:.3g} ({proof['ffns']} of {summary['ffns']} FFNs, float64)"
    )
    print(f"written: {summary['tensors']} tensors, {summary['bytes']:,} bytes, manifest.json")
    if summary["created_zeros"]:
        print(f"created: {len(summary['created_zeros'])} biases of zeros, as asked for")
    if summary["kept"]:
        print(f"kept unconverted: {len(summary['kept'])} tensors, listed in the manifest")

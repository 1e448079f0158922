"""``glu-lab benchmark``: how fast a config trains here, and where the time goes."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config

if TYPE_CHECKING:
    from glu_lab.training.benchmark import Benchmark, Spread

HELP = "time a config's training step, loop and input pipeline on this machine"
EPILOG = f"""\
examples:
  glu-lab benchmark --config=configs/t5_tiny_sotu.py:swiglu
  glu-lab benchmark --config=configs/lm_tiny_sotu.py --steps=50 --json

Measured in turn, round after round; shown are medians and interquartile ranges. {CONFIG_EPILOG}"""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of one measurement (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    experiment = load_config(args)
    from glu_lab.training.benchmark import benchmark
    from glu_lab.training.cache import enable_compilation_cache

    enable_compilation_cache()
    notes = Console(stderr=True)
    with notes.status("measuring") as status:
        measured = benchmark(experiment, steps=args.steps, progress=status.update)
    if args.json:
        print(json.dumps(dataclasses.asdict(measured)))
    else:
        Console().print(_table(experiment.name, measured))
    return 0


def _table(name: str, measured: "Benchmark") -> Table:
    machine = measured.machine
    table = Table(
        title=name,
        caption=f"{measured.rounds} rounds of {measured.steps} steps; {machine['device_kind']}, "
        f"{machine['device_count']} device(s), {machine['cores']} cores, jax {machine['jax']}",
    )
    table.add_column("measured", overflow="fold")
    table.add_column("median", justify="right", overflow="fold")
    table.add_column("interquartile range", justify="right", overflow="fold")

    def row(label: str, spread: "Spread", unit: str, scale: float = 1.0, digits: int = 2) -> None:
        low, middle, high = (
            f"{scale * value:,.{digits}f}" for value in (spread.low, spread.median, spread.high)
        )
        table.add_row(label, f"{middle} {unit}", f"{low} to {high}")

    row("compiled step alone", measured.step_seconds, "ms", 1e3)
    row("step in the loop", measured.loop_seconds, "ms", 1e3)
    row("overhead of the loop", measured.overhead, "%", 100.0)
    row("input pipeline", measured.pipeline_batches_per_second, "batches/s", digits=0)
    row("batches made during a step", measured.pipeline_ratio, "", digits=1)
    row("positions through the loop", measured.tokens_per_second, "tokens/s", digits=0)
    row("model arithmetic of a step", measured.flops_per_second, "GFLOP/s", 1e-9, 1)
    row("float32 2048² matrix product", measured.peak_flops_per_second, "GFLOP/s", 1e-9, 1)
    table.add_row("fraction of that product's rate", f"{100 * measured.peak_fraction:.1f} %", "")
    return table

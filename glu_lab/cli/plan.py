"""``glu-lab plan``: what a training step needs of each device of a mesh that is not here."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config
from glu_lab.errors import SpecError

if TYPE_CHECKING:
    from glu_lab.training.plan import Plan

HELP = "bytes, operations and traffic of a training step on each device of a mesh one lacks"
EPILOG = f"""\
examples:
  T5-base on 512 devices; nothing but this machine's CPU is used:
    glu-lab plan --config=configs/t5_base_c4.py:swiglu --mesh=data=128,model=4
  does it fit into 16 GiB a device, with parameters and optimiser state split too?
    glu-lab plan --config=configs/t5_base_c4.py:swiglu --mesh=fsdp=8 --memory_gib=16
  what the TPU compiler makes of it (package libtpu; no TPU is needed), for eight v5e chips:
    glu-lab plan --config=configs/t5_base_c4.py:swiglu --mesh=data=2,model=4 \\
        --target=tpu:v5e:2x4 --config.training.batch_size=8 --config.eval_batch_size=8
  whether it lowers for NVIDIA GPUs, as JSON:
    glu-lab plan --config=configs/t5_base_c4.py:swiglu --mesh=data=8 --target=cuda --json

The mesh states every size. The CPU compiler's temporaries are an estimate for another machine: it
fuses and schedules in its own way. {CONFIG_EPILOG}"""
PASS_THROUGH = True

_GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument(
        "--target",
        default="cpu",
        help="cpu: compiled for virtual CPU devices (default); tpu:TOPOLOGY, as in tpu:v5e:2x4: "
        "compiled by libtpu; cuda: lowered only",
    )
    parser.add_argument(
        "--memory_gib", type=float, metavar="GIB", help="memory of one device: does the step fit?"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Plans and prints."""
    if args.memory_gib is not None and not 0 < args.memory_gib < 2**20:
        raise SpecError(f"--memory_gib must be a number of GiB above 0, got {args.memory_gib:g}.")
    experiment = load_config(args)
    from rich.console import Console

    from glu_lab.training.plan import plan, prepare

    prepare(experiment, args.target)
    with Console(stderr=True).status("planning") as status:
        planned = plan(experiment, args.target, progress=status.update)
    limit = None if args.memory_gib is None else int(args.memory_gib * _GIB)
    if args.json:
        print(json.dumps(report(planned, limit), indent=2, ensure_ascii=False))
    else:
        _print_table(planned, limit)
    return 0


def report(planned: "Plan", limit: int | None = None) -> dict[str, Any]:
    """Everything the command knows, ready for JSON; null where it was not obtained."""
    made, flops = planned.compiled, planned.flops
    return {
        "name": planned.name,
        "target": planned.target,
        "compiler": made and made.compiler,
        "mesh": dict(planned.mesh),
        "compiled_mesh": made and dict(made.mesh),
        "devices": planned.devices,
        "batch_size": planned.batch_size,
        "microbatches": planned.microbatches,
        "remat": planned.remat,
        "compute_dtype": planned.compute_dtype,
        "total_params": planned.total_params,
        "params_bytes": planned.params_bytes,
        "optimizer_bytes": planned.optimizer_bytes,
        "gradient_bytes": planned.gradient_bytes,
        "temp_bytes": made and made.temp_bytes,
        "argument_bytes": made and made.argument_bytes,
        "output_bytes": made and made.output_bytes,
        "alias_bytes": made and made.alias_bytes,
        "peak_bytes": made and made.peak_bytes,
        "flops_per_step": flops.per_device,
        "flops_left_to_compiler": flops.compiler_placed,
        "flops_in_loops_of_unknown_length": flops.once,
        "operations_not_counted": dict(flops.opaque),
        "model_flops_per_step": planned.model_flops,
        "useful_fraction": planned.useful_fraction,
        "collective_bytes": made and dict(made.collective_bytes),
        "memory_limit_bytes": limit,
        "fits": None if limit is None else planned.fits(limit),
        "largest_part": planned.largest,
        "refusal": planned.refusal,
        "module_bytes": planned.module_bytes,
        "lower_seconds": planned.lower_seconds,
        "compile_seconds": made and made.seconds,
    }


def _print_table(planned: "Plan", limit: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    made, flops = planned.compiled, planned.flops
    shown = " × ".join(f"{axis}={size}" for axis, size in planned.mesh.items())
    console.print(
        f"{planned.name}: {planned.total_params:,} parameters, {planned.batch_size:,} sequences a "
        f"step, on {shown} ({planned.devices:,} devices), target {planned.target}\n",
        soft_wrap=True,
    )
    table = Table(title="one device, one step", title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("where it comes from")
    exact = "exact, from the layouts"
    table.add_row("parameters", _bytes(planned.params_bytes), exact)
    table.add_row("optimiser state", _bytes(planned.optimizer_bytes), exact)
    table.add_row("gradients", _bytes(planned.gradient_bytes), f"{exact}; part of the temporaries")
    if made is not None:
        table.add_row("temporaries", _bytes(made.temp_bytes), made.compiler)
        table.add_row(
            "peak", _bytes(made.peak_bytes), "state, batch, temporaries and metrics together"
        )
    else:
        table.add_row("temporaries", "–", "not compiled")
    table.add_section()
    table.add_row(
        "matrix products",
        f"{flops.per_device / 1e9:,.4g} GFLOP",
        f"traced program, loops counted out, remat {planned.remat}",
    )
    table.add_row(
        "useful part",
        f"{100 * planned.useful_fraction:.1f} %",
        "6 × the model's MACs ÷ what all devices execute",
    )
    table.add_section()
    if made is None:
        table.add_row("collectives", "–", "not compiled")
    else:
        for axis, size in made.collective_bytes.items():
            if not size and planned.mesh[axis] == 1:
                continue
            table.add_row(f"collectives over {axis}", _bytes(size), made.compiler)
    console.print(table)
    for note in _notes(planned, limit):
        console.print(note, soft_wrap=True)


def _notes(planned: "Plan", limit: int | None) -> list[str]:
    """What a reader has to know beside the numbers."""
    made, flops = planned.compiled, planned.flops
    notes = []
    if planned.target == "cuda":
        notes.append(
            f"It lowers for CUDA: {_bytes(planned.module_bytes)} of StableHLO in "
            f"{planned.lower_seconds:.1f} s. No compiler for GPUs runs here, so that temporaries "
            "and collectives are not known."
        )
    elif planned.refusal is not None:
        notes.append(f"Does not fit, says the compiler: {planned.refusal}. {planned.advice}")
    elif made is None:
        notes.append(
            "No mesh of virtual devices stands in for one of this size (the rules split more than "
            "the batch over 'data', or the other axes are too large): not compiled."
        )
    else:
        notes.append(f"Compiled in {made.seconds:.0f} s by {made.compiler}.")
        if made.mesh != planned.mesh:
            smaller = " × ".join(f"{axis}={size}" for axis, size in made.mesh.items())
            notes.append(
                f"Compiled for {smaller} with the same batch per device: a device's program is the "
                "same but for the size of the groups over 'data'."
            )
        if planned.target == "cpu":
            notes.append(
                "Temporaries and collectives are the CPU compiler's, an estimate for others."
            )
            if planned.compute_dtype in ("bfloat16", "float16"):
                notes.append(
                    f"It computes {planned.compute_dtype} products in float32: its temporaries are "
                    "larger than an accelerator's."
                )
    if planned.remat != "none":
        notes.append(f"What remat={planned.remat} computes a second time is counted as executed.")
    if flops.compiler_placed:
        notes.append(
            f"{flops.compiler_placed / 1e9:,.4g} GFLOP are the update rule's, whose layout is the "
            "compiler's choice: counted as if every device did all of it, an upper bound."
        )
    if flops.once:
        notes.append(
            f"{flops.once / 1e9:,.4g} GFLOP stand in loops whose length depends on data: counted "
            "once."
        )
    for name, times in flops.opaque.items():
        notes.append(f"Not counted: the arithmetic inside {times} × {name}.")
    if limit is not None and planned.refusal is None:
        notes.append(_verdict(planned, limit))
    return notes


def _verdict(planned: "Plan", limit: int) -> str:
    fits, needed = planned.fits(limit), _bytes(planned.needed_bytes)
    part = f"the largest part is {planned.largest}, {_bytes(planned.parts[planned.largest])}"
    if fits is None:
        return (
            f"Parameters, optimiser state and gradients are {needed} of {_bytes(limit)}; {part}. "
            "Whether the temporaries fit too is not known without a compiler."
        )
    if fits:
        share = 100 * planned.needed_bytes / limit
        return f"Fits: {needed} of {_bytes(limit)} ({share:.0f} %); {part}."
    return f"Does not fit: {needed}, and a device has {_bytes(limit)}; {part}. {planned.advice}"


def _bytes(size: int) -> str:
    """A size in the largest binary unit that leaves at least one."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.4g} {name}"
    return f"{size} B"

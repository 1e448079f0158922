"""``glu-lab collectives``: what devices of a mesh would send each other, and what they must."""

import argparse
import json

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config
from glu_lab.errors import UnknownNameError
from glu_lab.spec.sharding import parse_mesh

HELP = "list what a config's devices would send each other, beside the least that its FFNs need"
EPILOG = f"""\
examples:
  glu-lab collectives --config=configs/t5_tiny_sotu.py:swiglu --mesh=data=2,model=4
  glu-lab collectives --config=configs/lm_tiny_sotu.py --mesh=data=2,fsdp=2,model=2 --all
  glu-lab collectives --config=configs/t5_tiny_sotu.py:swiglu --mesh=model=4 \\
      --program=evaluate --json

Compiles for as many virtual CPU devices; no others are needed, and no data. Bytes are those of one
device and one call: the elements of the array that a group of devices works on, in the program's
number format, times the trips of the loops around it. An all-reduce of T rows of width D counts
T·D, as does an all-gather or a reduce-scatter of them. {CONFIG_EPILOG}"""
PASS_THROUGH = True

PROGRAMS = ("train", "evaluate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument(
        "--program",
        default=PROGRAMS[0],
        help=f"one of {', '.join(PROGRAMS)} (default: one training step)",
    )
    parser.add_argument("--all", action="store_true", help="list small collectives too")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )


def run(args: argparse.Namespace) -> int:
    """Compiles and prints."""
    if args.program not in PROGRAMS:
        raise UnknownNameError("program", args.program, PROGRAMS)
    experiment = load_config(args)
    # A typo should not wait until JAX is imported.
    parse_mesh(experiment.execution.mesh, devices=None)
    from glu_lab.training.audit import audit_program

    found = audit_program(experiment, args.program)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
        return 0
    from glu_lab.sharding.audit import table

    print(table(found, least_share=0.0 if args.all else 0.01))
    return 0

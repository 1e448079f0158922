"""``glu-lab continuity``: a config's run, stopped in the middle and taken up again."""

import argparse
import json
from pathlib import Path

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config

HELP = "stop a config's run in the middle and show that it goes on as if it had not been stopped"
EPILOG = f"""\
examples:
  glu-lab continuity --config=configs/lm_tiny_sotu.py:swiglu
  glu-lab continuity --config=configs/t5_tiny_sotu.py:reglu --steps 10 --json
  glu-lab continuity --config=configs/lm_tiny_sotu.py --onto=data=2 --onto=model=2

Trains a few steps of the config's run, saves half-way, and compares what goes on from the
checkpoint: in a fresh program bit for bit, on other meshes and under recomputation within stated
rounding. Meshes of --onto are of virtual CPU devices, and the whole check then runs on the CPU.
Ends with 1 when something differs by more than its tolerance. Nothing is kept of the run.
{CONFIG_EPILOG}"""
PASS_THROUGH = True

EXIT_DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument("--steps", type=int, default=6, help="steps of the run (default: 6)")
    parser.add_argument(
        "--onto",
        action="append",
        default=[],
        metavar="AXIS=SIZE,…",
        help="also load the checkpoint on this mesh; may be given several times",
    )
    parser.add_argument(
        "--dropout",
        type=float,
        default=0.1,
        help="rate for a config without dropout, so that a lost random key shows (default: 0.1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="NAME",
        help="also put the record into NAME.json, by the config's name, and NAME.md beside it",
    )


def run(args: argparse.Namespace) -> int:
    """Checks and prints."""
    experiment = load_config(args)

    from rich.console import Console

    from glu_lab.conformance.continuity import check, devices_needed
    from glu_lab.conformance.continuity_tables import ABOUT, TITLE, sections
    from glu_lab.conformance.sections import keep, show
    from glu_lab.sharding.targets import use_virtual_devices
    from glu_lab.training.cache import enable_compilation_cache

    if args.onto:
        use_virtual_devices(devices_needed(experiment, args.onto))
    enable_compilation_cache()
    with Console(stderr=True).status("") as status:
        report = check(
            experiment,
            steps=args.steps,
            onto=args.onto,
            dropout=args.dropout,
            report=status.update,
        )
    if args.keep is not None:
        keep(args.keep, report["config"], report, TITLE, ABOUT, sections)
    if args.json:
        print(json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        show(sections(report))
    return 0 if report["passed"] else EXIT_DIFFERENT

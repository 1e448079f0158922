"""``--config`` flags, shared by the subcommands that take an experiment."""

import argparse

from glu_lab.spec.experiment import Experiment

CONFIG_EPILOG = (
    "Any field of the config can be set: --config.training.steps=200 --config.model.ffn.d_ff=512"
)


def add_config(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declares ``--config`` and ``--mesh``; ``--config.key=value`` comes through ``args.rest``."""
    parser.add_argument(
        "--config", required=required, metavar="FILE.py[:ARG]", help="config file and its argument"
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=SIZE,…",
        help="device mesh, as in data=2,fsdp=1,model=4 (-1: the rest of the devices); short for "
        "--config.execution.mesh",
    )


def load_config(args: argparse.Namespace) -> Experiment:
    """The experiment that the flags describe."""
    from glu_lab.configs import load

    mesh = [] if args.mesh is None else [f"--config.execution.mesh={args.mesh}"]
    return load(args.config, [*args.rest, *mesh])

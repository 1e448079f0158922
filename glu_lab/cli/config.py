"""``--config`` flags, shared by the subcommands that take an experiment."""

import argparse

from glu_lab.spec.experiment import Experiment

CONFIG_EPILOG = (
    "Any field of the config can be set: --config.training.steps=200 --config.model.ffn.d_ff=512"
)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Declares ``--config``; ``--config.key=value`` comes through ``args.rest``."""
    parser.add_argument(
        "--config", required=True, metavar="FILE.py[:ARG]", help="config file and its argument"
    )


def load_config(args: argparse.Namespace) -> Experiment:
    """The experiment that the flags describe."""
    from glu_lab.configs import load

    return load(args.config, args.rest)

"""Which weights a subcommand is to use: a run's checkpoint, or what a config starts from."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from glu_lab.cli.config import add_config, load_config
from glu_lab.errors import SpecError

if TYPE_CHECKING:
    from glu_lab.training.ready import ReadyModel


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares a run's folder and ``--step``, and ``--config`` in their place."""
    parser.add_argument("workdir", type=Path, nargs="?", help="a run's folder")
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    add_config(parser, required=False)


def open_model(args: argparse.Namespace) -> "ReadyModel":
    """The weights that the arguments name.

    Raises:
        SpecError: when they name none, or two.
    """
    workdir: Path | None = args.workdir
    if (args.config is None) == (workdir is None):
        raise SpecError(
            "say whose weights: a run's folder, or --config=FILE.py of one that starts from "
            "published ones."
        )
    if workdir is not None and (args.rest or args.mesh is not None):
        raise SpecError("a run's config is its own: --config.… and --mesh do not go with a folder.")
    if args.step is not None and workdir is None:
        raise SpecError("--step names a checkpoint of a run; a config's weights are of step 0.")
    experiment = load_config(args) if workdir is None else None

    from glu_lab.training.cache import enable_compilation_cache

    enable_compilation_cache()
    if workdir is not None:
        from glu_lab.training.trained import TrainedRun

        return TrainedRun(workdir, args.step)
    assert experiment is not None
    from glu_lab.training.initial import starting_point

    return starting_point(experiment)

"""``glu-lab initialization``: how a run's FFNs start, measured beside the theory."""

import argparse
import json
from pathlib import Path

from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config
from glu_lab.errors import SpecError

HELP = "measure how a config's FFNs start, or stand at a checkpoint, beside what theory predicts"
EPILOG = f"""\
examples:
  glu-lab initialization --config=configs/lm_tiny_sotu.py:swiglu
  glu-lab initialization --config=configs/t5_tiny_sotu.py:geglu_tanh --config.seed=3 --json
  glu-lab initialization --workdir=/tmp/lm --step 200

One batch of the config's data goes forward and backward once; no step is taken. A ratio of 1 says
that a second moment is what independent weights of the stated spread give. {CONFIG_EPILOG}"""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser, required=False)
    parser.add_argument(
        "--workdir", type=Path, help="a run's folder, in place of --config: a checkpoint of it"
    )
    parser.add_argument("--step", type=int, help="which checkpoint (default: the newest)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="NAME",
        help="also put the record into NAME.json, by the config's name, and NAME.md beside it",
    )


def run(args: argparse.Namespace) -> int:
    """Measures and prints."""
    workdir: Path | None = args.workdir
    if (args.config is None) == (workdir is None):
        raise SpecError("say which model: either --config=FILE.py or --workdir=RUN.")
    if workdir is not None and (args.rest or args.mesh is not None):
        raise SpecError(
            "a run's config is its own: --config.… and --mesh do not go with --workdir."
        )
    if args.step is not None and workdir is None:
        raise SpecError("--step names a checkpoint of --workdir=RUN; a config starts at step 0.")
    # A typo should not wait until JAX is imported.
    experiment = None if workdir is not None else load_config(args)

    from rich.console import Console

    from glu_lab.conformance import initialization
    from glu_lab.conformance.initialization_tables import ABOUT, TITLE, sections
    from glu_lab.conformance.sections import keep, show
    from glu_lab.training.cache import enable_compilation_cache

    enable_compilation_cache()
    with Console(stderr=True).status("") as status:
        if experiment is not None:
            report = initialization.of_config(experiment, status.update)
        else:
            assert workdir is not None
            report = initialization.of_run(workdir, args.step, status.update)
    if args.keep is not None:
        keep(args.keep, report["config"], report, TITLE, ABOUT, sections)
    if args.json:
        print(json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        show(sections(report))
    return 0

"""The entry point ``glu-lab``: finds the subcommand, imports that one alone, prints its errors.

A subcommand is a module of this package with

* ``HELP``, one line, the same as in `COMMANDS`;
* ``EPILOG``, examples shown under ``--help``;
* ``add_arguments(parser)``;
* ``run(args) -> int``, which returns the exit code;
* optionally ``PASS_THROUGH = True``: arguments that start with ``--config`` and that the parser
  does not know are handed to ``run`` as ``args.rest``, a list of ``--config.key=value`` texts.
"""

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from glu_lab import __version__
from glu_lab.cli.interrupts import leave, resend_lost_interrupts
from glu_lab.errors import GluLabError, SpecError, UnknownNameError, resource_error

#: Subcommand → its one-line help. The module of a name is imported when it is chosen, so that
#: ``glu-lab budget`` never waits for JAX.
COMMANDS = {
    "budget": "count an FFN's parameters, operations and tensors, or match its width to another's",
    "describe": "count a config's parameters, operations and FFN tensors, and show how its "
    "weights start",
    "data": "prepare a config's corpus and show its counts and first example",
    "train": "train one run, or resume it",
    "evaluate": "compute the validation numbers of a run's checkpoint, or of a config's published "
    "weights",
    "benchmark": "time a config's training step, loop and input pipeline on this machine",
    "initialization": "measure how a config's FFNs start, or stand at a checkpoint, beside what "
    "theory predicts",
    "continuity": "stop a config's run in the middle and show that it goes on as if it had not "
    "been stopped",
    "collectives": "list what a config's devices would send each other, beside the least that its "
    "FFNs need",
    "plan": "bytes, operations and traffic of a training step on each device of a mesh one lacks",
    "layouts": "list the storage layouts of FFN tensors that are known, or show one in full",
    "convert": "convert a checkpoint's FFNs to another storage layout, proven by known rows",
    "verify": "hold a checkpoint's tensors against its manifest and name every difference",
    "inspect": "say what a checkpoint's files prove, what they cannot, and which layouts remain",
    "export": "write a run's whole model as a Hugging Face checkpoint, with tokenizer and manifest",
    "failure-lab": "plant known faults of Transformer MLPs and show that the checks find every one",
    "conformance": "hold every variant, execution and storage layout against the float64 oracle",
    "sample": "write text with a trained run: fill spans, or continue a beginning",
    "sweep": "train what is missing of a study, then write its table and figures",
    "table": "tabulate a study's results with paired differences to its baseline",
    "plot": "draw a study's loss curves and paired differences as PNG and SVG",
}

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like every other error of the library."""

    def error(self, message: str) -> NoReturn:
        raise SpecError(f"{message}. See {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
        argv: the arguments after the program's name. None, for the program itself, takes those of
            the process, and ends the process when it was interrupted.

    Returns:
        The exit code: 0 for success, 2 for an error of the user's input or a full memory or disk,
        130 when interrupted, otherwise what the subcommand returned.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show "≈" shows "?" instead of ending the program.
        sys.stdout.reconfigure(errors="replace")
    if argv is not None:
        return _run(list(argv))
    resend_lost_interrupts()
    code = _run(sys.argv[1:])
    if code == EXIT_INTERRUPTED or (code and _among_several()):
        leave(code)
    return code


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except GluLabError as error:
        _print_error(error, debug)
        return EXIT_ERROR
    except KeyboardInterrupt:
        _print_error("interrupted.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`glu-lab … | head`); Python would complain about
        # the unflushed rest when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        full = resource_error(error)
        if full is None:
            raise
        full.__cause__ = error
        _print_error(full, debug)
        return EXIT_ERROR


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else EXIT_ERROR
    if argv[0] in ("-V", "--version"):
        print(f"glu-lab {__version__}")
        return 0
    name, arguments = argv[0], argv[1:]
    if name not in COMMANDS:
        raise UnknownNameError("subcommand", name, COMMANDS, "See glu-lab --help.")
    module = importlib.import_module(f"glu_lab.cli.{name.replace('-', '_')}")
    try:
        args = parse(name, module, arguments)
    except SystemExit as stop:  # --help of a subcommand
        return int(stop.code or 0)
    return int(module.run(args))


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "usage: glu-lab SUBCOMMAND [options]\n\n"
        "A laboratory for Transformer MLPs: activation ablations at matched budgets.\n\n"
        f"subcommands:\n{rows}\n\n"
        "options:\n"
        "  -h, --help     show this text\n"
        "  -V, --version  show the version\n\n"
        "glu-lab SUBCOMMAND --help shows the options and examples of one."
    )


def parse(name: str, module: ModuleType, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of one subcommand.

    Raises:
        UnknownNameError: for an option that the subcommand does not have.
        SpecError: for any other argument that does not fit.
    """
    parser = _Parser(
        prog=f"glu-lab {name}",
        description=module.HELP[0].upper() + module.HELP[1:] + ".",
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", help="print the whole traceback of an error"
    )
    known = list(parser._option_string_actions)  # argparse has no public list of its options
    rest: list[str] = []
    if getattr(module, "PASS_THROUGH", False):
        arguments, rest = _split_config(arguments, known)
    for argument in arguments:
        # Before argparse, which would rather report what a misspelt option leaves missing.
        option = argument.split("=", 1)[0]
        if option.startswith("--") and option != "--" and option not in known:
            raise UnknownNameError("option", option, known, f"See {parser.prog} --help.")
    args = parser.parse_args(arguments)
    args.rest = rest
    return args


def _split_config(arguments: Sequence[str], known: list[str]) -> tuple[list[str], list[str]]:
    """Takes config overrides out before argparse could take their values for positionals."""
    kept: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--config") or argument.split("=", 1)[0] in known:
            kept.append(argument)
            continue
        if "=" not in argument:
            if position == len(arguments) or arguments[position].startswith("--"):
                raise SpecError(f"{argument} needs a value; write {argument}=VALUE.")
            argument = f"{argument}={arguments[position]}"
            position += 1
        rest.append(argument)
    return kept, rest


def _among_several() -> bool:
    """Whether this process belongs to others, for which an ordinary end would wait in vain."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _print_error(error: Exception | str, debug: bool = False) -> None:
    """One line (some messages list several), after the chain of what led to it if asked for."""
    if debug and isinstance(error, Exception):
        traceback.print_exception(error)
    red, plain = ("\033[1;31m", "\033[0m") if _colour() else ("", "")
    print(f"{red}error:{plain} {error}", file=sys.stderr)


def _colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


if __name__ == "__main__":
    sys.exit(main())

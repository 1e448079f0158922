"""``glu-lab verify``: a checkpoint's tensors against its manifest."""

import argparse
import json
from pathlib import Path

HELP = "hold a checkpoint's tensors against its manifest and name every difference"

EPILOG = """\
examples:
  a folder that glu-lab convert wrote, bytes and known rows included:
    glu-lab verify megatron/
  the names, shapes and types of a training run's newest checkpoint, for a machine:
    glu-lab verify results/sotu/run --json
"""

EXIT_DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", type=Path, help="folder with a manifest.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Prints the differences; 1 when there are some."""
    from glu_lab.layouts.verify import verify

    found = verify(args.path)
    if args.json:
        document = {
            "path": str(args.path),
            "agrees": not found.differences,
            "tensors": found.tensors,
            "hashed": found.hashed,
            "rows_compared": found.rows,
            "differences": [vars(difference) for difference in found.differences],
        }
        print(json.dumps(document, ensure_ascii=False))
    else:
        for difference in found.differences:
            print(f"{difference.what}: {difference.message}")
        rows = ", known rows" if found.rows else ""
        checked = f"{found.tensors} tensors, the bytes of {found.hashed}{rows}"
        count = len(found.differences)
        said = f"{count} difference{'s' if count > 1 else ''}" if count else "the manifest holds"
        print(f"{said} ({checked} checked)")
    return EXIT_DIFFERENT if found.differences else 0

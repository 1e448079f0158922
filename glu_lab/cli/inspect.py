"""``glu-lab inspect``: what a checkpoint proves of itself, and what it cannot."""

import argparse
import json
from pathlib import Path
from typing import Any

HELP = "say what a checkpoint's files prove, what they cannot, and which layouts remain"

EPILOG = """\
examples:
  a file from anywhere:
    glu-lab inspect model.safetensors
  a folder with its config.json, for a machine:
    glu-lab inspect llama/ --json
  your own layouts beside the built-in ones:
    glu-lab inspect mlp.safetensors --rows my_layouts.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", type=Path, help="checkpoint: a file, a folder, or ranks' folder")
    parser.add_argument("--step", type=int, help="of a training run; the newest by default")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the model's config.json")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="TOML file with your own layouts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Prints what was found."""
    from glu_lab.layouts import LAYOUTS, read_layouts
    from glu_lab.layouts.inspection import inspect

    layouts = None if args.rows is None else {**LAYOUTS, **read_layouts(args.rows)}
    found = inspect(args.path, step=args.step, config=args.config, layouts=layouts)
    document: dict[str, Any] = {
        "path": str(found.path),
        "format": found.format,
        "ranks": found.ranks,
        "tensors": found.tensors,
        "bytes": found.nbytes,
        "dtypes": dict(found.dtypes),
        "proven": list(found.proven),
        "unproven": list(found.unproven),
        "stated": list(found.stated),
        "layouts": [
            {
                "name": candidate.layout.name,
                "prefixes": [prefix.template for prefix in candidate.prefixes],
                "known_prefixes": candidate.known,
                "sizes": dict(candidate.sizes),
                "ffns": candidate.ffns,
                "biases": list(candidate.biases),
                "functions": list(candidate.functions),
            }
            for candidate in found.candidates
        ],
        "rejected": dict(found.rejected),
        "nearest": list(found.nearest),
    }
    print(json.dumps(document, ensure_ascii=False)) if args.json else _print(document)
    return 0


def _print(document: dict[str, Any]) -> None:
    types = ", ".join(f"{count} {name}" for name, count in document["dtypes"].items())
    ranks = f", {document['ranks']} ranks" if document["ranks"] > 1 else ""
    print(
        f"{document['path']}: {document['format']}{ranks}, {document['tensors']} tensors "
        f"({types}), {document['bytes']:,} bytes"
    )
    for title, key in (
        ("names and shapes prove", "proven"),
        ("they cannot prove", "unproven"),
        ("stated beside them", "stated"),
    ):
        if document[key]:
            print(f"{title}:")
            for line in document[key]:
                print(f"  {line}")
    if document["layouts"]:
        print("layouts that remain possible:")
        for row in document["layouts"]:
            at = " or ".join(template or "(no prefix)" for template in row["prefixes"])
            unusual = "" if row["known_prefixes"] else ", not a place that the layout knows"
            print(f"  {row['name']} at {at}{unusual}")
    else:
        nearest = ", ".join(document["nearest"]) or "none"
        print(f"no layout fits; the nearest by name: {nearest}")
    if document["rejected"]:
        print("layouts of like names that do not fit:")
        for name, why in document["rejected"].items():
            print(f"  {name}: {why}")

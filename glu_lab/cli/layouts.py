"""``glu-lab layouts``: how checkpoints of many projects store an FFN."""

import argparse
import json
from pathlib import Path
from typing import Any

from glu_lab.layouts import LAYOUTS, describe, find, read_layouts

HELP = "list the storage layouts of FFN tensors that are known, or show one in full"

EPILOG = """\
examples:
  every layout, one line each:
    glu-lab layouts
  the tensors of one, which branch is activated, and where that was seen:
    glu-lab layouts hf-phi3
  blocks of any width, for layouts that join their branches:
    glu-lab layouts megatron-interleave-16
  your own rows beside the built-in ones (docs/layouts.md says how to write them):
    glu-lab layouts my-packed --rows my_layouts.toml --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("name", nargs="?", help="a layout's name or alias; all of them by default")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="TOML file with your own layouts")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of rows instead, one also for a NAME"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table, or one row."""
    own = {} if args.rows is None else read_layouts(args.rows)
    chosen = [*LAYOUTS.values(), *own.values()] if args.name is None else [find(args.name, own)]
    rows = [describe(layout) for layout in chosen]
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif args.name is None:
        _print_table(rows)
    else:
        _print_row(rows[0])
    return 0


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(header_style="bold")
    table.add_column("layout", overflow="fold")
    for column in ("packing", "stored", "what"):
        table.add_column(column)
    for row in rows:
        same = row["orientation"] == row["output_orientation"]
        stored = row["orientation"] + ("" if same else f", output {row['output_orientation']}")
        table.add_row(row["name"], row["packing"], stored, row["summary"])
    console = _console()
    console.print(table)
    console.print(f"{len(rows)} layouts; glu-lab layouts NAME shows one in full.")


def _print_row(row: dict[str, Any]) -> None:
    from rich.table import Table

    console = _console()
    also = f" (also {', '.join(row['aliases'])})" if row["aliases"] else ""
    console.print(f"{row['name']}{also}: {row['summary']}\n", soft_wrap=True)
    table = Table(header_style="bold")
    for column in ("tensor", "holds", "shape", "branches", "one rank of P"):
        table.add_column(column, overflow="fold")
    for tensor in row["tensors"]:
        only = f"{tensor['only']} branch" if tensor["only"] else ""
        marks = ", ".join(text for text in (tensor["bias"], only) if text)
        branches = "; ".join(text for text in (tensor["branch_order"], tensor["packing"]) if text)
        table.add_row(
            tensor["name"],
            tensor["holds"] + (f" ({marks})" if marks else ""),
            tensor["shape"],
            branches or "–",
            tensor["tensor_parallel"],
        )
    console.print(table)
    function = row["function"]
    if function["variant"]:
        console.print(f"function: {function['variant']}, {function['formula']}", soft_wrap=True)
    elif not function["values"]:
        console.print("function: any that a Spec can say")
    for attribute, values in function["values"].items():
        listed = ", ".join(f"{value} → {text}" for value, text in values.items())
        each = ", one item a branch" if function["each_branch"] else ""
        console.print(f"function: by {attribute}{each}: {listed}", soft_wrap=True)
    for name, only in function["assumes"].items():
        console.print(f"          only with {name} = {only}")
    if function["note"]:
        console.print(f"          {function['note']}", soft_wrap=True)
    biases = row["biases"]
    by = f", by {biases['attribute']}" if biases["attribute"] else ""
    console.print(f"biases: {biases['policy']}{by}")
    console.print(f"layers: {row['layer_axis']}; experts: {row['expert_axis']}")
    for prefix in row["prefixes"]:
        console.print(f"stands at: {prefix['template']} ({prefix['stack']})", soft_wrap=True)
    for name, what in row["outside"].items():
        console.print(f"no part of it: {name}, {what}", soft_wrap=True)
    for name, why in row["refused"].items():
        console.print(f"refused: {name}: {why}", soft_wrap=True)
    for note in row["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    for source in row["source"].split("; "):
        console.print(f"seen in: {source}", soft_wrap=True)

"""``glu-lab budget``: exact costs of an FFN, and the width at which two cost the same."""

import argparse
import json
from typing import Any

from glu_lab.budget import POLICIES, ROUNDINGS, Match, ledger, match_width, shape_ledger
from glu_lab.errors import BudgetError, SpecError
from glu_lab.spec import FFN, variant
from glu_lab.spec.numerics import DTYPE_BYTES
from glu_lab.spec.variants import variant_name

HELP = "count an FFN's parameters, operations and tensors, or match its width to another's"

EPILOG = """\
examples:
  what a SwiGLU of a stated width costs, and the tensors of 8192 rows of it:
    glu-lab budget --d_model 4096 --d_ff 11008 --variant swiglu --rows 8192
  the SwiGLU width with the parameters of a ReLU FFN of width 16384:
    glu-lab budget --d_model 4096 --d_ff 16384 --baseline relu \\
        --variant swiglu --match params --round_to 256
  what a stated width costs beside a baseline, nothing computed for it:
    glu-lab budget --d_model 4096 --d_ff 16384 --baseline relu \\
        --variant swiglu --variant_d_ff 14336
  any product of activations is a variant:
    glu-lab budget --d_model 768 --d_ff 3072 --baseline gelu_tanh \\
        --variant 'relu2*linear' --match macs --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--d_model", type=_size, required=True, help="D, width of the residual stream"
    )
    parser.add_argument(
        "--d_ff",
        type=_size,
        required=True,
        help="F of the baseline, or of the variant where there is no baseline",
    )
    parser.add_argument(
        "--variant", required=True, help="name or product of activations, e.g. swiglu, relu2*linear"
    )
    parser.add_argument("--baseline", help="variant whose budget is the measure, e.g. relu")
    parser.add_argument(
        "--match",
        metavar="POLICY",
        help="compute the variant's width; " + "; ".join(f"{k}: {v}" for k, v in POLICIES.items()),
    )
    parser.add_argument(
        "--variant_d_ff",
        type=_size,
        help="the variant's own width beside a baseline, taken as stated; excludes --match",
    )
    parser.add_argument(
        "--multiplier",
        metavar="RHO",
        help="part of the baseline's budget to spend, e.g. 1.3 or 8/3 (default 1)",
    )
    parser.add_argument(
        "--round_to", type=_size, help="make the width a multiple of this (default 1)"
    )
    parser.add_argument(
        "--rounding",
        metavar="DIRECTION",
        help="default up; " + "; ".join(f"{k}: {v}" for k, v in ROUNDINGS.items()),
    )
    for option, whose in (("--bias", "variant"), ("--baseline_bias", "baseline")):
        parser.add_argument(
            option,
            action=argparse.BooleanOptionalAction,
            help=f"biases on every branch and the output of the {whose} "
            "(default: what the variant's source has; none but for gpt_oss)",
        )
    parser.add_argument("--rows", type=_size, help="T; lists the tensors of a batch of T tokens")
    parser.add_argument(
        "--dtype", help=f"of those tensors: {', '.join(DTYPE_BYTES)} (default bfloat16)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _size(text: str) -> int:
    """A whole number that every reader of the JSON can hold exactly."""
    size = int(text)
    if not 1 <= size <= 2**53:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 2⁵³, got {text!r}")
    return size


_size.__name__ = "whole number"  # argparse says "invalid whole number value"


def run(args: argparse.Namespace) -> int:
    """Prints the ledger or the match."""
    _check(args)
    baseline = match = None
    if args.baseline is not None:
        baseline = variant(
            args.baseline, d_model=args.d_model, d_ff=args.d_ff, bias=args.baseline_bias
        )
    if args.match is not None and baseline is not None:
        match = match_width(
            args.variant,
            baseline,
            match=args.match,
            multiplier="1" if args.multiplier is None else args.multiplier,
            round_to=1 if args.round_to is None else args.round_to,
            rounding=args.rounding or "up",
            bias=args.bias,
        )
        spec = match.spec
    else:
        d_ff = args.d_ff if baseline is None else args.variant_d_ff
        spec = variant(args.variant, d_model=args.d_model, d_ff=d_ff, bias=args.bias)
    report = _report(spec, baseline, match, args.rows, args.dtype or "bfloat16")
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_tables(report)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuses combinations of options of which one would be ignored."""
    if args.match is not None and args.variant_d_ff is not None:
        raise BudgetError(
            f"--variant_d_ff {args.variant_d_ff} states the variant's width and --match "
            f"{args.match} would compute it; a stated width is never changed: leave out one."
        )
    if args.baseline is None:
        for option in ("match", "variant_d_ff", "baseline_bias"):
            if getattr(args, option) is not None:
                raise SpecError(
                    f"--{option} compares with a baseline; name it with --baseline, for example "
                    "--baseline relu. Without a baseline, --d_ff is the variant's own width."
                )
    elif args.match is None and args.variant_d_ff is None:
        raise SpecError(
            f"--baseline {args.baseline} takes --d_ff {args.d_ff}; say how the variant gets its "
            "width: --match params (or macs, width), or --variant_d_ff N."
        )
    if args.match is None:
        for option in ("multiplier", "round_to", "rounding"):
            if getattr(args, option) is not None:
                raise SpecError(
                    f"--{option} shapes a computed width; add --match, or leave it out."
                )
    if args.rows is None and args.dtype is not None:
        raise SpecError("--dtype is the format of a batch's tensors; add --rows, or leave it out.")


def _report(
    spec: FFN, baseline: FFN | None, match: Match | None, rows: int | None, dtype: str
) -> dict[str, Any]:
    """Everything the command knows, ready for JSON; the same keys always, null where unasked."""
    costs = ledger(spec)
    base = None if baseline is None else ledger(baseline)
    return {
        "variant": variant_name(spec),
        "product": "*".join(str(branch.activation) for branch in spec.branches),
        "d_model": spec.d_model,
        "d_ff": spec.d_ff,
        "params": costs.params,
        "macs_per_token": costs.macs_per_token,
        "pointwise_per_token": costs.pointwise_per_token,
        "parameters": [
            {"name": p.name, "symbols": list(p.symbols), "shape": list(p.shape), "count": p.count}
            for p in costs.parameters
        ],
        "pointwise": [
            {"name": p.name, "axis": p.axis, "per_element": p.per_element, "per_token": p.per_token}
            for p in costs.pointwise
        ],
        "match": match and match.match,
        "multiplier": match and str(match.multiplier),
        "round_to": match and match.round_to,
        "rounding": match and match.rounding,
        "continuous_d_ff": match and float(match.continuous),
        "continuous_d_ff_exact": match and str(match.continuous),
        "derivation": match and list(match.derivation),
        "baseline": baseline and variant_name(baseline),
        "baseline_d_ff": baseline and baseline.d_ff,
        "baseline_params": base and base.params,
        "param_delta": base and costs.params - base.params,
        "baseline_macs_per_token": base and base.macs_per_token,
        "mac_delta": base and costs.macs_per_token - base.macs_per_token,
        "baseline_pointwise_per_token": base and base.pointwise_per_token,
        "pointwise_delta": base and costs.pointwise_per_token - base.pointwise_per_token,
        "rows": rows,
        "dtype": None if rows is None else dtype,
        **_memory(spec, rows, dtype, ""),
        **_memory(baseline, rows, dtype, "baseline_"),
    }


def _memory(spec: FFN | None, rows: int | None, dtype: str, prefix: str) -> dict[str, Any]:
    shapes = None if spec is None or rows is None else shape_ledger(spec, rows=rows, dtype=dtype)
    return {
        f"{prefix}tensors": shapes
        and [
            {
                "name": t.name,
                "formula": t.formula,
                "symbols": list(t.symbols),
                "shape": list(t.shape),
                "elements_per_row": t.row_elements,
                "bytes": t.bytes,
                "saved": t.saved,
                "needed_by": t.needed_by,
            }
            for t in shapes.tensors
        ],
        f"{prefix}intermediate_bytes": shapes and shapes.intermediate_bytes,
        f"{prefix}saved_bytes": shapes and shapes.saved_bytes,
    }


def _print_tables(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)

    def table(title: str, *columns: tuple[str, str]) -> Table:
        made = Table(title=title, title_justify="left", header_style="bold")
        for name, justify in columns:
            side = "right" if justify == "right" else "left"
            made.add_column(name, justify=side, overflow="fold")
        return made

    sides = [("", report["variant"], report["d_ff"])]
    if report["baseline"] is not None:
        sides.append(("baseline_", report["baseline"], report["baseline_d_ff"]))
    d_model = f"d_model {report['d_model']:,}, one layer"
    if len(sides) == 1:
        costs = table(
            f"{report['variant']} at {d_model}", ("", "left"), (report["variant"], "right")
        )
    else:
        costs = table(
            f"{report['variant']} beside {report['baseline']} at {d_model}",
            ("", "left"),
            *((name, "right") for _, name, _ in reversed(sides)),
            ("difference", "right"),
            ("relative", "right"),
        )
    rows = [
        ("d_ff", "d_ff", None),
        ("parameters", "params", "param_delta"),
        ("MACs / token", "macs_per_token", "mac_delta"),
        ("pointwise ops / token", "pointwise_per_token", "pointwise_delta"),
    ]
    for label, key, delta in rows:
        cells = [f"{report[prefix + key]:,}" for prefix, _, _ in reversed(sides)]
        if len(sides) == 2:
            base = report["baseline_" + key]
            change = report[delta] if delta else report[key] - base
            cells += [f"{change:+,}", f"{100 * change / base:+.2f} %" if base else "–"]
        costs.add_row(label, *cells)
    console.print(costs)

    if report["derivation"] is not None:
        console.print(f"\nderivation (match {report['match']})")
        for line in report["derivation"]:
            console.print(f"  {line}", soft_wrap=True)

    console.print()
    parts = table(
        f"parameters of {report['variant']}",
        ("array", "left"),
        ("shape", "left"),
        ("", "left"),
        ("count", "right"),
    )
    for item in report["parameters"]:
        parts.add_row(item["name"], *_shape_cells(item), f"{item['count']:,}")
    console.print(parts)

    if report["rows"] is not None:
        for prefix, name, d_ff in sides:
            _print_memory(console, table, report, prefix, f"{name} at d_ff {d_ff:,}")


def _print_memory(console, table, report: dict[str, Any], prefix: str, name: str) -> None:
    console.print()
    tensors = table(
        f"tensors of {name}, {report['rows']:,} rows, {report['dtype']}",
        ("tensor", "left"),
        ("made by", "left"),
        ("shape", "left"),
        ("", "left"),
        ("size", "right"),
        ("needed by backward for", "left"),
    )
    for item in report[f"{prefix}tensors"]:
        tensors.add_row(
            item["name"],
            item["formula"],
            *_shape_cells(item),
            _bytes_text(item["bytes"]),
            item["needed_by"] or "–",
        )
    console.print(tensors)
    console.print(
        f"between x and y: {_bytes_text(report[prefix + 'intermediate_bytes'])}; kept for "
        f"backward, x among them: {_bytes_text(report[prefix + 'saved_bytes'])} "
        "(plain eager policy, by the formulas)",
        soft_wrap=True,
    )


def _shape_cells(item: dict[str, Any]) -> tuple[str, str]:
    return (
        "(" + ", ".join(item["symbols"]) + ")",
        " × ".join(f"{size:,}" for size in item["shape"]) or "scalar",
    )


def _bytes_text(size: int) -> str:
    scale, unit = (2**20, "MiB") if size >= 2**20 else (2**10, "KiB")
    return f"{size / scale:,.4g} {unit}" if size < 1000 * scale else f"{size // scale:,} {unit}"

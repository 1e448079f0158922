"""``glu-lab describe``: what a config's model costs and how it starts, before anything is run."""

import argparse
import json
from typing import Any

from glu_lab.budget import ledger as ffn_ledger
from glu_lab.budget import shape_ledger
from glu_lab.cli.config import CONFIG_EPILOG, add_config, load_config
from glu_lab.errors import SpecError
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.numerics import DTYPE_BYTES
from glu_lab.spec.variants import variant_name

HELP = "count a config's parameters, operations and FFN tensors, and show how its weights start"
EPILOG = f"""\
examples:
  glu-lab describe --config=configs/t5_base_c4.py:swiglu
  glu-lab describe --config=configs/smollm2_135m.py --config.model.ffn.d_ff=2048 --json
  glu-lab describe --config=configs/t5_tiny_sotu.py:relu --rows 8192

Nothing is compiled, trained or read but the config. {CONFIG_EPILOG}"""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_config(parser)
    parser.add_argument(
        "--rows",
        type=int,
        help="tokens whose FFN tensors are listed (default: one micro-batch of the first stack)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of tables"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the ledgers."""
    if args.rows is not None and args.rows < 1:
        raise SpecError(f"--rows must be ≥ 1, got {args.rows}.")
    described = describe(load_config(args), args.rows)
    if args.json:
        print(json.dumps(described, indent=2, ensure_ascii=False))
    else:
        _print_tables(described)
    return 0


def describe(experiment: Experiment, rows: int | None = None) -> dict[str, Any]:
    """Everything the command knows, ready for JSON.

    Args:
        experiment: the run.
        rows: tokens of the FFN's shape ledger; None takes one micro-batch of the encoder, or of
            the decoder LM.
    """
    from glu_lab.models.ledger import model_ledger

    model, data, training = experiment.model, experiment.data, experiment.training
    costs = model_ledger(
        model, input_length=data.input_length, target_length=_target_length(experiment)
    )
    sequences = training.batch_size // training.microbatches
    if rows is None:
        rows = sequences * data.input_length
    else:
        sequences = 1  # one row of that many tokens; matters to a shared dropout mask alone
    ffn, dtype = ffn_ledger(model.ffn), experiment.numerics.compute_dtype
    shapes = shape_ledger(model.ffn, rows=rows, dtype=dtype, sequences=sequences)
    stored = DTYPE_BYTES[experiment.numerics.parameter_dtype]
    return {
        "name": experiment.name,
        "kind": model.kind,
        "variant": variant_name(model.ffn),
        "layers": {"encoder": model.num_encoder_layers, "decoder": model.num_layers},
        "total_params": costs.total_params,
        "parameter_bytes": costs.total_params * stored,
        "parameter_dtype": experiment.numerics.parameter_dtype,
        "components": dict(costs.components),
        "tied_embeddings": model.tie_embeddings,
        "lengths": dict(costs.lengths),
        "macs_per_token": {
            stack: {**kinds, "total": sum(kinds.values())} for stack, kinds in costs.macs.items()
        },
        "macs_per_example": costs.macs_per_example,
        "ffn": {
            "variant": variant_name(model.ffn),
            "product": "*".join(str(branch.activation) for branch in model.ffn.branches),
            "d_model": model.ffn.d_model,
            "d_ff": model.ffn.d_ff,
            "params_per_layer": ffn.params,
            "macs_per_token": ffn.macs_per_token,
            "pointwise_per_token": ffn.pointwise_per_token,
            "rows": rows,
            "dtype": dtype,
            "tensors": [
                {
                    "name": tensor.name,
                    "formula": tensor.formula,
                    "symbols": list(tensor.symbols),
                    "shape": list(tensor.shape),
                    "bytes": tensor.bytes,
                    "saved": tensor.saved,
                    "needed_by": tensor.needed_by,
                }
                for tensor in shapes.tensors
            ],
            "intermediate_bytes": shapes.intermediate_bytes,
            "saved_bytes": shapes.saved_bytes,
        },
        "weights": [
            {
                "path": weight.path,
                "shape": list(weight.parameter.shape),
                "axes": list(weight.parameter.axes),
                "count": weight.parameter.count,
                "role": weight.parameter.role,
                "fan_in": weight.fan_in,
                "fan_out": weight.fan_out,
                "distribution": "constant"
                if weight.parameter.start is not None
                else weight.parameter.init.distribution,
                "stddev": weight.stddev,
                "start": weight.start,
            }
            for weight in costs.weights
        ],
    }


def _target_length(experiment: Experiment) -> int | None:
    """Tokens of a decoder row, or None for a decoder LM."""
    data = experiment.data
    if experiment.model.kind == "decoder":
        return None
    if data.target_length:
        return data.target_length
    from glu_lab.data.span_corruption import fit

    return fit(data.input_length, data.noise_density, data.mean_span_length).targets


def _print_tables(described: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)

    def table(title: str, *columns: str, right: int = 1) -> Table:
        """A table whose last `right` columns hold numbers."""
        made = Table(title=title, title_justify="left", header_style="bold")
        for index, name in enumerate(columns):
            side = "right" if index >= len(columns) - right else "left"
            made.add_column(name, justify=side, overflow="fold")
        return made

    total = described["total_params"]
    layers = " + ".join(str(n) for n in described["layers"].values() if n)
    console.print(
        f"{described['name']}: {described['kind']}, {layers} layers, FFN {described['variant']}, "
        f"{total:,} parameters ({_bytes(described['parameter_bytes'])} in "
        f"{described['parameter_dtype']})\n",
        soft_wrap=True,
    )

    parts = table("parameters", "component", "count", "share", right=2)
    for name, count in described["components"].items():
        parts.add_row(name, f"{count:,}", f"{100 * count / total:.2f} %")
    if described["tied_embeddings"]:
        parts.add_row("logits", "tied", "–")
    parts.add_section()
    parts.add_row("total", f"{total:,}", "100 %")
    console.print(parts)

    stacks, lengths = described["macs_per_token"], described["lengths"]
    console.print()
    macs = table(
        "multiply-accumulates per token, forward",
        "",
        *(f"{s} token" for s in stacks),
        right=len(stacks),
    )
    labels = {
        "attention_projections": "attention projections",
        "attention_scores": "attention scores and values",
        "ffn": "FFN",
        "logits": "logits",
    }
    for kind, label in labels.items():
        cells = [f"{kinds[kind]:,}" if kind in kinds else "–" for kinds in stacks.values()]
        if any(kind in kinds for kinds in stacks.values()):
            macs.add_row(label, *cells)
    macs.add_section()
    macs.add_row("total", *(f"{kinds['total']:,}" for kinds in stacks.values()))
    console.print(macs)
    at = " and ".join(f"{n:,} {stack} tokens" for stack, n in lengths.items())
    console.print(
        f"Scores and values are at {at} a row, masked halves included; one such example takes "
        f"{described['macs_per_example']:,} MACs.",
        soft_wrap=True,
    )

    _print_ffn(console, table, described["ffn"])

    console.print()
    weights = table(
        "how the weights start",
        "array",
        "shape",
        "distribution",
        "fan in",
        "fan out",
        "std",
        right=3,
    )
    for weight in described["weights"]:
        if weight["distribution"] in ("zeros", "ones"):
            continue
        weights.add_row(
            weight["path"],
            "×".join(f"{n}" for n in weight["shape"]) or "scalar",
            weight["distribution"].replace("_", " "),
            f"{weight['fan_in']:,}" if weight["role"] != "vector" else "–",
            f"{weight['fan_out']:,}" if weight["role"] != "vector" else "–",
            f"{weight['stddev']:.4g}" if weight["start"] is None else f"at {weight['start']:.4g}",
        )
    console.print(weights)
    console.print("Norm scales start at 1, biases at 0.")


def _print_ffn(console: Any, table: Any, ffn: dict[str, Any]) -> None:
    console.print()
    # Outside the table: a title wraps at the table's width.
    console.print(
        f"tensors of one FFN ({ffn['product']}, d_model {ffn['d_model']:,}, d_ff {ffn['d_ff']:,}), "
        f"{ffn['rows']:,} rows, {ffn['dtype']}",
        style="italic",
    )
    tensors = table("", "tensor", "made by", "needed by backward for", "shape", "size", right=2)
    tensors.title = None
    for item in ffn["tensors"]:
        tensors.add_row(
            item["name"],
            item["formula"],
            item["needed_by"] or "–",
            " × ".join(f"{size:,}" for size in item["shape"]),
            _bytes(item["bytes"]),
        )
    console.print(tensors)
    console.print(
        f"One layer: {ffn['params_per_layer']:,} parameters, {ffn['macs_per_token']:,} MACs and "
        f"{ffn['pointwise_per_token']:,} pointwise operations per token; "
        f"{_bytes(ffn['intermediate_bytes'])} between x and y, {_bytes(ffn['saved_bytes'])} kept "
        "for backward (plain eager policy, by the formulas).",
        soft_wrap=True,
    )


def _bytes(size: int) -> str:
    """A size in the largest binary unit that leaves at least one."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.4g} {name}"
    return f"{size} B"

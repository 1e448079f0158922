"""The record of `glu_lab.conformance.initialization` as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from glu_lab.conformance.initialization import Line
from glu_lab.conformance.sections import Section, number
from glu_lab.training import telemetry

TITLE = "Initial statistics of the FFNs"
ABOUT = (
    "Measured second moments beside those that independent weights would give, and the statistics "
    "of one real batch; see `glu_lab/conformance/propagation.py` for the theory. The standard "
    "error is over channels. Written by `glu-lab initialization`."
)


def _branch(number_: int | None) -> str:
    return "" if number_ is None else str(number_)


def _with_error(value: float | None, error: float | None) -> str:
    return number(value) if error is None else f"{number(value)} ± {number(error, 2)}"


def sections(report: Mapping[str, Any]) -> list[Section]:
    """The tables of a report of `initial_statistics`."""
    lines = [Line(**line) for line in report["theory"]]
    whose = (
        "spreads as the config's initialisers state them"
        if report["weights"] == "drawn"
        else "spreads as the weights have them"
    )
    dropped = report["hidden_dropout"]
    head = (
        f"{report['config']}, step {report['step']}: loss {number(report['loss'])} nats over "
        f"{report['tokens']:,} tokens; random key {report['rng']['words']} "
        f"({report['rng']['implementation']}); no loss scale"
    )
    pooled = tuple(
        (
            line["quantity"],
            _branch(line["branch"]),
            _with_error(line["ratio"], line["standard_error"]),
            str(line["layers"]),
        )
        for line in report["pooled"]
    )
    theory = tuple(
        (
            f"{line.stack} {line.layer}",
            line.quantity,
            _branch(line.branch),
            number(line.measured),
            number(line.predicted),
            _with_error(line.measured if line.ratio is None else line.ratio, line.standard_error),
            number(line.deviations, 2),
        )
        for line in lines
    )
    return [
        Section(head, (), ()),
        Section(
            f"Measured second moments over predicted ones, all layers ({whose}"
            + (f"; hidden dropout {dropped:g})" if dropped else ")"),
            ("quantity", "branch", "ratio", "layers"),
            pooled,
        ),
        Section(
            "Layer by layer",
            ("layer", "quantity", "branch", "measured", "predicted", "ratio", "errors off"),
            theory,
            "A correlation is predicted to be 0: measured value in place of a ratio.",
        ),
        *_statistics(report),
    ]


def _statistics(report: Mapping[str, Any]) -> Iterator[Section]:
    branches, layers = [], []
    for stack, taps in report["statistics"].items():
        rms = report["rms"]
        for layer, size in enumerate(taps["input"]["rms"]):
            where = f"{stack} {layer}"
            before, after = taps["pre_activation"], taps["branches"]
            for i in range(len(before["mean"][layer])):
                branches.append(
                    (
                        where,
                        str(i),
                        number(before["mean"][layer][i]),
                        number(before["std"][layer][i]),
                        " ".join(number(q, 3) for q in before["quantiles"][layer][i]),
                        number(after["exact_zero"][layer][i]),
                        number(after["small"][layer][i]),
                        number(taps["slopes"]["saturated"][layer][i]),
                        str(before["non_finite"][layer][i]),
                        number(rms["parameter"][f"{stack}/layers/ffn/wi"][layer][i]),
                        number(rms["gradient"][f"{stack}/layers/ffn/wi"][layer][i]),
                    )
                )
            product = taps["product"]
            layers.append(
                (
                    where,
                    number(size),
                    number(taps["output"]["rms"][layer]),
                    number(product["rms"][layer]),
                    number(product["exact_zero"][layer]),
                    number(product["small"][layer]),
                    number(before["correlation"][layer]) if "correlation" in before else "–",
                    str(
                        taps["input"]["non_finite"][layer]
                        + product["non_finite"][layer]
                        + taps["output"]["non_finite"][layer]
                    ),
                    number(rms["parameter"][f"{stack}/layers/ffn/wo"][layer]),
                    number(rms["gradient"][f"{stack}/layers/ffn/wo"][layer]),
                )
            )
    quantiles = " ".join(f"{100 * q:g}" for q in telemetry.QUANTILES)
    yield Section(
        "Branches",
        (
            "layer", "branch", "mean", "std", f"quantiles {quantiles} %", "exact zero",
            f"|f| < {telemetry.SMALL:g}", f"|φ′| < {telemetry.SATURATED:g}", "non-finite",
            "RMS wi", "RMS ∂wi",
        ),
        tuple(branches),
    )  # fmt: skip
    yield Section(
        "Layers",
        (
            "layer", "RMS x", "RMS y", "RMS H", "exact zero", f"|H| < {telemetry.SMALL:g}",
            "correlation", "non-finite", "RMS wo", "RMS ∂wo",
        ),
        tuple(layers),
    )  # fmt: skip

"""Failures 18 to 22: where the FFN ends, and what may be said of it.

Dimension letters: S positions, D d_model, F d_ff.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
from jaxtyping import Array

from glu_lab.conformance.failures.functions import Params, layer, sublayer
from glu_lab.conformance.failures.reports import reports
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.wording import Report
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant

_SPEC = variant("swiglu", d_model=4, d_ff=6)


def with_neighbours(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer on the mean of each row and the one before it."""
    return layer(params, (x + jnp.roll(x, 1, axis=0)) / 2, spec)


def centred(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer with a millionth of the mean over rows taken off, as padding code may do."""
    return layer(params, x - 1e-6 * jnp.mean(x, axis=0, keepdims=True), spec)


def with_residual(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer and the residual addition that belongs to its wrapper."""
    return x + layer(params, x, spec)


def normalized(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer on rows that it normalises itself."""
    return layer(params, x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True)), spec)


def mixed_tokens(folder: Path) -> list[Planted]:
    """18: rows that meet."""
    return [
        Planted(
            name=name,
            check="jacobian",
            fault=sublayer(function, _SPEC),
            clean=sublayer(layer, _SPEC),
        )
        for name, function in (
            ("each row takes half of its neighbour", with_neighbours),
            ("a millionth of the mean over rows is taken off", centred),
        )
    ]


def wrapper_inside(folder: Path) -> list[Planted]:
    """19: what the block adds, added by the MLP."""
    return [
        Planted(
            name=name,
            check="oracle",
            fault=sublayer(function, _SPEC),
            clean=sublayer(layer, _SPEC),
        )
        for name, function in (
            ("the MLP adds its own input", with_residual),
            ("the MLP normalises its own input", normalized),
        )
    ]


#: What no report may say, by row.
SENTENCES: dict[int, tuple[str, ...]] = {
    20: (
        "Neuron 1,734 stores the fact that Paris is the capital of France.",
        "The FFN is a key-value memory with 11,008 entries.",
        "Factual knowledge is held in the down projection's rows.",
    ),
    21: (
        "The SwiGLU gate routes each token to the channels that it needs.",
        "Every hidden channel is an expert that the gate selects.",
    ),
    22: (
        "At a matched budget, SwiGLU is 1.3 times faster than ReLU.",
        "Fewer MACs per token: the whole model needs a third less compute.",
        "The narrower FFN saves time on an H100.",
        "With this width the layer is compute-bound.",
        "It takes 49,152 MACs.",
    ),
}


def plant(made: Sequence[Report], number: int) -> list[Planted]:
    """The sentences of a claim, planted in reports that may not have them.

    Args:
        made: reports as they are; the first gets every sentence, the others one.
        number: the row.
    """
    # Where experts are, routing may be spoken of.
    open_to_it = [report for report in made if report.dense or number != 21]
    sentences = SENTENCES[number]
    planted = [_with_sentence(report, sentences[0]) for report in open_to_it]
    return planted + [_with_sentence(open_to_it[0], sentence) for sentence in sentences[1:]]


def _with_sentence(report: Report, sentence: str) -> Planted:
    text = f"{report.text.rstrip()}\n\n{sentence}\n"
    return Planted(
        name=f"in {report.name}: “{sentence}”",
        check="wording",
        fault=dataclasses.replace(report, text=text),
        clean=report,
    )


def literal_memory(folder: Path) -> list[Planted]:
    """20: facts in weights."""
    return plant(reports(folder), 20)


def routing(folder: Path) -> list[Planted]:
    """21: experts in a dense FFN."""
    return plant(reports(folder), 21)


def beyond_the_ledger(folder: Path) -> list[Planted]:
    """22: speed and whole models out of counts."""
    made = reports(folder)
    unlabelled = [
        Planted(
            name=f"in {report.name}: MACs of one FFN without saying so",
            check="wording",
            fault=dataclasses.replace(report, text=report.text.replace("one FFN", "all")),
            clean=report,
        )
        for report in made
        if report.ledger
    ]
    return [*plant(made, 22), *unlabelled]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=18,
        title="The FFN believed to mix tokens",
        symptom="None by shape; a sentence's score depends on its padding or its neighbours.",
        cause="A mean, a convolution or a reshape over positions inside of the sublayer.",
        detector="The Jacobian between two rows is exactly zero: not even rounding couples them.",
        fix="Leave mixing to attention; the FFN is one function of each row.",
        build=mixed_tokens,
    ),
    Failure(
        id=19,
        title="The wrapper's work done inside of the MLP",
        symptom="None by shape; the residual counts twice, or the norm does.",
        cause="Projects draw the line between block and MLP in different places.",
        detector="The sublayer alone is held against the oracle.",
        fix="The sublayer returns Y; residual, norm and dropout of the sum belong to the block.",
        build=wrapper_inside,
    ),
    Failure(
        id=20,
        title="Key-value memory taken literally",
        kind="claim",
        symptom="A report says where a fact lies.",
        cause="Columns of W_i and rows of W_o can be read as keys and values: an analogy that "
        "helps, and shows no storage.",
        detector="Rules of wording on every generated report.",
        fix="Say what was computed. A claim of storage needs an intervention with controls.",
        build=literal_memory,
    ),
    Failure(
        id=21,
        title="A dense FFN called a router of experts",
        kind="claim",
        symptom="A report says that the gate selects.",
        cause="Gating is a product that every channel takes part in; routing leaves experts out.",
        detector="Rules of wording; where a layout does have experts, they may be named.",
        fix="Keep the words for sublayers that choose: those have a router and an expert axis.",
        build=routing,
    ),
    Failure(
        id=22,
        title="One FFN's ledger as a claim on models and hardware",
        kind="claim",
        symptom="A report turns a count of operations into speed, or into the model's cost.",
        cause="The ledger counts one sublayer; attention, traffic, kernels and the device do not "
        "follow from it.",
        detector="Rules of wording; each number of the ledger stands beside what it counts.",
        fix="Label counts with of what and per what; measure seconds, and name the machine.",
        build=beyond_the_ledger,
    ),
)

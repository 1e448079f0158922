"""Published numbers to stand beside ours, each with the contract it was measured under.

Losses of two tables never mix: they differ by tokenizer, data and code. A table is shown in a
column of its own, and only its own column may be compared within it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from glu_lab.errors import UnknownNameError

MARK = "paper-specific result"


@dataclasses.dataclass(frozen=True)
class Value:
    """One published number.

    Attributes:
        mean: as printed.
        spread: printed after ±, where given; the contract says of what.
        digits: decimals as printed.
    """

    mean: float
    spread: float | None = None
    digits: int = 3

    def __str__(self) -> str:
        text = f"{self.mean:.{self.digits}f}"
        return text if self.spread is None else f"{text} ± {self.spread:.{self.digits}f}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """Numbers of one paper.

    Attributes:
        name: for ``--published``.
        title, source: the paper.
        status: ``read`` from the paper's full text, or ``second-hand`` from transcriptions.
        contract: what was trained, on what, and how.
        notes: what a reader must know to set the numbers beside ours.
        columns: column title → variant of ours → number.
    """

    name: str
    title: str
    source: str
    status: Literal["read", "second-hand"]
    contract: str
    notes: tuple[str, ...] = ()
    columns: Mapping[str, Mapping[str, Value]]

    @property
    def headings(self) -> dict[str, str]:
        """Column title → heading in our table, with the mark."""
        return {title: f"{title}, {self.source} ({MARK})" for title in self.columns}

    @property
    def footnote(self) -> str:
        """Source, status, contract and notes in one paragraph."""
        return " ".join(
            (
                f"{MARK}: {self.title} ({self.source}; numbers {self.status}). {self.contract}",
                *self.notes,
                "Not comparable with our columns: tokenizer, data and code differ.",
            )
        )


# Mesh-TensorFlow's `gelu` is the tanh form: the columns GELU and GEGLU stand beside these names.
_NAMES = ("relu", "gelu_tanh", "silu", "glu", "bilinear", "reglu", "geglu_tanh", "swiglu")


def _column(means: tuple[float, ...], spreads: tuple[float | None, ...] = ()) -> dict[str, Value]:
    spreads = spreads or (None,) * len(means)
    return {n: Value(m, s) for n, m, s in zip(_NAMES, means, spreads, strict=True)}


PUBLISHED: Mapping[str, PublishedTable] = {
    table.name: table
    for table in (
        PublishedTable(
            name="glu_variants_2020",
            title="Shazeer 2020, GLU Variants Improve Transformer",
            source="arXiv 2002.05202",
            status="read",
            contract=(
                "T5-base, d_model 768, 12+12 layers, d_ff 3072 with two matrices or 2048 with "
                "three, no biases; 128 sequences of 512 input and 114 output tokens; span filling "
                "on C4; Adafactor, inverse square root schedule, linear decay over the last 10 % "
                "of steps, no dropout; held-out log-perplexity, ± the standard deviation of 4 runs."
            ),
            notes=(
                (
                    "Mesh-TensorFlow's gelu, which the paper most likely ran, is the tanh form: "
                    "its GELU and GEGLU stand beside gelu_tanh and geglu_tanh."
                ),
                "The three ungated 524,288-step values span 0.006, about one short-run sd: tied.",
            ),
            columns={
                "65,536 steps": _column(
                    (1.997, 1.983, 1.994, 1.982, 1.960, 1.953, 1.942, 1.944),
                    (0.005, 0.005, 0.003, 0.006, 0.005, 0.003, 0.004, 0.010),
                ),
                "524,288 steps": _column((1.677, 1.679, 1.683, 1.663, 1.648, 1.645, 1.633, 1.636)),
            },
        ),
        PublishedTable(
            name="narang_2021",
            title="Narang et al. 2021, Do Transformer Modifications Transfer",
            source="arXiv 2102.11972",
            status="second-hand",
            contract=(
                "223M-parameter T5 models; log-perplexity early in training (± over 5 runs) and "
                "at its end."
            ),
            notes=(
                "Vanilla stands beside relu, LiGLU beside bilinear.",
                (
                    "The transcription does not state GeLU's form; GeLU and GeGLU stand beside "
                    "gelu_tanh and geglu_tanh because Mesh-TensorFlow's gelu is the tanh form."
                ),
            ),
            columns={
                "early": _column(
                    (2.182, 2.179, 2.186, 2.174, 2.149, 2.145, 2.130, 2.127),
                    (0.005, 0.003, 0.003, 0.003, None, 0.004, 0.006, 0.003),
                ),
                "final": _column((1.838, 1.838, 1.847, 1.814, 1.798, 1.803, 1.792, 1.789)),
            },
        ),
        PublishedTable(
            name="turbo_sparse",
            title="Song et al. 2024, Turbo Sparse",
            source="arXiv 2406.05955",
            status="second-hand",
            contract="300M-parameter decoder, 5B tokens of FineWeb.",
            columns={
                "train loss": {"drelu": Value(3.154), "swiglu": Value(3.146)},
                "WikiText-2 perplexity": {
                    "drelu": Value(28.45, digits=2),
                    "swiglu": Value(28.48, digits=2),
                },
            },
        ),
    )
}


def published(name: str) -> PublishedTable:
    """A table by name.

    Raises:
        UnknownNameError: with the tables that exist.
    """
    if name not in PUBLISHED:
        raise UnknownNameError("published table", name, PUBLISHED)
    return PUBLISHED[name]

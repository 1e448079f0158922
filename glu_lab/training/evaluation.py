"""Validation: sums over every token once, and the numbers that follow from them."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Totals:
    """Sums over batches: exact integers, and nats in float64."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.nats_squared = 0.0
        self.z_squared = 0.0
        self.tokens = 0
        self.correct = 0
        self.non_finite = 0

    def add(self, sums: Mapping[str, Any]) -> None:
        """Adds the sums of one batch, as `glu_lab.layers.loss.cross_entropy` gives them."""
        for name in ("nats", "nats_squared", "z_squared"):
            setattr(self, name, getattr(self, name) + float(sums[name]))
        for name in ("tokens", "correct", "non_finite"):
            setattr(self, name, getattr(self, name) + int(sums[name]))

    def state(self) -> dict[str, Any]:
        """The sums as plain numbers, for a checkpoint."""
        return dict(vars(self))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Totals":
        """The inverse of `state`."""
        totals = cls()
        vars(totals).update(state)
        return totals

    @property
    def mean(self) -> float:
        """Nats per counted token; NaN when there is none."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of `mean` over tokens, taken as independent draws.

        Tokens of one document are not independent, so this is a lower bound of the uncertainty
        about other text; the spread over seeds is the one to compare variants by.
        """
        if self.tokens < 2:
            return math.nan
        variance = max(0.0, self.nats_squared / self.tokens - self.mean**2)
        return math.sqrt(variance / (self.tokens - 1))


def bits_per_byte(nats: float, utf8_bytes: int) -> float:
    """Summed nats of a text as bits per byte of its raw UTF-8.

    End-of-document tokens are predicted too: their nats count, and they add no byte.
    """
    return nats / math.log(2) / utf8_bytes


def evaluate(
    program: Callable[[Any, Any], Mapping[str, Any]],
    params: Any,
    batches: Iterable[Mapping[str, Any]],
) -> Totals:
    """Sums over all batches.

    Args:
        program: `glu_lab.training.programs.Programs.evaluate`.
        params: the model's parameters.
        batches: the validation set; padding has weight 0.
    """
    totals = Totals()
    previous = None
    for batch in batches:
        # One batch is computed while the sums of the one before are read.
        sums = program(params, batch)
        if previous is not None:
            totals.add(previous)
        previous = sums
    if previous is not None:
        totals.add(previous)
    return totals


def metrics(totals: Totals, *, utf8_bytes: int | None) -> dict[str, Any]:
    """What an evaluation reports.

    Args:
        totals: sums over the validation set.
        utf8_bytes: bytes of raw text that the loss pays for; None where targets are not the text.

    Returns:
        ``log_perplexity`` (nats per target token), its standard error, ``perplexity``,
        ``bits_per_byte``, ``accuracy``, ``tokens``, ``non_finite``. Undefined numbers are None.
    """

    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    mean = known(totals.mean)
    return {
        "log_perplexity": mean,
        "log_perplexity_se": known(totals.standard_error),
        "perplexity": None if mean is None or mean > 700 else math.exp(mean),
        "bits_per_byte": None
        if utf8_bytes is None or mean is None
        else bits_per_byte(totals.nats, utf8_bytes),
        "accuracy": totals.correct / totals.tokens if totals.tokens else None,
        "tokens": totals.tokens,
        "non_finite": totals.non_finite,
    }

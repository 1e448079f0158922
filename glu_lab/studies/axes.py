"""What varies in a study: named points, and small combinators over lists of them.

A point sets one or several config keys at once, so that a variant travels with its own width.
Nothing is evaluated: a point is a name and a mapping from dotted keys to plain values.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glu_lab.budget import match_width
from glu_lab.errors import SpecError
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant_name
from glu_lab.studies.overlay import apply_overlay

VARIANT_KEY = "model.ffn.variant"
WIDTH_KEY = "model.ffn.d_ff"


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting of a study's axes.

    Attributes:
        name: for tables and for `Study.baseline`.
        overlay: dotted config key → value.
    """

    name: str
    overlay: Mapping[str, Any]

    def __post_init__(self):
        if not self.name or not isinstance(self.name, str):
            raise SpecError(f"a point needs a name, got {self.name!r}.")
        if not isinstance(self.overlay, Mapping):
            raise SpecError(
                f"point {self.name!r} must map dotted keys to values, got {self.overlay!r}."
            )


Axis = tuple[Point, ...]


def axis(key: str, values: Iterable[Any]) -> Axis:
    """One key, several values: ``axis("model.ffn.variant", ["relu", "swiglu"])``.

    A variant's point is named by the variant, any other by ``key=value`` with the key's last part.

    Raises:
        SpecError: for no values.
    """
    values = tuple(values)
    if not values:
        raise SpecError(f"axis {key!r} has no values.")
    last = key.rsplit(".", 1)[-1]
    return tuple(
        Point(str(value) if key == VARIANT_KEY else f"{last}={value}", {key: value})
        for value in values
    )


def coupled(points: Mapping[str, Mapping[str, Any]]) -> Axis:
    """Named points that set several keys at once.

    Example:
        >>> [point.name for point in coupled({
        ...     "relu": {"model.ffn.variant": "relu", "model.ffn.d_ff": 3072},
        ...     "swiglu": {"model.ffn.variant": "swiglu", "model.ffn.d_ff": 2048},
        ... })]
        ['relu', 'swiglu']
    """
    if not points:
        raise SpecError("a coupled axis has no points.")
    return tuple(Point(name, dict(overlay)) for name, overlay in points.items())


def product(*axes: Sequence[Point]) -> Axis:
    """Every combination, the first axis slowest.

    Raises:
        SpecError: when two axes set the same key.
    """
    return tuple(_merge(combination) for combination in itertools.product(*axes))


def zip_(*axes: Sequence[Point]) -> Axis:
    """The axes side by side: first with first, second with second.

    Raises:
        SpecError: for axes of different lengths, or that set the same key.
    """
    lengths = [len(points) for points in axes]
    if len(set(lengths)) > 1:
        raise SpecError(
            f"zip_ needs axes of one length, got {lengths}; use product for all combinations."
        )
    return tuple(_merge(combination) for combination in zip(*axes, strict=True))


def chain(*axes: Sequence[Point]) -> Axis:
    """The points of one axis after those of another."""
    return tuple(itertools.chain(*axes))


def variants_matched(
    names: Sequence[str],
    base: Experiment,
    *,
    baseline: tuple[str, int] | None = None,
    match: str = "params",
    round_to: int = 1,
    rounding: str = "nearest",
) -> Axis:
    """Variants, each with the width that gives it the baseline's budget.

    Widths come from `glu_lab.budget.match_width`, with the biases that the base config gives the
    FFN. The baseline keeps its stated width.

    Args:
        names: variants or products of activations; the baseline may be among them.
        base: the config that the points will be laid over.
        baseline: variant and d_ff; None takes those of the base config.
        match: ``params``, ``macs`` or ``width``.
        round_to: widths are multiples of this.
        rounding: ``up``, ``down`` or ``nearest``.

    Returns:
        One point a variant, named by it.

    Raises:
        SpecError: for an unknown or ambiguous variant, or a width that cannot be matched.
    """
    if baseline is None:
        baseline = (variant_name(base.model.ffn), base.model.ffn.d_ff)
    reference = _ffn(base, baseline[0], baseline[1])
    points = []
    for name in names:
        spec = _ffn(base, name, baseline[1])
        if spec.branches == reference.branches:
            width = baseline[1]
        else:
            rest = {
                field.name: getattr(spec, field.name)
                for field in dataclasses.fields(spec)
                if field.name not in ("branches", "d_ff")
            }
            width = match_width(
                spec.branches, reference, match=match, round_to=round_to, rounding=rounding, **rest
            ).d_ff
        points.append(Point(name, {VARIANT_KEY: name, WIDTH_KEY: width}))
    return tuple(points)


def _ffn(base: Experiment, name: str, d_ff: int) -> FFN:
    return apply_overlay(base, {VARIANT_KEY: name, WIDTH_KEY: d_ff}).model.ffn


def _merge(points: Sequence[Point]) -> Point:
    overlay: dict[str, Any] = {}
    for point in points:
        repeated = sorted(overlay.keys() & point.overlay.keys())
        if repeated:
            raise SpecError(
                f"two axes set {', '.join(repeated)} (at {point.name!r}); each key belongs to one "
                "axis. Use coupled for points that set several keys, chain to put axes in a row."
            )
        overlay.update(point.overlay)
    return Point(", ".join(point.name for point in points), overlay)

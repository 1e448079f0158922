"""The table of failures, by group and by number."""

from collections.abc import Mapping

from glu_lab.conformance.failures.row import Failure
from glu_lab.conformance.failures.rows import (
    activation,
    alternatives,
    axes,
    boundary,
    gated,
    release,
    runtime,
    sharded,
)

#: Heading → rows, in the order of their numbers.
GROUPS: Mapping[str, tuple[Failure, ...]] = {
    "Axes and shapes": axes.ROWS,
    "Activation and dropout": activation.ROWS,
    "SwiGLU": gated.ROWS,
    "Boundaries": boundary.ROWS,
    "Training and runtime": tuple(
        sorted((*runtime.ROWS, *sharded.ROWS), key=lambda failure: failure.id)
    ),
    "Interpretation": alternatives.INTERPRETATION,
    "Alternative architectures": alternatives.ALTERNATIVES,
    "Release and rollback": release.ROWS,
}

#: Number → row.
TABLE: Mapping[int, Failure] = {row.id: row for rows in GROUPS.values() for row in rows}

assert list(TABLE) == list(range(1, 43))

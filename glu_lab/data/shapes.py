"""Shapes of batches from the Data Spec alone: no corpus is opened, no tokenizer trained."""

import dataclasses

import numpy as np

from glu_lab.data.pipeline import CausalRows, SpanCorruptionRows
from glu_lab.spec.experiment import Data


def batch_shapes(spec: Data, batch_size: int) -> dict[str, tuple[int, ...]]:
    """Name → shape of every array of a batch; all are int32.

    Args:
        spec: the Data Spec.
        batch_size: B.

    Raises:
        DataError: for lengths that do not fit, or too few sentinels.
    """
    # What a row holds depends on token ids; how long it is does not.
    if spec.objective == "span_corruption":
        rows = SpanCorruptionRows(spec, eos_id=0, first_sentinel=0)
    else:
        rows = CausalRows(spec, eos_id=0)
    return {name: (batch_size, *shape) for name, shape in rows.shapes.items()}


@dataclasses.dataclass(frozen=True)
class UnpreparedDataset:
    """In place of a `TextDataset`, for what asks it for nothing but shapes.

    Attributes:
        spec: the Data Spec.
    """

    spec: Data

    def batch_spec(self, batch_size: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """As `TextDataset.batch_spec`."""
        shapes = batch_shapes(self.spec, batch_size)
        return {name: (shape, np.dtype(np.int32)) for name, shape in shapes.items()}

"""Which number format each step of the arithmetic uses, one field a step."""

import dataclasses
from typing import Any, Literal

from glu_lab.spec.checks import check_choices

DType = Literal["float64", "float32", "bfloat16", "float16"]

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The number formats of a computation.

    Attributes:
        parameter_dtype: stored weights.
        compute_dtype: operands of matrix products, and materialised activations.
        activation_dtype: argument and value of φ; narrower formats than float32 are evaluated in
            float32 and rounded once.
        accumulation_dtype: sums inside matrix products.
        rounding_point: where the hidden state is rounded to `compute_dtype`: ``product`` multiplies
            the branches in `activation_dtype` and rounds once; ``branch`` rounds every φ first and
            multiplies in `compute_dtype`.
        gradient_accumulation_dtype: sum of gradients over micro-batches.
        optimizer_state_dtype: moments of the optimiser.
    """

    parameter_dtype: DType = "float32"
    compute_dtype: DType = "float32"
    activation_dtype: DType = "float32"
    accumulation_dtype: DType = "float32"
    rounding_point: Literal["product", "branch"] = "product"
    gradient_accumulation_dtype: DType = "float32"
    optimizer_state_dtype: DType = "float32"

    def __post_init__(self):
        check_choices(self)

    @classmethod
    def uniform(cls, dtype: DType) -> "Numerics":
        """Every step in one dtype: ``Numerics.uniform("float64")`` for a proof."""
        names = [f.name for f in dataclasses.fields(cls) if f.name.endswith("_dtype")]
        every: dict[str, Any] = dict.fromkeys(names, dtype)
        return cls(**every)

"""What one feed-forward sublayer costs, and which width makes two of them cost the same.

Everything here is exact: integers and `fractions.Fraction`, no JAX, no NumPy, no floating point.

* `ledger(spec)` counts parameters, multiply-accumulates and pointwise operations by component.
* `shape_ledger(spec, rows=…)` lists every named tensor from input to output with its bytes.
* `match_width(variant, baseline, match=…)` finds the width that spends a baseline's budget.
"""

from glu_lab.budget.counting import Ledger, MacItem, ParameterItem, PointwiseItem, ledger
from glu_lab.budget.matching import POLICIES, ROUNDINGS, Match, match_width
from glu_lab.budget.shapes import ShapeLedger, Tensor, shape_ledger

__all__ = [
    "POLICIES",
    "ROUNDINGS",
    "Ledger",
    "MacItem",
    "Match",
    "ParameterItem",
    "PointwiseItem",
    "ShapeLedger",
    "Tensor",
    "ledger",
    "match_width",
    "shape_ledger",
]

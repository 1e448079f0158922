"""How far two arrays are apart: absolutely, relatively, in units of the last place, as a share."""

import dataclasses
from typing import Any

import numpy as np

from glu_lab.oracle.tolerances import UNIT_ROUNDOFF, Tolerance, share


@dataclasses.dataclass(frozen=True)
class Compared:
    """Errors of one or several arrays against the oracle.

    Attributes:
        array: the one with the largest share.
        share: the largest error as a share of what is allowed; at most 1 passes.
        absolute, relative, ulps: the largest of each, over finite elements of all arrays. An ulp is
            the distance of the dtype's numbers at the reference value; a relative error is taken
            where the reference is not 0.
        disagreements: elements that are NaN or infinite on one side and something else on the
            other.
        dtype, contraction: of the tolerance of that array.
        rtol, atol, reason: that tolerance.
    """

    array: str
    share: float
    absolute: float
    relative: float
    ulps: float
    disagreements: int
    dtype: str
    contraction: int
    rtol: float
    atol: float
    reason: str

    @property
    def status(self) -> str:
        """``passed``, ``nonfinite`` or ``failed``."""
        if self.disagreements:
            return "nonfinite"
        return "passed" if self.share <= 1 else "failed"

    def join(self, other: "Compared") -> "Compared":
        """The errors of both; the array and its tolerance are those of the larger share."""
        worse = self if self.share >= other.share else other
        return dataclasses.replace(
            worse,
            absolute=max(self.absolute, other.absolute),
            relative=max(self.relative, other.relative),
            ulps=max(self.ulps, other.ulps),
            disagreements=self.disagreements + other.disagreements,
        )


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance from |value| to the dtype's next larger number, normal numbers throughout."""
    unit = UNIT_ROUNDOFF[dtype]
    smallest = {"float64": -1022, "float16": -14}.get(dtype, -126)
    _, exponent = np.frexp(np.abs(values))
    return np.ldexp(2 * unit, np.maximum(exponent - 1, smallest))


def compare(
    array: str, got: Any, want: Any, spread: Any, bound: Tolerance, dtype: str, contraction: int
) -> Compared:
    """One array against the oracle's.

    Args:
        array: its name.
        got, want: the result and the reference, of one shape.
        spread: the scale of rounding errors.
        bound: the tolerance.
        dtype: of the result, for ulps.
        contraction: n of the tolerance, for the record.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(got) & np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(got - want), 0.0)
        relative = np.where(finite & (want != 0), error / np.abs(want), 0.0)
        ulps = error / ulp(np.where(finite, want, 1.0), dtype)
    return Compared(
        array=array,
        share=share(got, want, spread, bound),
        absolute=float(error.max(initial=0.0)),
        relative=float(relative.max(initial=0.0)),
        ulps=float(ulps.max(initial=0.0)),
        disagreements=int(np.sum(~finite & ~same)),
        dtype=dtype,
        contraction=contraction,
        rtol=bound.rtol,
        atol=bound.atol,
        reason=bound.reason,
    )

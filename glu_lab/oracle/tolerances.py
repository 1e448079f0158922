"""How far a result may lie from the float64 oracle: one table, with the reason for each number.

An FFN's rounding errors have two sources. Every intermediate is rounded to the dtype of the
computation, once or a few times whatever the sizes; every sum of n terms is rounded n times in the
dtype of the accumulation. Errors of one rounding are taken as independent and uniform within the
unit roundoff u, standard deviation u/√3. Summed one after the other, n terms of equal size and
random sign carry √(n/6)·u times the root of their sum of squares; terms of one sign carry
√(n/9)·u times their sum (the model of Higham & Mary 2019, SIAM J. Sci. Comput. 41(5)). Hardware
that sums in blocks stays below. Every bound is five standard deviations: one element in 10⁶ or
fewer lies outside, and none of the seeded tests.

A gradient has the same two sources, with sums of its own: the upstream gradient through W_o over D,
then back through W_i over N·F (of the rows) or over the T rows (of a weight). The same terms hold,
with the longest sum for n and the gradient's own spread, `glu_lab.oracle.rounding`.

The oracle is fed the rounded inputs, so that reading the inputs costs nothing.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from glu_lab.errors import SpecError, UnknownNameError

#: Dtype → unit roundoff, half the distance from 1 to the next number: 2^−(bits + 1).
UNIT_ROUNDOFF: Mapping[str, float] = {
    "float64": 2.0**-53,  # 52 bits
    "float32": 2.0**-24,  # 23 bits
    "bfloat16": 2.0**-8,  # 7 bits
    "float16": 2.0**-11,  # 10 bits
}

#: Dtype → the size of an intermediate below which its error is no longer u times itself but u times
#: this. float16 has gradual underflow everywhere: its smallest normal number, 2^−14. The others are
#: flushed to zero below theirs, so that all of a number of that size may be lost. float64's is that
#: of the spread itself, whose squares the oracle adds in float64.
FLOOR: Mapping[str, float] = {
    "float64": 2.0**-500,
    "float32": 2.0**-126 * 2.0**24,
    "bfloat16": 2.0**-126 * 2.0**8,
    "float16": 2.0**-14,
}

#: Dtype → its largest number.
LARGEST: Mapping[str, float] = {
    "float64": (2.0 - 2.0**-52) * 2.0**1023,
    "float32": (2.0 - 2.0**-23) * 2.0**127,
    "bfloat16": (2.0 - 2.0**-7) * 2.0**127,
    "float16": (2.0 - 2.0**-10) * 2.0**15,
}


class Term(NamedTuple):
    """One summand of the tolerance: ``multiplier · n^power · u``.

    Attributes:
        multiplier: of u.
        power: of the contraction length n.
        of: whether u is that of the ``dtype`` of intermediates or of the ``accumulate`` dtype.
        rtol, atol: whether the summand is part of each.
        reason: where the number comes from.
    """

    multiplier: float
    power: float
    of: str
    rtol: bool
    atol: bool
    reason: str


TERMS: tuple[Term, ...] = (
    Term(1.0, 0.0, "dtype", True, False, "the output's own rounding, never more than u"),
    Term(
        3.0, 0.0, "dtype", False, True,
        "pre-activation, φ and product rounded: five deviations u/√3 of each, added as variances "
        "in the spread",
    ),
    Term(
        3.0, 0.0, "accumulate", False, True,
        "φ evaluated to a few units in the last place of the wide format",
    ),
    Term(
        2.0, 0.5, "accumulate", True, True,
        "n roundings of a sum: five deviations of √(n/6)·u, or of √(n/9)·u where all terms have "
        "one sign",
    ),
)  # fmt: skip

#: Above this share of the result a bound tells nothing.
_USELESS = 0.25


class Tolerance(NamedTuple):
    """|got − want| ≤ rtol·|want| + atol·spread, elementwise; see `share`.

    Attributes:
        rtol: share of the reference value.
        atol: share of the spread of rounding errors, `glu_lab.oracle.ffn.spread` of an output,
            `glu_lab.oracle.rounding.spread_backward` of gradients.
        reason: the table's terms with their numbers.
    """

    rtol: float
    atol: float
    reason: str


def tolerance(dtype: str, accumulate: str, contraction: int) -> Tolerance:
    """The tolerance of an FFN's output, or of a gradient, against the oracle.

    Args:
        dtype: of operands and intermediates, `Numerics.compute_dtype`.
        accumulate: of the sums inside of matrix products.
        contraction: n, the longest sum: of an output the larger of d_model and d_ff, of a gradient
            as `glu_lab.oracle.rounding.longest_sum` gives it.

    Raises:
        UnknownNameError: for a dtype that has no row.
        SpecError: for a contraction below 1, or one so long that the bound would tell nothing.

    Example:
        >>> rtol, atol, reason = tolerance("float32", "float32", 1024)
        >>> f"{rtol:.1e} {atol:.1e}"
        '3.9e-06 4.2e-06'
    """
    names = {"dtype": dtype, "accumulate": accumulate}
    for role, name in names.items():
        if name not in UNIT_ROUNDOFF:
            raise UnknownNameError(f"{role} of a tolerance", str(name), UNIT_ROUNDOFF)
    unit = {role: UNIT_ROUNDOFF[name] for role, name in names.items()}
    if isinstance(contraction, bool) or not isinstance(contraction, int) or contraction < 1:
        raise SpecError(f"a contraction length is an integer ≥ 1, got {contraction!r}.")
    sizes = [term.multiplier * contraction**term.power * unit[term.of] for term in TERMS]
    rtol = sum(size for size, term in zip(sizes, TERMS, strict=True) if term.rtol)
    atol = sum(size for size, term in zip(sizes, TERMS, strict=True) if term.atol)
    if max(rtol, atol) > _USELESS:
        constant = sum(t.multiplier * unit[t.of] for t in TERMS if t.atol and not t.power)
        growth = sum(t.multiplier * unit[t.of] for t in TERMS if t.atol and t.power)
        longest = math.floor(((_USELESS - constant) / growth) ** 2)
        raise SpecError(
            f"sums of {contraction} terms in {accumulate} may be {max(rtol, atol):.0%} off, which "
            f"tells nothing: accumulate in float32, or sum at most {longest} terms."
        )
    lines = [
        f"{size:.1e} = {term.multiplier:g}·{'√n·' if term.power else ''}u({names[term.of]}): "
        f"{term.reason}"
        for size, term in zip(sizes, TERMS, strict=True)
    ]
    return Tolerance(rtol, atol, f"n = {contraction}; " + "; ".join(lines))


class Precision(NamedTuple):
    """How far rounding may move a pre-activation, and how small it may be.

    Attributes:
        unit: of an intermediate, as a share of itself: two roundings to the dtype.
        sums: of a sum, as a share of the root of its terms' sum of squares.
        floor: the dtype's row of `FLOOR`.
        atol: of the tolerance that the spread is used with.
    """

    unit: float
    sums: float
    floor: float
    atol: float


def precision(dtype: str, accumulate: str, contraction: int) -> Precision:
    """What `tolerance` says of one pre-activation; arguments and errors are the same.

    Two sides of a kink are both right where rounding decides which of them an argument is on, and
    only there: a pre-activation's rounding to its dtype moves it by a share of itself, and so never
    across zero, while the roundings inside of its sum may.
    """
    bound = tolerance(dtype, accumulate, contraction)
    grown = [t for t in TERMS if t.atol and t.power]
    sums = sum(t.multiplier * contraction**t.power * UNIT_ROUNDOFF[accumulate] for t in grown)
    return Precision(2 * UNIT_ROUNDOFF[dtype], sums, FLOOR[dtype], bound.atol)


def share(got: Any, want: Any, spread: Any, bound: Tolerance) -> float:
    """The largest error as a share of what is allowed; at most 1 passes.

    Args:
        got: the result, of any dtype.
        want: the oracle's, the same shape.
        spread: the oracle's scale of rounding errors, the same shape.
        bound: from `tolerance`.

    Returns:
        max |got − want| / (rtol·|want| + atol·spread). Infinite where one is not finite and the
        other is something else, or where nothing is allowed and they differ.

    Raises:
        SpecError: when the shapes differ.
    """
    got, want, spread = (np.asarray(values, np.float64) for values in (got, want, spread))
    if not got.shape == want.shape == spread.shape:
        raise SpecError(
            f"result {got.shape}, reference {want.shape} and spread {spread.shape} must have one "
            "shape."
        )
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        shares = np.abs(got - want) / (bound.rtol * np.abs(want) + bound.atol * spread)
    shares = np.where(np.isfinite(got) & np.isfinite(want) & ~np.isnan(shares), shares, np.inf)
    return float(np.max(np.where(same, 0.0, shares), initial=0.0))

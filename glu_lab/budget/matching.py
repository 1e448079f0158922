"""The width at which one FFN spends what another one spends.

Parameters and multiply-accumulates of an FFN are affine in its width F:

    params(F) = (N·D + D + #branch biases + product bias)·F + (D if output bias) + learned scalars
    MACs(F)   = (N + 1)·D·F

so matching is the solution of one linear equation in exact fractions. For a gated FFN against a
classic one of width h_c it reads h_g = (2·D·h_c + b1·h_c + (b2 − bo)·D) / (3·D + bg + bu), with a
flag 0 or 1 for each bias. The rule goes back to Shazeer 2020 (arXiv 2002.05202), who cut d_ff to
2/3 so that three matrices hold what two did.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from glu_lab.budget.counting import ledger
from glu_lab.errors import BudgetError, SpecError, UnknownNameError
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.variants import variant, variant_name

Policy = Literal["width", "params", "macs"]
Rounding = Literal["up", "down", "nearest"]

#: What is held equal, and what that means.
POLICIES: Mapping[str, str] = {
    "width": "the same d_ff; a gated FFN then costs half as much again as a classic one (PaLM)",
    "params": "the same number of parameters in the sublayer (Shazeer 2020, LLaMA, T5 v1.1)",
    "macs": "the same multiply-accumulates per token, biases and pointwise work left out",
    "wallclock": "the same measured time per step; refused here, since it needs a measurement",
}

#: How a continuous width becomes a multiple of `round_to`; a tie of ``nearest`` goes up.
ROUNDINGS: Mapping[str, str] = {
    "up": "the least multiple that is not below the continuous width",
    "down": "the greatest multiple that is not above it",
    "nearest": "the closest multiple, the upper one where two are equally close",
}

Number = Fraction | Decimal | int | float | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """A matched FFN and how its width came about.

    Attributes:
        spec: the FFN at the realised width.
        baseline: the FFN whose budget was matched.
        match: the policy.
        multiplier: ρ, the part of the baseline's budget that was to be spent.
        round_to, rounding: how the width was rounded.
        continuous: the width that spends ρ of the budget exactly.
        derivation: the arithmetic, line by line.
    """

    spec: FFN
    baseline: FFN
    match: str
    multiplier: Fraction
    round_to: int
    rounding: str
    continuous: Fraction
    derivation: tuple[str, ...]

    @property
    def d_ff(self) -> int:
        """The realised width."""
        return self.spec.d_ff

    @property
    def params(self) -> int:
        """Parameters at the realised width."""
        return ledger(self.spec).params

    @property
    def baseline_params(self) -> int:
        """Parameters of the baseline."""
        return ledger(self.baseline).params

    @property
    def param_delta(self) -> int:
        """Parameters above (+) or below (−) the baseline's."""
        return self.params - self.baseline_params

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates at the realised width."""
        return ledger(self.spec).macs_per_token

    @property
    def baseline_macs_per_token(self) -> int:
        """Multiply-accumulates of the baseline."""
        return ledger(self.baseline).macs_per_token

    @property
    def mac_delta(self) -> int:
        """Multiply-accumulates per token above (+) or below (−) the baseline's."""
        return self.macs_per_token - self.baseline_macs_per_token


def match_width(
    text: str | tuple[Branch, ...],
    baseline: FFN,
    *,
    match: Policy | str,
    multiplier: Number = 1,
    round_to: int = 1,
    rounding: Rounding | str = "up",
    bias: bool | None = None,
    **fields: Any,
) -> Match:
    """Finds the width of a variant that spends a baseline's budget.

    Args:
        text: a variant's name or product (``"swiglu"``, ``"relu2*linear"``), or its branches.
        baseline: the FFN whose budget is matched; gives D too.
        match: a policy of `POLICIES`: ``width``, ``params`` or ``macs``.
        multiplier: ρ > 0, the part of the baseline's budget to spend. Decimals are taken as
            written: ``0.1`` and ``"0.1"`` are 1/10, ``"8/3"`` is 8/3.
        round_to: the realised width is a multiple of this.
        rounding: ``up``, ``down`` or ``nearest`` (a tie goes up).
        bias: as in `glu_lab.spec.variant`; with branches given, None keeps their own flags.
        **fields: further fields of `glu_lab.spec.FFN`, such as ``product_bias=True``.

    Returns:
        The match.

    Raises:
        BudgetError: for ``wallclock``, for a width that is stated as well as matched, for another
            d_model, and when no positive width fits.
        UnknownNameError: for an unknown variant, policy or rounding.
        SpecError: for a multiplier or `round_to` that is not positive.

    Example:
        >>> classic = variant("relu", d_model=4096, d_ff=16384)
        >>> found = match_width("swiglu", classic, match="params", round_to=256)
        >>> found.continuous, found.d_ff, found.param_delta
        (Fraction(32768, 3), 11008, 1048576)
    """
    ledger(baseline)
    if match == "wallclock":
        raise BudgetError(
            "match='wallclock' needs the measured step times of both FFNs on one device, and a "
            "width is computed here, not measured; match 'params' or 'macs' and compare the "
            "measured tokens per second."
        )
    if match not in POLICIES:
        raise UnknownNameError("match", str(match), POLICIES)
    if rounding not in ROUNDINGS:
        raise UnknownNameError("rounding", str(rounding), ROUNDINGS)
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise SpecError(f"round_to must be an integer ≥ 1, got {round_to!r}.")
    if "d_ff" in fields:
        raise BudgetError(
            f"d_ff={fields['d_ff']!r} is stated and match={match!r} would compute it; a stated "
            "width is never changed: leave out one of the two."
        )
    if fields.setdefault("d_model", baseline.d_model) != baseline.d_model:
        raise BudgetError(
            f"d_model={fields['d_model']!r} differs from the baseline's {baseline.d_model}; "
            "sublayers of two widths of the residual stream do not compare."
        )
    rho = _exact(multiplier)

    form = _at_width_one(text, bias, fields)
    budget, unit = _BUDGETS[match]
    slope, constant = _affine(form, budget)
    spent = budget(baseline)
    continuous = (rho * spent - constant) / slope
    d_ff = _round(continuous, round_to, rounding)
    if d_ff < 1:
        raise BudgetError(
            f"no width fits: match={match!r} asks for a width of {_show(continuous)}, "
            f"which is {d_ff} when rounded {rounding} to a multiple of {round_to}"
            + (
                "; use rounding='up' or a smaller round_to."
                if continuous > 0
                else f"; what does not depend on the width costs {constant:,} already."
            )
        )
    spec = form.replace(d_ff=d_ff)
    name = variant_name(spec)
    target = f"{_show(rho)} × {spent:,} = {_show(rho * spent)}" if rho != 1 else f"{spent:,}"
    fixed = f" + {constant:,}" if constant else ""
    derivation = (
        f"baseline {variant_name(baseline)} at d_ff {baseline.d_ff:,}: {spent:,} {unit}",
        f"{name} at width F: {f'{slope:,}·' if slope != 1 else ''}F{fixed} {unit}",
        f"solve for F: {target} → F = {_show(continuous)}",
        f"round {rounding} to a multiple of {round_to:,}: d_ff = {d_ff:,}"
        + (" (exact)" if d_ff == continuous else ""),
        f"at d_ff {d_ff:,}: {budget(spec):,} {unit}, {budget(spec) - spent:+,} on the baseline",
    )
    return Match(
        spec=spec,
        baseline=baseline,
        match=match,
        multiplier=rho,
        round_to=round_to,
        rounding=rounding,
        continuous=continuous,
        derivation=derivation,
    )


#: What each policy counts, and in which unit.
_BUDGETS = {
    "width": (lambda spec: spec.d_ff, "hidden channels"),
    "params": (lambda spec: ledger(spec).params, "parameters"),
    "macs": (lambda spec: ledger(spec).macs_per_token, "MACs per token"),
}


def _at_width_one(text: str | tuple[Branch, ...], bias: bool | None, fields: dict) -> FFN:
    """The variant at width 1; its real width is what is looked for."""
    if isinstance(text, str):
        return variant(text, d_ff=1, bias=bias, **fields)
    branches = tuple(text)
    if bias is not None:
        branches = tuple(dataclasses.replace(branch, bias=bias) for branch in branches)
        fields.setdefault("output_bias", bias)
    return FFN(d_ff=1, branches=branches, **fields)


def _affine(form: FFN, budget) -> tuple[int, int]:
    """Slope and constant of a count that is affine in the width."""
    one, two = budget(form.replace(d_ff=1)), budget(form.replace(d_ff=2))
    return two - one, 2 * one - two


def _round(value: Fraction, multiple: int, rounding: str) -> int:
    parts = value / multiple
    if rounding == "up":
        return math.ceil(parts) * multiple
    if rounding == "down":
        return math.floor(parts) * multiple
    # Python's round() sends ties to the even neighbour; a width rule must not depend on parity.
    return math.floor(parts + Fraction(1, 2)) * multiple


# Lengths are bounded so that no text can ask for a number of astronomic size.
_NUMBER = re.compile(
    r"\s*\+?(\d{1,40}/\d{1,40}|(\d{1,40}\.?\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,2})?)\s*"
)


def _exact(value: Number) -> Fraction:
    """A multiplier as an exact positive fraction; a float counts as the decimal it prints as."""
    # float() first: a NumPy scalar is a float whose repr is not a number.
    text = repr(float(value)) if isinstance(value, float) else str(value)
    if not isinstance(value, bool) and _NUMBER.fullmatch(text) and not re.search(r"/0+\s*$", text):
        fraction = Fraction(text)
        if fraction > 0:
            return fraction
    raise SpecError(
        f"multiplier must be a positive number, for example 1, 0.5, '1.3' or '8/3'; got {value!r}."
    )


def _show(value: Fraction) -> str:
    """A fraction exactly; with a rounded decimal beside it where it has no short one."""
    hundredths = round(value * 100)
    whole, part = divmod(abs(hundredths), 100)
    decimal = f"{'-' if hundredths < 0 else ''}{whole:,}" + (
        f".{part:02}".rstrip("0") if part else ""
    )
    return decimal if hundredths == value * 100 else f"{value} ≈ {decimal}"

"""Width matching: exact, minimal, and never a silent change of what was asked for."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.budget import POLICIES, ledger, match_width
from glu_lab.errors import BudgetError, SpecError, UnknownNameError
from glu_lab.spec import FFN, Activation, Branch, variant

GOLDEN = json.loads((Path(__file__).parent / "golden" / "widths.json").read_text("utf-8"))["rows"]
CLASSIC = variant("relu", d_model=4096, d_ff=16384)

widths = st.integers(1, 10**6)
names = st.sampled_from(["relu", "swiglu", "drelu", "xielu", "silu*relu*linear"])


@st.composite
def matches(draw):
    """A variant, a baseline and a policy, with every kind of bias."""
    d_model = draw(widths)
    baseline = variant(
        draw(names), d_model=d_model, d_ff=draw(widths), bias=draw(st.booleans()),
        product_bias=draw(st.booleans()), output_bias=draw(st.booleans()),
    )  # fmt: skip
    options = {
        "match": draw(st.sampled_from(["width", "params", "macs"])),
        "multiplier": draw(st.fractions(Fraction(1, 3), 3, max_denominator=50)),
        "round_to": draw(st.integers(1, 300)),
        "bias": draw(st.booleans()),
        "product_bias": draw(st.booleans()),
        "output_bias": draw(st.booleans()),
    }
    return draw(names), baseline, options


def budget(spec: FFN, match: str) -> int:
    """The quantity that a policy holds equal."""
    counted = ledger(spec)
    return {"width": spec.d_ff, "params": counted.params, "macs": counted.macs_per_token}[match]


def cannot_fit(name, baseline, options) -> bool:
    """Whether even width 1 costs more than the budget (a wide bias against a tiny baseline)."""
    form = {k: options[k] for k in ("bias", "product_bias", "output_bias")}
    spec = variant(name, d_model=baseline.d_model, d_ff=1, **form)
    return budget(spec, options["match"]) > options["multiplier"] * budget(
        baseline, options["match"]
    )


@given(matches())
def test_up_is_the_least_multiple_that_spends_the_budget(case):
    name, baseline, options = case
    if cannot_fit(name, baseline, options):
        return
    found = match_width(name, baseline, rounding="up", **options)
    match, multiple = options["match"], options["round_to"]
    wanted = options["multiplier"] * budget(baseline, match)
    assert found.d_ff % multiple == 0
    assert budget(found.spec, match) >= wanted
    if found.d_ff > multiple:
        assert budget(found.spec.replace(d_ff=found.d_ff - multiple), match) < wanted


@given(matches())
def test_down_is_the_greatest_multiple_within_the_budget(case):
    name, baseline, options = case
    match, multiple = options["match"], options["round_to"]
    try:
        found = match_width(name, baseline, rounding="down", **options)
    except BudgetError:
        form = {k: options[k] for k in ("bias", "product_bias", "output_bias")}
        smallest = variant(name, d_model=baseline.d_model, d_ff=multiple, **form)
        assert budget(smallest, match) > options["multiplier"] * budget(baseline, match)
        return
    wanted = options["multiplier"] * budget(baseline, match)
    assert found.d_ff % multiple == 0
    assert budget(found.spec, match) <= wanted
    assert budget(found.spec.replace(d_ff=found.d_ff + multiple), match) > wanted


@given(matches())
def test_nearest_is_never_more_than_half_a_multiple_away_and_ties_go_up(case):
    name, baseline, options = case
    if cannot_fit(name, baseline, options):
        return
    up = match_width(name, baseline, rounding="up", **options)
    try:
        found = match_width(name, baseline, rounding="nearest", **options)
    except BudgetError:
        assert up.continuous < Fraction(options["round_to"], 2)
        return
    difference = found.d_ff - found.continuous
    half = Fraction(options["round_to"], 2)
    assert -half < difference <= half


@given(matches())
def test_a_whole_continuous_width_spends_the_budget_exactly(case):
    name, baseline, options = case
    if cannot_fit(name, baseline, options):
        return
    found = match_width(name, baseline, rounding="up", **options)
    if found.continuous == found.d_ff:
        assert budget(found.spec, options["match"]) == options["multiplier"] * budget(
            baseline, options["match"]
        )
    else:
        assert budget(found.spec, options["match"]) != options["multiplier"] * budget(
            baseline, options["match"]
        )


@given(matches())
def test_differences_are_signed_and_exact(case):
    name, baseline, options = case
    if cannot_fit(name, baseline, options):
        return
    found = match_width(name, baseline, **options)
    assert found.param_delta == ledger(found.spec).params - ledger(baseline).params
    assert found.mac_delta == (ledger(found.spec).macs_per_token - ledger(baseline).macs_per_token)
    assert all(isinstance(delta, int) for delta in (found.param_delta, found.mac_delta))


@given(
    d=widths, h=widths, b1=st.booleans(), b2=st.booleans(), bg=st.booleans(), bu=st.booleans(),
    bo=st.booleans(),
)  # fmt: skip
def test_closed_form_bias_by_bias(d, h, b1, b2, bg, bu, bo):
    baseline = FFN(
        d_model=d,
        d_ff=h,
        branches=(Branch(activation=Activation("relu"), bias=b1),),
        output_bias=b2,
    )
    gated = (
        Branch(activation=Activation("silu"), bias=bg),
        Branch(activation=Activation("linear"), bias=bu),
    )
    expected = Fraction(2 * d * h + b1 * h + (b2 - bo) * d, 3 * d + bg + bu)
    if expected <= 0:
        return
    found = match_width(gated, baseline, match="params", output_bias=bo)
    assert found.continuous == expected
    assert found.d_ff == max(1, math.ceil(expected))


@pytest.mark.parametrize("row", GOLDEN, ids=[row["model"] for row in GOLDEN])
def test_published_widths(row):
    baseline = variant(row["baseline"], d_model=row["d_model"], d_ff=row["baseline_d_ff"])
    if row["match"] == "stated":
        stated = variant(row["variant"], d_model=row["d_model"], d_ff=row["d_ff"])
        assert stated.d_ff == row["d_ff"]
        assert ledger(stated).params == (stated.num_branches + 1) * row["d_model"] * row["d_ff"]
        return
    found = match_width(
        row["variant"],
        baseline,
        **{k: row[k] for k in ("match", "multiplier", "round_to", "rounding")},
    )
    assert found.d_ff == row["d_ff"]


def test_every_golden_row_names_its_source():
    assert all(row["source"] for row in GOLDEN)
    assert len({row["model"] for row in GOLDEN}) == len(GOLDEN)


@pytest.mark.parametrize(
    ("round_to", "rounding", "d_ff"),
    [
        (256, "up", 11008),
        (64, "up", 10944),
        (64, "down", 10880),
        (64, "nearest", 10944),
        (1, "down", 10922),
    ],
)
def test_one_continuous_width_under_each_rounding(round_to, rounding, d_ff):
    found = match_width("swiglu", CLASSIC, match="params", round_to=round_to, rounding=rounding)
    assert (found.continuous, found.d_ff) == (Fraction(32768, 3), d_ff)


def test_a_tie_goes_up():
    baseline = variant("relu", d_model=4, d_ff=6)  # 48 parameters: gated width 4
    assert match_width("swiglu", baseline, match="params", round_to=8, rounding="nearest").d_ff == 8
    wider = variant("relu", d_model=4, d_ff=18)  # gated width 12, between 8 and 16
    assert match_width("swiglu", wider, match="params", round_to=8, rounding="nearest").d_ff == 16


@pytest.mark.parametrize("written", [0.1, "0.1", "1/10", Fraction(1, 10), "1e-1"])
def test_a_multiplier_is_the_decimal_that_was_written(written):
    found = match_width("relu", CLASSIC, match="width", multiplier=written)
    assert found.multiplier == Fraction(1, 10)
    assert found.continuous == Fraction(16384, 10)


@pytest.mark.parametrize(
    "bad", [0, -1, "0", "-1/2", "1/0", "nan", "inf", float("inf"), True, "", "two", "1e999999999"]
)
def test_a_multiplier_that_is_no_positive_number_is_refused(bad):
    with pytest.raises(SpecError, match="multiplier must be a positive number"):
        match_width("swiglu", CLASSIC, match="params", multiplier=bad)


def test_a_stated_width_is_never_changed():
    with pytest.raises(BudgetError, match="a stated width is never changed"):
        match_width("swiglu", CLASSIC, match="params", d_ff=11008)
    assert variant("swiglu", d_model=4096, d_ff=11008).d_ff == 11008


def test_wall_clock_has_its_place_but_is_not_computed():
    assert "wallclock" in POLICIES
    with pytest.raises(BudgetError, match="measured"):
        match_width("swiglu", CLASSIC, match="wallclock")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"match": "parms"}, "did you mean 'params'"),
        ({"match": "params", "rounding": "upp"}, "did you mean 'up'"),
        ({"match": "params", "round_to": 0}, "round_to must be an integer ≥ 1, got 0"),
        ({"match": "params", "round_to": True}, "round_to must be an integer ≥ 1, got True"),
        ({"match": "params", "d_model": 5}, "differs from the baseline's 4096"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        match_width("swiglu", CLASSIC, **options)


def test_no_width_at_all_is_refused():
    tiny = variant("relu", d_model=4, d_ff=3)
    with pytest.raises(BudgetError, match="is 0 when rounded down to a multiple of 8"):
        match_width("swiglu", tiny, match="params", round_to=8, rounding="down")
    with pytest.raises(BudgetError, match="does not depend on the width costs 4"):
        match_width("swiglu", tiny, match="params", multiplier="1/100", output_bias=True)


def test_an_unknown_variant_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'swiglu'"):
        match_width("swigla", CLASSIC, match="params")


def test_the_derivation_shows_the_arithmetic():
    found = match_width("swiglu", CLASSIC, match="params", round_to=256)
    assert found.derivation == (
        "baseline relu at d_ff 16,384: 134,217,728 parameters",
        "swiglu at width F: 12,288·F parameters",
        "solve for F: 134,217,728 → F = 32768/3 ≈ 10,922.67",
        "round up to a multiple of 256: d_ff = 11,008",
        "at d_ff 11,008: 135,266,304 parameters, +1,048,576 on the baseline",
    )

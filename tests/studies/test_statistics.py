"""Paired comparisons against SciPy, and the sentences that they support."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from glu_lab.errors import SpecError
from glu_lab.studies.statistics import compare, estimate, holm, paired

losses = st.floats(0.5, 8.0)


@given(st.lists(st.tuples(losses, losses), min_size=2, max_size=12))
def test_a_paired_difference_is_scipys(pairs):
    ours, baseline = (dict(enumerate(column)) for column in zip(*pairs, strict=True))
    found = paired("a", ours, "b", baseline).estimate
    a, b = (np.array([table[s] for s in sorted(table)]) for table in (ours, baseline))
    assert found.mean == pytest.approx(np.mean(a - b), rel=1e-9, abs=1e-12)
    assert found.se == pytest.approx(stats.sem(a - b), rel=1e-6, abs=1e-12)
    if np.std(a - b) < 1e-9:  # SciPy's t is undefined or rounding noise there.
        return
    reference = stats.ttest_rel(a, b)
    interval = reference.confidence_interval(0.95)
    assert found.ci95 == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    assert found.p_value == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-9)


def test_pairing_removes_what_seeds_share():
    """Seeds differ by 1, points by 0.01 within each seed: only pairing sees it."""
    seeds = {0: 2.0, 1: 3.0, 2: 4.0}
    better = {0: 1.990, 1: 2.991, 2: 3.989}
    found = paired("b", better, "a", seeds)
    assert found.separated
    assert found.estimate.mean == pytest.approx(-0.01)
    p_unpaired = np.asarray(stats.ttest_ind(list(better.values()), list(seeds.values())))[1]
    assert p_unpaired > 0.9


def test_one_seed_gives_a_difference_but_no_interval():
    found = estimate([2.5])
    assert (found.n, found.mean, found.se, found.ci95) == (1, 2.5, None, None)
    text = " ".join(compare({"relu": {0: 2.0}, "swiglu": {0: 1.0}}, "relu").statements)
    assert "nothing is said of: swiglu" in text
    assert "Better" not in text


def test_only_common_seeds_are_paired_and_that_is_said():
    comparison = compare({"relu": {0: 2.0, 1: 2.1}, "swiglu": {0: 1.9, 1: 1.98, 2: 9.0}}, "relu")
    difference = comparison.differences["swiglu"]
    assert difference.seeds == (0, 1)
    assert difference.unpaired == (2,)
    assert difference.estimate.mean == pytest.approx(-0.11)
    assert comparison.means["swiglu"].mean == pytest.approx((1.9 + 1.98 + 9.0) / 3)
    assert any("paired on seeds 0, 1 only" in text for text in comparison.statements)


def test_points_that_intervals_do_not_separate_are_not_ranked():
    results = {
        "relu": {0: 2.00, 1: 2.02, 2: 1.98},
        "gelu_tanh": {0: 1.99, 1: 2.03, 2: 1.97},
        "swiglu": {0: 1.900, 1: 1.921, 2: 1.879},
    }
    text = compare(results, "relu").statements
    assert any(s.startswith("Better than relu") and "swiglu" in s for s in text)
    assert any(s.startswith("Not separated from relu: gelu_tanh") for s in text)
    assert any("not an order: gelu_tanh and relu" in s for s in text)
    assert any(s.startswith("Adjacent ranks that are separated: swiglu before") for s in text)


def test_a_worse_point_is_called_worse():
    results = {"relu": {0: 1.0, 1: 1.1, 2: 1.2}, "x": {0: 1.5, 1: 1.61, 2: 1.69}}
    assert any(s.startswith("Worse than relu") for s in compare(results, "relu").statements)


def test_a_baseline_without_results_gives_no_differences():
    comparison = compare({"relu": {}, "swiglu": {0: 1.0, 1: 1.1}}, "relu")
    assert comparison.differences["swiglu"].estimate.mean is None
    assert "no complete run" in comparison.statements[0]


def test_holm_steps_down():
    # Holm 1979 with level 0.05: 0.01 ≤ 0.05/4, 0.015 ≤ 0.05/3, 0.03 > 0.05/2, and then it stops.
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.015}) == ["a", "d"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_averaged(bad):
    with pytest.raises(SpecError, match="finite"):
        estimate([1.0, bad])

"""Covering arrays: all pairs, no more rows than needed, none that may not be."""

import itertools

import pytest

from glu_lab.conformance.pairs import covering

AXES = {
    "dtype": ("f64", "f32", "bf16", "f16"),
    "probe": ("a", "b", "c"),
    "mode": ("in", "train"),
    "spec": tuple("pqrstu"),
}


def pairs_of(rows):
    return {pair for row in rows for pair in itertools.combinations(sorted(row.items()), 2)}


def all_pairs(axes):
    names = sorted(axes)
    return {
        ((one, a), (other, b))
        for one, other in itertools.combinations(names, 2)
        for a, b in itertools.product(axes[one], axes[other])
    }


@pytest.mark.parametrize("kept", [tuple(AXES), ("dtype", "probe"), ("spec", "mode", "probe")])
def test_every_pair_of_values_stands_in_a_row(kept):
    axes = {name: AXES[name] for name in kept}
    found = covering(axes)
    assert pairs_of(found.rows) == all_pairs(axes)
    assert not found.impossible
    assert all(row.keys() == axes.keys() for row in found.rows)
    # No array is smaller than its two longest axes' product; a good greedy one is hardly longer.
    longest, second, *_ = sorted(map(len, axes.values()), reverse=True)
    assert longest * second <= len(found.rows) <= 1.3 * longest * second


def test_rows_are_the_same_in_every_run():
    assert covering(AXES) == covering(AXES)


def test_what_may_not_meet_is_in_no_row_and_named_and_all_else_is_covered():
    def allowed(row):
        return not (row.get("dtype") == "f16" and row.get("spec") in ("p", "q"))

    found = covering(AXES, allowed)
    forbidden = {(("dtype", "f16"), ("spec", spec)) for spec in "pq"}
    assert {tuple(sorted(pair)) for pair in found.impossible} == forbidden
    assert pairs_of(found.rows) == all_pairs(AXES) - forbidden


def test_a_rule_of_three_axes_costs_no_pair():
    """Each pair of the three can be had, only not all three at once."""

    def allowed(row):
        return (row.get("dtype"), row.get("probe"), row.get("mode")) != ("f16", "c", "train")

    found = covering(AXES, allowed)
    assert pairs_of(found.rows) == all_pairs(AXES) and not found.impossible
    assert all(map(allowed, found.rows))


def test_an_axis_alone_has_no_pairs():
    assert covering({"dtype": ("f64", "f32")}).rows == ()

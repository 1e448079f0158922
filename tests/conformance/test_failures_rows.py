"""Every built failure is planted, found by its check and by no naive test, and its twin passes."""

import dataclasses

import numpy as np
import pytest

from glu_lab.conformance.failures import CHECKS, TABLE, run
from glu_lab.conformance.failures.rows.boundary import SENTENCES
from glu_lab.conformance.failures.stored import Converted
from glu_lab.oracle.properties import PROPERTIES, Property

#: A property that everything has.
HOLDS = Property("all is well", lambda spec: True, lambda subject, params, x, spec: 0.0)

BUILT = [number for number, row in TABLE.items() if row.built]
#: Many compilations, or a training run.
SLOW = {9, 23, 24, 26, 33, 41}
#: A shape error is how these show, though not all of their faults have one.
SHAPE_ERRORS = {2, 3, 14}


def marked(numbers):
    return [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in numbers]


@pytest.mark.parametrize("number", marked(BUILT))
def test_every_planted_fault_is_found_and_no_twin_raises_an_alarm(number, tmp_path):
    result = run(TABLE[number])
    for trial in result.trials:
        assert not trial.found.passes, (trial.fault, trial.found.text)
        assert trial.clean.passes, (trial.fault, trial.clean.text)
    assert result.status == "detected" and result.clean_passes
    assert result.naive_check_passes == (number not in SHAPE_ERRORS)
    assert any(trial.naive for trial in result.trials), "a fault that nobody could miss"


@pytest.mark.parametrize("number", marked(n for n in BUILT if n != 33))
def test_the_naive_test_and_the_checks_see_nothing_wrong_with_the_twins(number, tmp_path):
    """Else what the naive test says of the faults would mean nothing."""
    planted = TABLE[number].build(tmp_path)
    assert planted and {each.check for each in planted} <= CHECKS.keys()
    for each in planted:
        assert each.clean.seems_right(), each.name
        assert each.fault is not each.clean


@pytest.mark.parametrize(
    ("part", "instead", "number"),
    [
        ("glu_lab.layers.ffn.check", lambda *_: None, 3),
        ("glu_lab.layouts.inventory._check_complete", lambda *_: None, 17),
        ("glu_lab.layouts.proof.compare", lambda *_: 0.0, 5),
        ("glu_lab.layouts.proof.compare", lambda *_: 0.0, 16),
        ("glu_lab.layouts.claims._sorted", lambda branches: [], 8),
        ("glu_lab.oracle.properties.PROPERTIES", dict.fromkeys(PROPERTIES, HOLDS), 1),
        ("glu_lab.oracle.properties.PROPERTIES", dict.fromkeys(PROPERTIES, HOLDS), 18),
        ("glu_lab.oracle.properties.differences", lambda *_: (np.ones(1), 0.0), 7),
        ("glu_lab.studies.study._refuse_unmatched", lambda *_: None, 15),
        ("glu_lab.studies.study._refuse_unmatched", lambda *_: None, 27),
    ],
)
def test_it_is_the_library_that_finds_them(part, instead, number, monkeypatch):
    """Without its part of the library the row is missed: the lab has no check of its own."""
    monkeypatch.setattr(part, instead)
    assert run(TABLE[number]).status == "missed"


def test_the_failures_of_packed_weights_are_all_planted(tmp_path):
    """Cut in contiguous parts, by value first, interleaved, once per rank."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    names = [each.name for each in TABLE[24].build(tmp_path / "a")]
    names += [each.name for each in TABLE[25].build(tmp_path / "b")]
    for words in ("of 4 ranks, joined and cut for 1", "of 1 ranks, joined and cut for 4",
                  "FSDP", "bias added by each of 2", "bias added by each of 4",
                  "[up; gate]", "blocks of 1 alternate", "blocks of 32 alternate"):  # fmt: skip
        assert any(words in name for name in names), words


def test_the_wrong_cut_has_the_right_rows_in_the_wrong_places(tmp_path):
    """Any cut keeps the rows of a packed weight as a multiset: their order is what is wrong."""
    words = "of 4 ranks, joined and cut for 1"
    (planted,) = [each for each in TABLE[24].build(tmp_path) if words in each.name]
    arrays = []
    for each in (planted.fault, planted.clean):
        assert isinstance(each, Converted)
        arrays.append(each.target[0]["linear_fc1.weight"])
    wrong, right = arrays
    assert not np.array_equal(wrong, right)
    np.testing.assert_array_equal(np.sort(wrong, axis=0), np.sort(right, axis=0))


def test_each_claims_sentences_are_planted_one_by_one(tmp_path):
    for number, sentences in SENTENCES.items():
        (tmp_path / str(number)).mkdir()
        names = [each.name for each in TABLE[number].build(tmp_path / str(number))]
        assert all(any(sentence in name for name in names) for sentence in sentences)


def test_a_result_is_as_good_as_its_worst_fault():
    result = run(TABLE[3])
    first, second = result.trials
    missed = dataclasses.replace(second, found=dataclasses.replace(second.found, passes=True))
    spoilt = dataclasses.replace(result, trials=[first, missed])
    assert result.status == "detected" and spoilt.status == "missed" and not spoilt.good
    alarmed = dataclasses.replace(first, clean=dataclasses.replace(first.clean, passes=False))
    spoilt = dataclasses.replace(result, trials=[alarmed, second])
    assert spoilt.status == "detected" and not spoilt.clean_passes and not spoilt.good
    assert spoilt.evidence.startswith("false alarm")

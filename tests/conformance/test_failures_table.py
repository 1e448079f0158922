"""The table of failures: complete, with what is not built, and the page that is made of it."""

import importlib
import re
from pathlib import Path

import pytest

from glu_lab.conformance.failures import CHECKS, GROUPS, TABLE, choose, markdown
from glu_lab.conformance.failures.row import NOT_BUILT
from glu_lab.errors import SpecError

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"

#: Of sublayers and analyses that the lab does not have.
LATER = {28, 29, 30, 31, 32, 34, 35, 36, 37, 38, 39}


def test_every_failure_is_a_row_and_those_of_later_rooms_are_not_built():
    assert list(TABLE) == list(range(1, 43))
    assert {number for number, row in TABLE.items() if row.build == NOT_BUILT} == LATER
    assert {number for number, row in TABLE.items() if row.kind == "claim"} == {20, 21, 22}


def test_every_row_says_what_is_seen_why_what_finds_it_and_what_to_do():
    for row in TABLE.values():
        for text in (row.title, row.symptom, row.cause, row.detector, row.fix):
            assert len(text) > 9, row.id
    assert len({row.title for row in TABLE.values()}) == len(TABLE)


def test_the_page_is_current():
    assert PAGE.read_text("utf-8") == markdown(GROUPS, CHECKS), (
        "run: python -m glu_lab.conformance.failures > docs/failures.md"
    )


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_by_parts_of_the_library_that_exist(name):
    for place in CHECKS[name].by.split(", "):
        parts = f"glu_lab.{place}".split(".")
        for depth in range(len(parts), 1, -1):
            try:
                found = importlib.import_module(".".join(parts[:depth]))
            except ModuleNotFoundError:
                continue
            for attribute in parts[depth:]:
                if not hasattr(found, attribute):
                    # A field without a default is no attribute of its class.
                    assert attribute in found.__dataclass_fields__, place
                    break
                found = getattr(found, attribute)
            break
        else:
            pytest.fail(f"{place} is nowhere")


def test_rows_are_chosen_by_number_in_the_tables_order():
    assert [row.id for row in choose(["25", "3", 16, "3"])] == [3, 16, 25]
    assert [row.id for row in choose([])] == list(TABLE)


@pytest.mark.parametrize("wrong", ["0", "43", "-1", "1.5", "swiglu", ""])
def test_an_unknown_number_is_refused_with_the_range(wrong):
    with pytest.raises(SpecError, match=rf"no failure '{re.escape(wrong)}'.*1 to 42"):
        choose(["1", wrong])

"""The table of mutations cannot rot: its texts stand in the code, its tests exist."""

import ast
import functools
from pathlib import Path

import pytest

from tests.mutation.mutation import Mutation
from tests.mutation.mutations import CONTROL, MUTATIONS
from tests.mutation.report import FLOOR, as_json, as_markdown, passed, share
from tests.mutation.runner import Outcome, sample
from tests.mutation.workshop import Result, tree_files

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutation", [CONTROL, *MUTATIONS], ids=lambda m: m.id)
def test_a_row_can_be_planted_and_its_tests_exist(mutation):
    spoilt = mutation.applied((ROOT / mutation.file).read_text(encoding="utf-8"))
    compile(spoilt, mutation.file, "exec")  # a file that is no Python is no evidence
    assert mutation.old != mutation.new
    assert mutation.file.startswith("glu_lab/"), "a fault in the product, not in its tests"
    assert mutation.why and mutation.tests
    kinds = {test.startswith("tests/eight_devices/") for test in mutation.tests}
    assert len(kinds) == 1, "one process has one number of devices"
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), file
        assert not name or name.partition("[")[0] in names_in(file), test


def test_there_are_enough_rows_of_every_kind():
    ids = [mutation.id for mutation in MUTATIONS]
    assert len(ids) == len(set(ids)) >= 60
    areas = {mutation.area for mutation in MUTATIONS}
    assert areas >= {
        "activations", "branch order", "packing", "bias", "dropout", "psum placement",
        "loss averaging", "learning rate", "masks", "budgets", "tolerances and oracle", "layouts",
        "positions", "norm", "optimiser and accumulation", "checkpoints",
    }  # fmt: skip


def test_a_sample_is_spread_over_areas_and_repeats():
    ten = sample(MUTATIONS, 10, 0)
    assert len({mutation.area for mutation in ten}) == 10
    assert ten == sample(MUTATIONS, 10, 0) != sample(MUTATIONS, 10, 1)
    assert set(sample(MUTATIONS, 1000, 0)) == {m for m in MUTATIONS if not m.survives}


def test_old_text_that_is_gone_or_ambiguous_is_refused():
    row = Mutation("name", "area", "file", old="a + b", new="a - b", why="", tests=("tests",))
    assert row.applied("x = a + b") == "x = a - b"
    for text, times in (("x = a - b", 0), ("x = a + b + (a + b)", 2)):
        with pytest.raises(ValueError, match=f"stands {times} times in file, and must stand there"):
            row.applied(text)


def outcome(status, survives=""):
    row = Mutation("name", "area", "file", "a", "b", "why", ("tests/x.py",), survives)
    return Outcome(row, Result(status, message="E"))


def test_a_run_fails_below_the_floor_and_for_what_is_not_explained():
    caught = [outcome("caught")] * 19
    assert FLOOR == 0.95
    assert passed([*caught, outcome("survived", "an equivalent program")])
    assert not passed([*caught, outcome("survived")])
    assert not passed([*caught, outcome("timeout")])
    assert not passed([*caught, outcome("broken", "an explanation does not mend it")])
    two = [*caught[1:], *[outcome("survived", "an equivalent program")] * 2]
    assert share(two) == 18 / 20 and not passed(two)
    assert not passed([])


def test_a_report_names_what_was_not_caught_and_no_place():
    rows = [outcome("caught"), outcome("survived", "an equivalent program")]
    page = as_markdown(rows)
    assert "1 of 2 caught (50.0%" in page and "`name` (survived): an equivalent program" in page
    assert as_json(rows)["totals"] == {"caught": 1, "survived": 1, "timeout": 0, "broken": 0}


def test_a_copy_has_what_git_has_and_no_environment():
    files = tree_files(ROOT)
    assert {"pyproject.toml", "glu_lab/activations.py", "tests/conftest.py"} <= set(files)
    assert not [name for name in files if name.startswith((".venv", ".git/"))]
    assert len(files) == len(set(files))

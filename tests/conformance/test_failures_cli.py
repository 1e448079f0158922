"""``glu-lab failure-lab``: its answers, its exit code, and a check that is turned off."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from glu_lab.cli.failure_lab import command_reports
from glu_lab.cli.main import main
from glu_lab.conformance.failures import CHECKS, TABLE, trained
from glu_lab.conformance.failures.row import Finding
from glu_lab.conformance.failures.wording import scan

RESULTS = Path(__file__).parents[2] / "results" / "conformance"

#: Check → a row that it alone can find, the quickest.
ROW_OF = {
    "oracle": 12,
    "gradients": 23,
    "permutation": 1,
    "jacobian": 18,
    "branch exchange": 13,
    "bends": 7,
    "parameters": 3,
    "fused values": 26,
    "fused gradients": 41,
    "rounding point": 26,
    "reconciliation": 4,
    "row proof": 16,
    "conversion": 42,
    "manifest": 40,
    "matched budget": 15,
    "sharding rules": 24,
    "loss before and after": 33,
    "wording": 20,
}
SLOW = {23, 24, 26, 33, 41}


@pytest.fixture(autouse=True)
def lab_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GLU_LAB_CACHE", str(tmp_path_factory.getbasetemp() / "failure-lab-cache"))


def lab(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["failure-lab", *arguments])
    return code, out.getvalue(), err.getvalue()


def test_machines_get_each_row_in_full():
    code, out, err = lab("3", "28", "16", "--json")
    assert code == 0 and not err
    listed = json.loads(out)
    assert [row["id"] for row in listed] == [3, 16, 28]
    for row in listed:
        assert row["title"] == TABLE[row["id"]].title and row["kind"] == "fault"
    first, second, later = listed
    assert (first["status"], first["naive_check_passes"], first["clean_passes"]) == (
        ("detected", False, True)
    )
    assert (second["status"], second["naive_check_passes"]) == ("detected", True)
    assert "row proof failed" in second["evidence"]
    assert len(first["faults"]) == 2 and first["faults"][1]["naive_check_passes"]
    assert later["status"] == "not built" and later["faults"] == []
    assert later["naive_check_passes"] is None and later["clean_passes"] is None


@pytest.mark.parametrize("columns", ["80", "200"])
def test_people_get_a_table_and_a_count(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = lab("4", "12", "30")
    assert code == 0
    assert "2 of 2 built rows detected, 0 false alarms, 1 not built" in out
    assert "Gate and up added" in out and "off by 12" in out and "not built" in out
    assert all(len(line) <= int(columns) for line in out.splitlines())


def test_what_is_not_built_has_not_passed():
    code, out, _ = lab("28", "39")
    assert code == 1 and "0 of 0 built rows detected, 0 false alarms, 2 not built" in out


@pytest.mark.parametrize("wrong", ["43", "0", "x"])
def test_an_unknown_number_is_refused_with_the_range(wrong):
    code, out, err = lab(wrong, "--json")
    assert code == 2 and not out
    assert f"no failure '{wrong}'" in err and "1 to 42" in err


def marked(names):
    return [pytest.param(n, marks=pytest.mark.slow if ROW_OF[n] in SLOW else ()) for n in names]


def turn_off(monkeypatch, name):
    nothing = CHECKS[name]._replace(run=lambda artefact: Finding(True, "turned off"))
    monkeypatch.setitem(CHECKS, name, nothing)


@pytest.mark.parametrize("name", marked(name for name in CHECKS if ROW_OF[name] != 33))
def test_a_check_that_is_turned_off_finds_nothing(name, monkeypatch):
    turn_off(monkeypatch, name)
    code, out, _ = lab(str(ROW_OF[name]), "--json")
    (row,) = json.loads(out)
    assert code == 1 and row["status"] == "missed" and row["clean_passes"]
    mine = [fault for fault in row["faults"] if fault["check"] == name]
    assert mine and not any(fault["detected"] for fault in mine)
    assert all(fault["detected"] for fault in row["faults"] if fault["check"] != name)


@pytest.mark.slow
def test_the_loss_jumps_at_the_swap_and_not_on_reading_the_same_again(tmp_path, monkeypatch):
    weights = trained.trained_weights(tmp_path)
    monkeypatch.setattr(trained, "trained_weights", lambda folder: weights)
    code, out, _ = lab("33", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["status"] == "detected" and row["naive_check_passes"]
    # Measured at 0.3 to 0.5 nats; a swap of an FFN that did nothing would move it by none.
    assert row["faults"][0]["measured"] > 5 and row["faults"][0]["clean_measured"] == 0
    turn_off(monkeypatch, "loss before and after")
    code, out, _ = lab("33", "--json")
    assert code == 1 and json.loads(out)[0]["status"] == "missed"


def test_a_twin_that_fails_is_a_false_alarm_and_an_error(monkeypatch):
    always = CHECKS["row proof"]._replace(run=lambda artefact: Finding(False, "everything"))
    monkeypatch.setitem(CHECKS, "row proof", always)
    code, out, _ = lab("16")
    assert code == 1
    assert "1 of 1 built rows detected, 1 false alarm, 0 not built" in out
    assert "false alarm: everything" in out


def test_results_are_written_where_asked_and_are_what_was_printed(tmp_path):
    code, out, _ = lab("1", "31", "--json", "--output", str(tmp_path / "new"))
    assert code == 0
    assert json.loads((tmp_path / "new" / "failure_lab.json").read_text()) == json.loads(out)
    text = (tmp_path / "new" / "failure_lab.md").read_text()
    assert "1 of 1 built rows detected" in text and "S = D" in text and "not built" in text


def test_what_the_commands_print_claims_nothing():
    made = {report.name: report for report in command_reports()}
    assert made.keys() == {"describe", "plan"}
    assert "pointwise operations per token" in made["describe"].text
    assert "GFLOP" in made["plan"].text
    for report in made.values():
        assert scan(report) == []


@pytest.mark.slow
def test_claims_are_planted_in_what_the_commands_print_too():
    code, out, _ = lab("22", "--json")
    assert code == 0
    names = [fault["fault"] for fault in json.loads(out)[0]["faults"]]
    assert any("in plan:" in name for name in names)
    assert any("in describe:" in name for name in names)


def test_the_results_on_record_are_of_this_table():
    rows = json.loads((RESULTS / "failure_lab.json").read_text("utf-8"))
    assert [(row["id"], row["title"], row["kind"]) for row in rows] == [
        (row.id, row.title, row.kind) for row in TABLE.values()
    ]
    for row in rows:
        built = TABLE[row["id"]].built
        assert row["status"] == ("detected" if built else "not built")
        assert row["clean_passes"] == (True if built else None)
    text = (RESULTS / "failure_lab.md").read_text("utf-8")
    assert "31 of 31 built rows detected, 0 false alarms, 11 not built" in text
    for private in ("/tmp", "/home", "/root", "/work"):
        assert private not in text and private not in json.dumps(rows)

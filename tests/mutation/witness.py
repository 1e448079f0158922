"""A pytest plugin that tells the runner what happened, and in which copy of the package."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

#: Environment variable: the file that is written.
REPORT = "GLU_LAB_MUTATION_REPORT"

_seen: dict[str, Any] = {"passed": 0, "skipped": [], "failures": []}


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """A failure of a test, of a fixture, or of collecting a file."""
    info = call.excinfo
    _seen["failures"].append(
        {
            "node": node.nodeid,
            "collecting": isinstance(report, pytest.CollectReport),
            "type": info.typename,
            "message": str(info.value),
        }
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the outcomes."""
    if report.skipped:
        _seen["skipped"].append(report.nodeid)
    elif report.when == "call" and report.passed:
        _seen["passed"] += 1


def pytest_sessionfinish() -> None:
    """Writes what was seen."""
    import glu_lab

    assert glu_lab.__file__ is not None
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    _seen["package"] = str(Path(glu_lab.__file__).resolve())
    _seen["loaded"] = sorted({str(Path(file).resolve()) for file in files if file})
    Path(os.environ[REPORT]).write_text(json.dumps(_seen), encoding="utf-8")

"""What a walk through the matrix found, as one document that is named by its content."""

import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from glu_lab import __version__
from glu_lab.conformance.cells import NOT_RUN, PROBLEMS, Point, Result
from glu_lab.conformance.matrix import Axes, Place, Plan
from glu_lab.conformance.storage import D_FF, D_MODEL
from glu_lab.files.revision import source_revision
from glu_lab.spec.codec import encode
from glu_lab.spec.formula import formula
from glu_lab.spec.identity import digest

#: Bumped when the meaning of a field changes.
VERSION = 1

_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "ml_dtypes")

#: What the sha256 is of.
_HASHED = ("version", "identity", "tolerances", "rows")


def identity(axes: Axes, tier: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """What was held against the oracle, and where: everything but the results.

    Args:
        axes: the values of every axis.
        tier, only: as the user chose.
    """
    import os

    device = jax.devices()[0]
    functions = {}
    for name, build in axes.specs.items():
        spec = build(D_MODEL, D_FF)
        functions[name] = {"formula": formula(spec), "sha256": digest(encode(spec))}
    return {
        "functions": functions,
        "executions": {name: e.summary for name, e in axes.executions.items()},
        "layouts": list(axes.layouts),
        "tier": tier,
        "only": list(only),
        "glu_lab": __version__,
        "revision": source_revision(),
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _number(value: float) -> float | str:
    """Four digits; JSON has no infinities."""
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.4g}")


def document(
    done: Iterable[tuple[Place, Result]], planned: Plan, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The report.

    Args:
        done: every cell with its result.
        planned: the cells of the tier.
        about: from `identity`.

    Returns:
        ``cells``, ``passed``, ``failed``, ``not_run`` (status → count), ``left_to_full``,
        ``sha256``, ``version``, ``identity``, ``tolerances`` (name → rtol, atol, reason),
        ``reasons`` and ``rows``. A row that was not run has ``why``, a place in ``reasons``.
    """
    rows, tolerances, reasons = [], {}, {}
    for place, result in done:
        row = {"kind": "execution" if isinstance(place, Point) else "layout"}
        row |= place._asdict() | {"status": result.status}
        found = result.compared
        if found is not None:
            name = f"{found.dtype} n={found.contraction}"
            tolerances[name] = {
                "rtol": _number(found.rtol),
                "atol": _number(found.atol),
                "reason": found.reason,
            }
            row |= {
                "share": _number(found.share),
                "array": found.array,
                "absolute": _number(found.absolute),
                "relative": _number(found.relative),
                "ulps": _number(found.ulps),
                "tolerance": name,
            }
            if found.disagreements:
                row["nonfinite"] = found.disagreements
        if result.detail and result.status in NOT_RUN:
            row["why"] = reasons.setdefault(result.detail, len(reasons))
        elif result.detail:
            row["detail"] = result.detail
        rows.append(row)
    return sealed(
        {
            "version": VERSION,
            "identity": dict(about),
            "tolerances": dict(sorted(tolerances.items())),
            "reasons": list(reasons),
            "rows": rows,
            "left_to_full": planned.left,
        }
    )


def sealed(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report with its counts and its hash, first the ones that are read most."""
    statuses = Counter(row["status"] for row in report["rows"])
    counts = {
        "cells": len(report["rows"]),
        "passed": statuses["passed"],
        "failed": sum(statuses[name] for name in PROBLEMS),
        "problems": {name: statuses[name] for name in PROBLEMS if statuses[name]},
        "not_run": {name: statuses[name] for name in NOT_RUN if statuses[name]},
        "sha256": content_hash(report),
    }
    return {**counts, **{name: value for name, value in report.items() if name not in counts}}


def content_hash(report: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of rows, tolerances and identity; of no times or dates."""
    return digest({name: report[name] for name in (*_HASHED, "reasons")})


def is_complete(report: Mapping[str, Any]) -> bool:
    """Whether all cells passed that an execution or layout has to run.

    Cells that lacked devices are evidence that is missing, and leave a report incomplete.
    """
    return not report["failed"] and not report["not_run"].get("devices") and bool(report["passed"])


def _severity(row: Mapping[str, Any]) -> tuple:
    """Problems first, then by share."""
    share = float(row.get("share", 0.0))
    return (row["status"] not in PROBLEMS, row["status"] in NOT_RUN, -share)


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in the order in which a reader wants them."""
    return sorted(rows, key=_severity)


def place_of(row: Mapping[str, Any]) -> str:
    """Where a row stands, as text."""
    if row["kind"] == "layout":
        return f"{row['spec']} · {row['layout']} · {row['dtype']}"
    parts = ("spec", "execution", "dtype", "shape", "probe", "mode")
    return " · ".join(row[part] for part in parts)


class Line:
    """Counts of the rows of one execution, or of all layouts.

    Attributes:
        name: whose.
        cells, passed, failed, not_run: how many.
        worst: the row with the largest share among those that were compared, or None.
    """

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]):
        self.name, self.cells = name, len(rows)
        self.passed = sum(row["status"] == "passed" for row in rows)
        self.failed = sum(row["status"] in PROBLEMS for row in rows)
        self.not_run = self.cells - self.passed - self.failed
        compared = [row for row in rows if "share" in row]
        self.worst = max(compared, key=lambda row: float(row["share"]), default=None)


def lines(report: Mapping[str, Any], axis: str = "execution") -> list[Line]:
    """One line for each value of an axis.

    Args:
        report: from `document`.
        axis: a key of rows; those without it make one line, ``layouts``. Executions stand in the
            order of the registry.
    """
    known = report["identity"]["executions"] if axis == "execution" else ()
    groups: dict[str, list] = {name: [] for name in known}
    for row in report["rows"]:
        groups.setdefault(row.get(axis, "layouts"), []).append(row)
    groups = {name: rows for name, rows in groups.items() if rows}
    return [Line(name, rows) for name, rows in groups.items()]

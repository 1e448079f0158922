"""The record of `glu_lab.conformance.continuity` as tables."""

from collections.abc import Mapping
from typing import Any

from glu_lab.conformance.sections import Section, number

TITLE = "Continuity of training"
ABOUT = (
    "A run is stopped after half of its steps and goes on from its checkpoint: in a fresh program, "
    "on other meshes, and with recomputation in backward. What has to be equal bit for bit has "
    "tolerance 0. Written by `glu-lab continuity`."
)


def sections(report: Mapping[str, Any]) -> list[Section]:
    """The tables of a report of `glu_lab.conformance.continuity.check`."""
    reasons: dict[str, str] = {}
    rows = []
    for line in report["comparisons"]:
        # Reasons are long and few: numbered below the table.
        mark = reasons.setdefault(line["reason"], str(len(reasons) + 1))
        largest = "not comparable" if line["largest"] is None else number(line["largest"], 3)
        rows.append(
            (
                line["way"],
                line["what"],
                "0" if line["largest"] == 0 else largest,
                "0" if line["tolerance"] == 0 else number(line["tolerance"], 2),
                mark,
                "yes" if line["passed"] else "NO",
                line["where"],
            )
        )
    added = report["dropout_added"]
    kept = report["checkpoint"]
    head = (
        f"{report['config']}: {report['steps']} steps on mesh {report['mesh']}, saved after "
        f"{report['saved_at']} (step {kept['step']}, random key {kept['rng']}), "
        f"{report['compute_dtype']}"
        + (f"; dropout {added:g} added, the config has none" if added else "")
    )
    return [
        Section(
            head,
            ("way", "compared", "largest difference", "tolerance", "reason", "equal", "where"),
            tuple(rows),
            "Reasons: " + "; ".join(f"({mark}) {reason}" for reason, mark in reasons.items()) + ".",
        )
    ]

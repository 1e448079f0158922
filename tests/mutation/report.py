"""What a run of the table says, for people and for machines; no times and no places."""

from collections.abc import Sequence
from typing import Any

from tests.mutation.runner import Outcome

#: Share of the valid mutations that has to be caught.
FLOOR = 0.95


def totals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Status → how many."""
    counts: dict[str, int] = dict.fromkeys(("caught", "survived", "timeout", "broken"), 0)
    for outcome in outcomes:
        counts[outcome.result.status] += 1
    return counts


def share(outcomes: Sequence[Outcome]) -> float:
    """Caught among those that say something of the tests."""
    valid = [outcome for outcome in outcomes if outcome.counts]
    caught = sum(outcome.result.status == "caught" for outcome in valid)
    return caught / len(valid) if valid else 0.0


def passed(outcomes: Sequence[Outcome]) -> bool:
    """Whether enough was caught, and what was not is explained."""
    return share(outcomes) >= FLOOR and not any(outcome.fault for outcome in outcomes)


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "totals": totals(outcomes),
        "caught_share": share(outcomes),
        "floor": FLOOR,
        "passed": passed(outcomes),
        "mutations": [
            {
                "id": mutation.id,
                "area": mutation.area,
                "file": mutation.file,
                "old": mutation.old,
                "new": mutation.new,
                "why": mutation.why,
                "tests": list(mutation.tests),
                "status": result.status,
                "caught_by": result.by,
                "message": result.message,
                "survives": mutation.survives,
            }
            for mutation, result in outcomes
        ],
    }


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """A page: totals, areas, every row, and the survivors with their reasons."""
    counts, lines = totals(outcomes), ["# Seeded mutations", ""]
    lines += [
        "Each row plants one fault in a copy of the repository and runs the tests that should "
        "notice it. The same tests pass without the fault. Written by `make mutation`.",
        "",
        f"{counts['caught']} of {sum(counts.values())} caught ({share(outcomes):.1%}; at least "
        f"{FLOOR:.0%} is asked for), {counts['survived']} survived, {counts['timeout']} timed "
        f"out, {counts['broken']} broken.",
        "",
        "| area | mutations | caught |",
        "|---|---:|---:|",
    ]
    for area in dict.fromkeys(outcome.mutation.area for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.mutation.area == area]
        lines.append(f"| {area} | {len(own)} | {totals(own)['caught']} |")
    lines += ["", "| mutation | area | file | without the test | status | noticed by |"]
    lines.append("|---|---|---|---|---|---|")
    for mutation, result in outcomes:
        cells = (mutation.id, mutation.area, f"`{mutation.file}`", mutation.why, result.status)
        lines.append(f"| {' | '.join(map(_cell, cells))} | {_code(result.by)} |")
    lines += _survivors(outcomes)
    return "\n".join(lines) + "\n"


def _survivors(outcomes: Sequence[Outcome]) -> list[str]:
    left = [outcome for outcome in outcomes if outcome.result.status != "caught"]
    if not left:
        return []
    lines = ["", "## Not caught", ""]
    for mutation, result in left:
        reason = mutation.survives or result.message or "not explained"
        lines.append(f"* `{mutation.id}` ({result.status}): {reason}")
    return lines


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""

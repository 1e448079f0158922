"""The page of the table, and the results of a run as Markdown.

``python -m glu_lab.conformance.failures > docs/failures.md`` writes the page anew.
"""

from collections.abc import Mapping, Sequence

from glu_lab.conformance.failures.checks import Check
from glu_lab.conformance.failures.lab import Result, summary
from glu_lab.conformance.failures.row import NOT_BUILT, Failure

#: What a cell says of a test that found nothing, or something, or was not run.
_VERDICTS = {True: "passes", False: "fails", None: "–"}


def markdown(groups: Mapping[str, Sequence[Failure]], checks: Mapping[str, Check]) -> str:
    """The page.

    Args:
        groups: heading → rows.
        checks: name → check.
    """
    rows = [row for group in groups.values() for row in group]
    built = sum(row.built for row in rows)
    lines = [_INTRODUCTION.format(rows=len(rows), built=built, rest=len(rows) - built)]
    lines += ["| | failure | kind | |", "|---|---|---|---|"]
    for row in rows:
        state = "" if row.built else NOT_BUILT
        lines.append(f"| {row.id} | [{row.title}](#{row.id}) | {row.kind} | {state} |")
    lines += ["", "## The checks", "", _CHECKS, "", "| check | holds an artefact to | by |"]
    lines.append("|---|---|---|")
    lines += [f"| {name} | {c.statement} | {_code(c.by)} |" for name, c in checks.items()]
    for heading, group in groups.items():
        lines += ["", f"## {heading}"]
        for row in group:
            lines += ["", *_section(row)]
    return "\n".join(lines) + "\n"


def _section(row: Failure) -> list[str]:
    what = {"claim": " (a claim)"}.get(row.kind, "") + ("" if row.built else f" – {NOT_BUILT}")
    lines = [f'<a id="{row.id}"></a>', "", f"### {row.id}. {row.title}{what}", ""]
    found = "detector" if row.built else "would be found by"
    lines += [
        f"* symptom: {row.symptom}",
        f"* cause: {row.cause}",
        f"* {found}: {row.detector}",
        f"* fix: {row.fix}",
    ]
    if callable(row.build):
        lines.append(f"* built by `{_place(row.build)}`")
    return lines


def _place(function: object) -> str:
    module = getattr(function, "__module__", "").removeprefix("glu_lab.conformance.failures.")
    return f"{module}.{getattr(function, '__name__', '')}"


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def results_markdown(results: Sequence[Result]) -> str:
    """What a run found: a line a row, then a line a planted fault."""
    lines = ["# Failure lab", "", f"{summary(results)}.", "", _RESULTS, ""]
    lines += ["| | failure | naive test | our check | clean twin | evidence |"]
    lines += ["|---|---|---|---|---|---|"]
    for result in results:
        cells = (str(result.failure.id), result.failure.title, *verdicts(result))
        lines.append(f"| {' | '.join(map(_escape, (*cells, result.evidence or '–')))} |")
    lines += ["", "## Every planted fault", "", "| row | fault | check | naive test | evidence |"]
    lines.append("|---|---|---|---|---|")
    for result in results:
        for trial in result.trials:
            naive = _VERDICTS[trial.naive]
            cells = (str(result.failure.id), trial.fault, trial.check, naive, trial.found.text)
            lines.append(f"| {' | '.join(map(_escape, cells))} |")
    return "\n".join(lines) + "\n"


def verdicts(result: Result) -> tuple[str, str, str]:
    """What naive test, check and clean twin say, in a word each."""
    return (
        _VERDICTS[result.naive_check_passes],
        result.status,
        _VERDICTS[result.clean_passes],
    )


def _escape(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


_INTRODUCTION = """\
# Failures

{rows} ways to get a Transformer's MLP wrong. For {built} of them `glu-lab failure-lab` plants the
fault, shows whether a naive test notices (it runs, its shape is right, its numbers are finite), and
holds the fault and its clean twin against one check of the library. The other {rest} are of
sublayers and analyses that are not here yet; they are listed, and nothing is claimed for them.

    glu-lab failure-lab            # all
    glu-lab failure-lab 16 25      # two of them
    glu-lab failure-lab --json

The command ends with 0 only when every row that was asked for and is built is detected, and no
clean twin raises an alarm. This page is made from the table in `glu_lab/conformance/failures` by
`python -m glu_lab.conformance.failures > docs/failures.md`.
"""

_CHECKS = """\
The same check judges a fault and its twin, and knows nothing of what was planted. Each is a part of
`glu_lab` that users call for their own functions, files and studies."""

_RESULTS = """\
Written by `glu-lab failure-lab --output results/conformance`. "Naive test" says whether running it,
its shape and finite numbers leave the fault unnoticed (passes: unnoticed)."""

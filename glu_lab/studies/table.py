"""The results table of a study: one row a point, with what its differences do and do not show."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError, UnknownNameError, name_list
from glu_lab.studies.groups import Runs, complete_runs, load_groups, results_by_seed
from glu_lab.studies.published import PublishedTable, published
from glu_lab.studies.records import MISSING, Record
from glu_lab.studies.resolved import ResolvedStudy
from glu_lab.studies.statistics import Comparison, compare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One point of a study.

    Attributes:
        point, variant, formula, d_ff: which function.
        params, param_delta: of the whole model, and the difference to the baseline's.
        ffn_params, macs_per_token, mac_delta: of one FFN.
        tokens_per_second: mean over complete runs.
        log_perplexity, log_perplexity_se: mean and standard error over complete seeds.
        delta, delta_ci95: paired difference to the baseline and its 95 % interval.
        mark: what the interval says, in words.
        bits_per_byte, exact_zero_fraction: means over complete seeds; None unless measured in all.
        seeds: complete seeds.
        status: ``complete``, or how many runs are what.
        seed_status: seed → status.
        published: column title → the paper's number.
    """

    point: str
    variant: str
    formula: str
    d_ff: int
    params: int | None
    param_delta: int | None
    ffn_params: int | None
    macs_per_token: int | None
    mac_delta: int | None
    tokens_per_second: float | None
    log_perplexity: float | None
    log_perplexity_se: float | None
    delta: float | None
    delta_ci95: tuple[float, float] | None
    mark: str
    bits_per_byte: float | None
    exact_zero_fraction: float | None
    seeds: tuple[int, ...]
    status: str
    seed_status: Mapping[int, str]
    published: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A study's results.

    Attributes:
        name, question: of the study.
        contract: what the rows have in common, one line each.
        baseline: name of the baseline's row.
        rows: in the study's order, which is not a ranking.
        statements: what can and cannot be said.
        footnotes: of the published columns.
        published_headings: column title → heading.
    """

    name: str
    question: str
    contract: tuple[str, ...]
    baseline: str
    rows: tuple[Row, ...]
    statements: tuple[str, ...]
    footnotes: tuple[str, ...] = ()
    published_headings: Mapping[str, str] = dataclasses.field(default_factory=dict)


def build_table(
    results: Path,
    *,
    baseline: str | None = None,
    published_name: str | None = None,
    select: Mapping[str, str] | None = None,
) -> Table:
    """Reads a study's runs and compares them.

    Args:
        results: the study's folder, ``results/<study>``.
        baseline: a point's name; None takes the one in ``study.json``.
        published_name: a table of `glu_lab.studies.published` to stand beside ours.
        select: ``steps`` or ``data_fingerprint`` (or its beginning) → value; keeps the runs that
            have it, where a folder holds several contracts.

    Returns:
        The table.

    Raises:
        RecordError: for unreadable runs, or runs that do not belong in one table.
        UnknownNameError: for a baseline, published table or selection that does not exist.
    """
    beside = published(published_name) if published_name else None
    study, groups, statements = load_groups(results, select=select or {})
    if baseline is None:
        if study is None:
            raise RecordError(
                f"{results} has no study.json, so the baseline must be named: --baseline with one "
                f"of {name_list(groups)}."
            )
        baseline = study.baseline
    if baseline not in groups:
        raise UnknownNameError("baseline", baseline, groups)
    comparison = compare(results_by_seed(groups), baseline)
    facts = {name: _facts(name, runs, study) for name, runs in groups.items()}
    rows = tuple(_row(name, groups[name], facts, comparison, beside) for name in groups)
    return Table(
        name=study.name if study else Path(results).resolve().name,
        question=study.question if study else "",
        contract=_contract(groups, study),
        baseline=baseline,
        rows=rows,
        statements=(*comparison.statements, *_run_statements(groups), *statements),
        footnotes=(beside.footnote,) if beside else (),
        published_headings=beside.headings if beside else {},
    )


def to_json(table: Table) -> dict[str, Any]:
    """The table as JSON: ``baseline``, ``rows``, ``statements``; null where nothing is known."""
    rows = []
    for row in table.rows:
        entry = dataclasses.asdict(row)
        entry["delta_ci95"] = None if row.delta_ci95 is None else list(row.delta_ci95)
        entry["seeds"] = list(row.seeds)
        entry["seed_status"] = {str(seed): status for seed, status in row.seed_status.items()}
        if not table.published_headings:
            entry["published"] = None
        rows.append(entry)
    return {
        "baseline": table.baseline,
        "rows": rows,
        "statements": [*table.statements, *table.footnotes],
    }


def _facts(name: str, runs: Runs, study: ResolvedStudy | None) -> dict[str, Any]:
    """What is the same for all seeds of a point."""
    facts: dict[str, Any] = {}
    if study is not None:
        point = next(p for p in study.points if p.name == name)
        facts = {k: v for k, v in dataclasses.asdict(point).items() if k != "name"}
    # The formula is text for people: two versions may word it differently for one function.
    worded = [r.formula for r in runs.values() if r is not None and r.formula]
    facts |= {"formula": worded[0]} if worded and not facts.get("formula") else {}
    for key in ("variant", "d_ff", "params", "ffn_params", "macs_per_token"):
        found = {getattr(r, key) for r in runs.values() if r is not None} - {None, ""}
        if len(found) > 1:
            raise RecordError(f"the runs of {name} disagree on {key}: {sorted(map(str, found))}.")
        if found:
            facts[key] = found.pop()
    return facts


def _row(
    name: str,
    runs: Runs,
    facts: Mapping[str, Mapping[str, Any]],
    comparison: Comparison,
    beside: PublishedTable | None,
) -> Row:
    own, reference = facts[name], facts[comparison.baseline]
    complete = complete_runs(runs)
    means = comparison.means[name]
    if name == comparison.baseline:
        delta, interval = (0.0 if complete else None), None
    else:
        difference_ = comparison.differences[name].estimate
        delta, interval = difference_.mean, difference_.ci95
    return Row(
        point=name,
        variant=own["variant"],
        formula=own.get("formula", ""),
        d_ff=own["d_ff"],
        params=own.get("params"),
        param_delta=_minus(own.get("params"), reference.get("params")),
        ffn_params=own.get("ffn_params"),
        macs_per_token=own.get("macs_per_token"),
        mac_delta=_minus(own.get("macs_per_token"), reference.get("macs_per_token")),
        tokens_per_second=_mean([r.tokens_per_second for r in complete]),
        log_perplexity=means.mean,
        log_perplexity_se=means.se,
        delta=delta,
        delta_ci95=interval,
        mark=_mark(name, comparison),
        bits_per_byte=_mean([r.bits_per_byte for r in complete]),
        exact_zero_fraction=_mean([r.exact_zero_fraction for r in complete]),
        seeds=tuple(seed for seed, r in runs.items() if r is not None and r in complete),
        status=_status(runs),
        seed_status={seed: MISSING if r is None else r.status for seed, r in runs.items()},
        published={
            title: None if own["variant"] not in column else str(column[own["variant"]])
            for title, column in (beside.columns if beside else {}).items()
        },
    )


def _mark(name: str, comparison: Comparison) -> str:
    if name == comparison.baseline:
        return "baseline"
    judged = comparison.differences[name]
    if judged.estimate.mean is None:
        return "no result"
    if judged.separated is None:
        return "no interval"
    if not judged.separated:
        return "not separated"
    return "better" if judged.estimate.mean < 0 else "worse"


def _status(runs: Runs) -> str:
    statuses = [MISSING if record is None else record.status for record in runs.values()]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    if len(counts) == 1:
        return statuses[0]
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or MISSING


def _run_statements(groups: Mapping[str, Runs]) -> list[str]:
    """What is no result is named, so that nobody takes it for one."""
    statements = []
    for status in ("diverged", "failed", "interrupted", "unfinished", MISSING):
        names = []
        for name, runs in groups.items():
            seeds = [
                f"{seed}" + (f" ({_last_line(record)})" if record and record.error else "")
                for seed, record in runs.items()
                if (MISSING if record is None else record.status) == status
            ]
            if seeds:
                names.append(f"{name} seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
        if names:
            statements.append(f"{status.capitalize()}, in no mean: {'; '.join(names)}.")
    complete = [record for runs in groups.values() for record in complete_runs(runs)]
    # Seeds draw other spans and may see a few tokens more; within a seed nothing may differ.
    for seed in sorted({record.seed for record in complete}):
        tokens = [r.tokens_seen for r in complete if r.seed == seed and r.tokens_seen is not None]
        if len(set(tokens)) > 1:
            statements.append(
                f"Tokens seen differ between points of seed {seed}, from {min(tokens):,} to "
                f"{max(tokens):,}."
            )
    if len({record.execution_hash for record in complete}) > 1:
        statements.append(
            "The runs had different executions (device, cores, flags): tokens per second are not "
            "comparable between them."
        )
    return statements


def _last_line(record: Record) -> str:
    return (record.error or "").strip().splitlines()[-1][:120]


def _contract(groups: Mapping[str, Runs], study: ResolvedStudy | None) -> tuple[str, ...]:
    lines = []
    if study is not None:
        lines.append(f"Budget: {study.budget}.")
    complete = [record for runs in groups.values() for record in complete_runs(runs)]
    if complete:
        first = complete[0]
        seeds = sorted({record.seed for record in complete})
        lines.append(
            f"{first.steps:,} steps, {first.tokens_seen:,} tokens, data "
            f"{first.data_fingerprint[:12]}, seeds {', '.join(map(str, seeds))}."
        )
    if study is not None and study.notes:
        lines.append(study.notes)
    return tuple(lines)


def _minus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a - b


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean, where every value is known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None

"""The runs of a results folder as points and seeds, checked to be of one contract."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError, UnknownNameError
from glu_lab.spec.identity import difference
from glu_lab.spec.variants import VARIANTS
from glu_lab.studies.records import Record, find_runs, read_record
from glu_lab.studies.resolved import ResolvedStudy, read_resolved

#: What must be equal for losses to stand in one table.
CONTRACT = ("data_fingerprint", "steps")

#: What may differ between runs when no study declares its axes, beside the FFN.
_MAY_DIFFER = ("name", "seed", "execution", "recording")

#: Seed → record; None for a member that was never started.
Runs = dict[int, Record | None]


def complete_runs(runs: Runs) -> list[Record]:
    """The complete runs of a point."""
    return [r for r in runs.values() if r is not None and r.status == "complete"]


def results_by_seed(groups: Mapping[str, Runs]) -> dict[str, dict[int, float]]:
    """Point → seed → log-perplexity of its complete run."""
    return {
        name: {
            record.seed: record.log_perplexity
            for record in complete_runs(runs)
            if record.log_perplexity is not None
        }
        for name, runs in groups.items()
    }


def load_groups(
    results: Path, *, select: Mapping[str, str]
) -> tuple[ResolvedStudy | None, dict[str, Runs], list[str]]:
    """The runs of a study by point and seed, checked to be of one contract.

    Returns:
        ``study.json`` if there is one; point → seed → record (None for a member never started);
        sentences on what was left out.

    Raises:
        RecordError: for runs that do not belong in one table.
    """
    study = read_resolved(results)
    if study is None:
        records = [read_record(path) for path in find_runs(results)]
        chosen = _select(records, select)
        _check_contract(chosen)
        groups = _group(chosen)
        _check_configs(groups)
        return None, groups, _left_out(records, chosen)
    own = {run_id for _, _, run_id in study.members}
    started = any((Path(results) / run_id).is_dir() for run_id in own)
    paths = {path.name: path for path in find_runs(results)} if started else {}
    statements = []
    others = [name for name in paths if name not in own]
    if others:
        statements.append(
            f"{len(others)} run folders here belong to no member of study.json and are left out: "
            f"{', '.join(others)}."
        )
    loaded = {name: read_record(path) for name, path in paths.items() if name in own}
    chosen = _select(list(loaded.values()), select)
    _check_contract(chosen)
    groups: dict[str, Runs] = {point.name: {} for point in study.points}
    for point, seed, run_id in study.members:
        record = loaded.get(run_id)
        if record is None or record in chosen:
            groups[point][seed] = record
    return study, groups, [*statements, *_left_out(list(loaded.values()), chosen)]


def _left_out(records: Sequence[Record], chosen: Sequence[Record]) -> list[str]:
    names = [record.run_id for record in records if record not in chosen]
    return [f"Left out by --select: {', '.join(names)}."] if names else []


def _select(records: Sequence[Record], select: Mapping[str, str]) -> list[Record]:
    chosen = list(records)
    for key, value in select.items():
        if key not in CONTRACT:
            raise UnknownNameError("selection", key, CONTRACT)
        if key == "steps":
            matching = [r for r in chosen if str(_planned_steps(r)) == value]
        else:
            matching = [r for r in chosen if r.data_fingerprint.startswith(value)]
        if not matching:
            known = sorted({str(getattr(r, key)) for r in chosen if r.status == "complete"})
            raise UnknownNameError(key, value, known or ["(no complete run)"])
        chosen = matching
    return chosen


def _planned_steps(record: Record) -> int | None:
    """Steps of a complete run; of any other those that its config asks for, where it has one."""
    if record.status != "complete" and record.config is not None:
        return record.config.get("training", {}).get("steps")
    return record.steps


def _check_contract(records: Sequence[Record]) -> None:
    complete = [record for record in records if record.status == "complete"]
    for key in CONTRACT:
        found: dict[Any, list[str]] = {}
        for record in complete:
            found.setdefault(getattr(record, key), []).append(record.run_id)
        if len(found) > 1:
            listed = "\n".join(
                f"  {key} {value}: {len(names)} runs, {', '.join(names[:4])}"
                + (" …" if len(names) > 4 else "")
                for value, names in sorted(found.items(), key=lambda item: item[0])
            )
            raise RecordError(
                f"runs with different {key} do not belong in one table:\n{listed}\n"
                f"Tabulate one at a time, for example --select {key}={min(found)}."
            )


def _group(records: Sequence[Record]) -> dict[str, Runs]:
    """Without a study, a row is a variant and its width."""
    order = list(VARIANTS)
    cells: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        cells.setdefault((record.variant, record.d_ff), []).append(record)
    keys = sorted(cells, key=lambda k: (order.index(k[0]) if k[0] in order else len(order), k))
    variants = [name for name, _ in keys]
    groups: dict[str, Runs] = {}
    for name, d_ff in keys:
        label = name if variants.count(name) == 1 else f"{name} (d_ff {d_ff})"
        runs: Runs = {}
        for record in cells[name, d_ff]:
            earlier = runs.get(record.seed)
            if earlier is not None:
                lines = difference(earlier.config or {}, record.config or {})
                raise RecordError(
                    f"runs {earlier.run_id} and {record.run_id} are both {label} with seed "
                    f"{record.seed}, and no study.json tells them apart. They differ in: "
                    f"{'; '.join(lines) or 'nothing their configs say'}."
                )
            runs[record.seed] = record
        groups[label] = dict(sorted(runs.items()))
    return groups


def _check_configs(groups: Mapping[str, Runs]) -> None:
    """Without a study that declares its axes, only FFN and seed may differ."""
    first: tuple[str, Any] | None = None
    for runs in groups.values():
        for record in runs.values():
            if record is None or record.config is None:
                continue
            rest = {k: v for k, v in record.config.items() if k not in _MAY_DIFFER}
            rest["model"] = {k: v for k, v in rest.get("model", {}).items() if k != "ffn"}
            if first is None:
                first = (record.run_id, rest)
            lines = difference(first[1], rest)
            if lines:
                raise RecordError(
                    f"runs {first[0]} and {record.run_id} differ in more than their FFN: "
                    f"{'; '.join(lines)}. A table compares one thing; give the folder of a study "
                    "whose study.json declares these axes."
                )

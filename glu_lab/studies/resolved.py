"""``study.json``: the resolved study beside its runs, so that a table needs no study.py."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError
from glu_lab.files.atomic import write_json
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.formula import formula
from glu_lab.spec.identity import run_id
from glu_lab.studies.records import is_run, read_json
from glu_lab.studies.study import POLICIES, Member, Study

FILE = "study.json"
FORMAT = 1

_KEYS = ("format", "name", "question", "notes", "metric", "baseline", "budget", "points", "members")
_POINT_KEYS = ("name", "variant", "formula", "d_ff", "ffn_params", "macs_per_token")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedPoint:
    """One row to be: what is known of a point before it is trained."""

    name: str
    variant: str
    formula: str
    d_ff: int
    ffn_params: int
    macs_per_token: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedStudy:
    """What ``study.json`` says.

    Attributes:
        name, question, notes, baseline: of the study.
        budget: the budget policy in words.
        points: in table order.
        members: (point, seed, run id), one a run.
    """

    name: str
    question: str
    notes: str
    baseline: str
    budget: str
    points: tuple[ResolvedPoint, ...]
    members: tuple[tuple[str, int, str], ...]


def write_resolved(
    results: Path,
    study: Study,
    members: Sequence[Member],
    run_ids: Sequence[str],
    *,
    fingerprints: Sequence[str],
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``study.json`` atomically.

    A sweep of a few seeds never takes others out of the table: runs that lie here, and that the
    study's points would make with their seeds, stay members.

    Args:
        results: the study's folder.
        study: the study.
        members: all of its members, from `expand`.
        run_ids: their run directories' names, in the same order.
        fingerprints: of the data, in the same order.
        overrides: config entries that were changed for this sweep.

    Returns:
        The file's path.

    Raises:
        RecordError: when runs are here that were made with other `overrides`, which would go out
            of the table; and as `write_json`.
    """
    named = [
        {
            "point": member.point,
            "seed": member.seed,
            "run_id": name,
            "data_fingerprint": fingerprint,
        }
        for member, name, fingerprint in zip(members, run_ids, fingerprints, strict=True)
    ]
    seeds = list(study.seeds)
    kept = _kept(Path(results), members, named, dict(overrides or {}))
    if kept:
        named += kept
        seeds = sorted({*seeds, *(entry["seed"] for entry in kept)})
        order = [point.name for point in study.points]
        named.sort(key=lambda entry: (order.index(entry["point"]), entry["seed"]))
    overlays = {point.name: point.overlay for point in study.points}
    first = {}
    for member in members:
        first.setdefault(member.point, member)
    content = {
        "format": FORMAT,
        "name": study.name,
        "question": study.question,
        "notes": study.notes,
        "metric": study.metric,
        "baseline": study.baseline,
        "budget": {"policy": study.budget, "tolerance": study.tolerance},
        "axes": list(study.axis_keys),
        "seeds": seeds,
        "overrides": dict(overrides or {}),
        "base": encode(study.base),
        "points": [
            {
                "name": name,
                "overlay": {key: encode(value) for key, value in overlays[name].items()},
                "variant": member.variant,
                "formula": formula(member.experiment.model.ffn),
                "d_ff": member.d_ff,
                "ffn_params": member.params,
                "macs_per_token": member.macs_per_token,
                "ffn_param_delta": member.param_delta,
                "mac_delta": member.mac_delta,
            }
            for name, member in first.items()
        ],
        "members": named,
    }
    write_json(Path(results) / FILE, content)
    return Path(results) / FILE


def _kept(
    results: Path,
    members: Sequence[Member],
    named: Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The members of an earlier ``study.json`` whose runs are here and are this study's.

    Args:
        results, members: as for `write_resolved`.
        named: their entries, in the same order.
        overrides: of this sweep.
    """
    try:
        earlier = read_json(results / FILE)
        started = [m for m in earlier["members"] if is_run(results / m["run_id"])]
        made_with = earlier["overrides"]
    except (RecordError, KeyError, TypeError):
        return []  # none, or none that can be read: what it named is found by no one
    first: dict[str, tuple[Experiment, str]] = {}
    for member, entry in zip(members, named, strict=True):
        first.setdefault(member.point, (member.experiment, entry["data_fingerprint"]))
    taken = {entry["run_id"] for entry in named}
    kept = []
    for entry in started:
        if entry["run_id"] in taken or entry["point"] not in first:
            continue
        experiment, fingerprint = first[entry["point"]]
        same = run_id(dataclasses.replace(experiment, seed=entry["seed"]), fingerprint)
        if same == entry["run_id"]:
            kept.append(entry)
    lost = len(started) - len(kept) - len(taken & {entry["run_id"] for entry in started})
    if lost and made_with != overrides:
        raise RecordError(
            f"{results} holds {len(started)} runs of this study made with {_in_words(made_with)}; "
            f"a sweep with {_in_words(overrides)} would take {lost} of them out of its table. Give "
            "it a folder of its own with --results, or repeat the earlier --set."
        )
    return kept


def _in_words(overrides: Mapping[str, Any]) -> str:
    if not overrides:
        return "its own settings"
    return "--set " + " ".join(f"{key}={value}" for key, value in overrides.items())


def read_resolved(results: Path) -> ResolvedStudy | None:
    """Reads ``study.json``; None where there is none.

    Raises:
        RecordError: naming the file, when it is unreadable or lacks a key.
    """
    file = Path(results) / FILE
    if not file.is_file():
        return None
    content = read_json(file)
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise RecordError(f"{file} lacks {', '.join(missing)}; run the sweep again to rewrite it.")
    if content["format"] != FORMAT:
        raise RecordError(f"{file} has format {content['format']!r}; this version reads {FORMAT}.")
    try:
        policy, tolerance = content["budget"]["policy"], content["budget"]["tolerance"]
        points = tuple(
            ResolvedPoint(**{key: point[key] for key in _POINT_KEYS}) for point in content["points"]
        )
        members = tuple((m["point"], m["seed"], m["run_id"]) for m in content["members"])
    except (KeyError, TypeError) as error:
        raise RecordError(f"{file} is not a resolved study: {error!r}.") from error
    return ResolvedStudy(
        name=content["name"],
        question=content["question"],
        notes=content["notes"],
        baseline=content["baseline"],
        budget=budget_text(policy, tolerance),
        points=points,
        members=members,
    )


def budget_text(policy: str, tolerance: float) -> str:
    """A budget policy in words.

    Raises:
        RecordError: for a policy that does not exist.
    """
    if policy not in POLICIES:
        raise RecordError(f"unknown budget policy {policy!r}; expected one of {list(POLICIES)}.")
    if policy == "none":
        return "budgets not matched"
    how = "exactly equal" if tolerance == 0 else f"equal within {tolerance:.4%}"
    return f"{POLICIES[policy]} {how}"

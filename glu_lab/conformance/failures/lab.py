"""Runs rows of the table: every planted fault and its twin through one check.

A row is detected when each of its faults fails the check that it was planted for. A clean twin that
fails is a false alarm; it counts as much.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from glu_lab.conformance.failures.checks import CHECKS
from glu_lab.conformance.failures.row import NOT_BUILT, Failure, Finding, Planted
from glu_lab.conformance.failures.table import TABLE
from glu_lab.errors import SpecError

Status = Literal["detected", "missed", "not built"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One planted fault, tried.

    Attributes:
        fault: what was planted.
        check: which check judged it.
        naive: whether the naive test finds nothing wrong with it.
        found: what the check says of the fault.
        clean: what the same check says of the twin.
    """

    fault: str
    check: str
    naive: bool
    found: Finding
    clean: Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the table, run.

    Attributes:
        failure: the row.
        trials: its faults, in order; none where nothing is built.
    """

    failure: Failure
    trials: Sequence[Trial] = ()

    @property
    def status(self) -> Status:
        """``detected`` when every fault is."""
        if not self.trials:
            return NOT_BUILT
        return "missed" if any(trial.found.passes for trial in self.trials) else "detected"

    @property
    def naive_check_passes(self) -> bool | None:
        """Whether the naive test notices none of the faults."""
        return all(trial.naive for trial in self.trials) if self.trials else None

    @property
    def clean_passes(self) -> bool | None:
        """Whether no clean twin raises an alarm."""
        return all(trial.clean.passes for trial in self.trials) if self.trials else None

    @property
    def good(self) -> bool:
        """Built, detected, and without a false alarm."""
        return self.status == "detected" and bool(self.clean_passes)

    @property
    def evidence(self) -> str:
        """Of the twin that fails or the fault that is missed; else of the first fault."""
        if not self.trials:
            return ""
        for trial in self.trials:
            if not trial.clean.passes:
                return f"false alarm: {trial.clean.text}"
        trial = next((t for t in self.trials if t.found.passes), self.trials[0])
        return trial.found.text

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON; null where nothing is built."""
        return {
            "id": self.failure.id,
            "title": self.failure.title,
            "kind": self.failure.kind,
            "status": self.status,
            "naive_check_passes": self.naive_check_passes,
            "clean_passes": self.clean_passes,
            "evidence": self.evidence or None,
            "faults": [
                {
                    "fault": trial.fault,
                    "check": trial.check,
                    "naive_check_passes": trial.naive,
                    "detected": not trial.found.passes,
                    "clean_passes": trial.clean.passes,
                    "evidence": trial.found.text,
                    "measured": trial.found.measured,
                    "clean_evidence": trial.clean.text,
                    "clean_measured": trial.clean.measured,
                }
                for trial in self.trials
            ],
        }


def choose(ids: Iterable[str | int]) -> list[Failure]:
    """Rows by their numbers, in order and each once; all of them for none.

    Raises:
        SpecError: for what is no number of a row, with those that are.
    """
    wanted = [str(each).strip() for each in ids]
    known = {str(number): row for number, row in TABLE.items()}
    unknown = [each for each in wanted if each not in known]
    if unknown:
        raise SpecError(
            f"there is no failure {', '.join(map(repr, unknown))}; rows are numbered "
            f"{min(TABLE)} to {max(TABLE)}, for example 25."
        )
    return [row for number, row in known.items() if not wanted or number in wanted]


def run(failure: Failure, more: Callable[[], Sequence[Planted]] = tuple) -> Result:
    """Plants a row's faults and tries each.

    Args:
        failure: the row.
        more: further faults of the row, of rooms that the lab cannot see.
    """
    if failure.build == NOT_BUILT:
        return Result(failure=failure)
    with tempfile.TemporaryDirectory(prefix="glu_lab_failure_") as folder:
        planted = [*failure.build(Path(folder)), *more()]
        return Result(failure=failure, trials=[_try(each) for each in planted])


def _try(planted: Planted) -> Trial:
    check = CHECKS[planted.check].run
    # The naive test first: what a check does to an artefact is not its business.
    naive = planted.fault.seems_right()
    return Trial(
        fault=planted.name,
        check=planted.check,
        naive=naive,
        found=check(planted.fault),
        clean=check(planted.clean),
    )


def summary(results: Sequence[Result]) -> str:
    """One line on all rows that were run."""
    built = [result for result in results if result.trials]
    detected = sum(result.status == "detected" for result in built)
    alarms = sum(not result.clean_passes for result in built)
    return (
        f"{detected} of {len(built)} built rows detected, {alarms} false "
        f"alarm{'' if alarms == 1 else 's'}, {len(results) - len(built)} not built"
    )


def all_good(results: Sequence[Result]) -> bool:
    """Whether something was built, all of it was detected, and no twin raised an alarm."""
    built = [result for result in results if result.trials]
    return bool(built) and all(result.good for result in built)

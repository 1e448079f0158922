"""Runs what is missing of a study, one member after the other in this process.

The seeds of a point run one after the other, so that they share one compiled program. A member that
fails is recorded and the others go on; an interruption stops the sweep, and the same command takes
it up again.
"""

import contextlib
import dataclasses
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from glu_lab.errors import RecordError, RunInUseError, SpecError, resource_error
from glu_lab.files.atomic import write_json
from glu_lab.spec.experiment import Data, Experiment
from glu_lab.spec.formula import formula
from glu_lab.spec.identity import identity_hash, run_id
from glu_lab.studies.records import SUMMARY_KEYS, is_run, read_record
from glu_lab.studies.resolved import write_resolved
from glu_lab.studies.study import Member, Study

#: Results that stand; anything else is run again.
DONE = ("complete", "diverged")
#: A member that another process is training: not run here, and nothing written to its folder.
BUSY = "in use"


class Dataset(Protocol):
    """What a sweep needs of `glu_lab.data.TextDataset`; the rest is the training loop's."""

    fingerprint: str


class Train(Protocol):
    """`glu_lab.training.loop.train`."""

    def __call__(
        self,
        experiment: Experiment,
        workdir: Path,
        *,
        dataset: Any,
        progress: Callable[[Mapping[str, Any]], None],
    ) -> Mapping[str, Any]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A member and where its run lies.

    Attributes:
        member: the run.
        directory: its folder; the name is the run id.
        dataset: what it trains on.
    """

    member: Member
    directory: Path
    dataset: Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a member.

    Attributes:
        member, directory: which run.
        status: of its summary; ``unfinished`` after an interruption; ``in use`` where another
            process is training it.
        ran: whether it was trained in this sweep.
        error: text of a failure.
    """

    member: Member
    directory: Path
    status: str
    ran: bool
    error: str | None = None


def plan(
    study: Study,
    members: Sequence[Member],
    results: Path,
    *,
    load_data: Callable[[Data], Dataset] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """Names the runs, which needs the data's content, and writes ``study.json``.

    Args:
        study: the study.
        members: all of its members, from `expand`.
        results: the study's folder.
        load_data: `glu_lab.data.load`, or a stand-in.
        overrides: config entries changed for this sweep, for the record.

    Raises:
        DataError: for data that cannot be loaded.
        SpecError: when two members turn out to be one run.
        RecordError: when ``study.json`` cannot be written.
    """
    if load_data is None:
        # Imported here: a sweep with stand-ins, and a dry run, need neither data nor JAX.
        from glu_lab.data import load as load_data
    datasets: dict[Data, Dataset] = {}
    planned: dict[str, Planned] = {}
    for member in members:
        data = member.experiment.data
        if data not in datasets:
            datasets[data] = load_data(data)
        dataset = datasets[data]
        name = run_id(member.experiment, dataset.fingerprint)
        if name in planned:
            raise SpecError(
                f"{planned[name].member.label} and {member.label} are the same run {name}: their "
                "data have the same content. Remove one of them."
            )
        planned[name] = Planned(member=member, directory=results / name, dataset=dataset)
    write_resolved(
        results,
        study,
        members,
        list(planned),
        fingerprints=[run.dataset.fingerprint for run in planned.values()],
        overrides=overrides,
    )
    return list(planned.values())


def launch(
    runs: Sequence[Planned],
    *,
    train: Train | None = None,
    prepare: Callable[[Planned], None] | None = None,
    console: Console | None = None,
    resume_command: Sequence[str] = ("glu-lab", "sweep"),
) -> tuple[list[Outcome], bool]:
    """Trains the runs that have no result yet.

    Args:
        runs: the members to run, in order.
        train: `glu_lab.training.loop.train`, or a stand-in. It calls `progress` with each
            line of metrics, and returns the summary that it has written.
        prepare: called in a second thread with a run to come; compiles its programs where
            `train` is not given.
        console: for progress; None for standard error.
        resume_command: what to type to go on after an interruption.

    Returns:
        One outcome for each run that was reached, and whether the sweep was interrupted.

    Raises:
        RecordError: for run directories that are unreadable or foreign, before anything is trained.
    """
    if train is None:
        from glu_lab.training import loop

        train, prepare = loop.train, prepare or _compile
    console = console or Console(stderr=True)
    known = {run.directory: _existing_status(run) for run in runs}
    outcomes: list[Outcome] = []
    with _Display(console, total=len(runs)) as display, _Ahead(prepare) as ahead:
        for number, run in enumerate(runs):
            status = known[run.directory]
            if status not in DONE:
                # Another process may have finished it since.
                status = _existing_status(run)
            if status in DONE:
                outcomes.append(_outcome(run, status, ran=False))
                display.finish(run.member, f"{status} before")
                continue
            ahead.start(
                other
                for other in runs[number + 1 :]
                if other.member.point != run.member.point and known[other.directory] not in DONE
            )
            outcome = _run_one(run, train, display)
            outcomes.append(outcome)
            display.finish(run.member, outcome.status)
            if outcome.status in ("interrupted", "unfinished"):
                break
    interrupted = bool(outcomes) and outcomes[-1].status in ("interrupted", "unfinished")
    if interrupted:
        done = sum(outcome.status in DONE for outcome in outcomes)
        console.print(
            f"Interrupted with {done} of {len(runs)} runs done. Go on with: "
            f"{shlex.join(resume_command)}",
            highlight=False,
            markup=False,
        )
    return outcomes, interrupted


def _compile(run: Planned) -> None:
    """Compiles the programs that a run will ask for."""
    from glu_lab.training.programs import program_key, programs

    programs(program_key(run.member.experiment, run.dataset)).compile()


class _Ahead:
    """Prepares one run in a second thread while another trains.

    A preparation that fails says nothing here: the run itself meets the same error and records it.
    """

    def __init__(self, prepare: Callable[[Planned], None] | None):
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._last: Planned | None = None

    def start(self, coming: Iterator[Planned]) -> None:
        """Starts on the first of the coming runs, unless it was the last one asked for."""
        run = next(coming, None)
        if self._prepare is None or run is None or run is self._last:
            return
        self._last = run
        self._pool.submit(self._prepare, run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _existing_status(run: Planned) -> str | None:
    """The status of a run directory, after checking that it is this run's."""
    if not run.directory.exists():
        return None
    if not is_run(run.directory):
        return None
    if not any((run.directory / name).is_file() for name in ("summary.json", "config.json")):
        return None
    record = read_record(run.directory)
    expected = identity_hash(run.member.experiment, run.dataset.fingerprint)
    if record.identity_hash and record.identity_hash != expected:
        raise RecordError(
            f"{run.directory} belongs to another run: its identity is "
            f"{record.identity_hash[:12]}, {run.member.label} has {expected[:12]}. Move it away, "
            "or choose another results folder."
        )
    return record.status


def _run_one(run: Planned, train: Train, display: "_Display") -> Outcome:
    # A summary of an earlier attempt would outlive a kill during this one, and lie.
    (run.directory / "summary.json").unlink(missing_ok=True)
    with display.member(run.member) as progress:
        try:
            summary = train(
                run.member.experiment, run.directory, dataset=run.dataset, progress=progress
            )
        except KeyboardInterrupt:
            status = _existing_status(run) or "unfinished"
            return _outcome(run, status if status == "interrupted" else "unfinished", ran=True)
        except RunInUseError as error:
            return _outcome(run, BUSY, ran=False, error=str(error))
        except Exception as error:
            # Whatever stops one run must not stop the others; the record keeps the traceback.
            write_json(run.directory / "summary.json", _failed_summary(run, traceback.format_exc()))
            text = str(resource_error(error) or f"{type(error).__name__}: {error}")
            return _outcome(run, "failed", ran=True, error=text)
    return _outcome(run, summary["status"], ran=True, error=summary.get("error"))


def _outcome(run: Planned, status: str, *, ran: bool, error: str | None = None) -> Outcome:
    return Outcome(member=run.member, directory=run.directory, status=status, ran=ran, error=error)


def _failed_summary(run: Planned, error: str) -> dict[str, Any]:
    """A summary that states the failure, and null for everything that was not measured."""
    member = run.member
    return dict.fromkeys(SUMMARY_KEYS) | {
        "status": "failed",
        "variant": member.variant,
        "formula": formula(member.experiment.model.ffn),
        "d_ff": member.d_ff,
        "ffn_params": member.params,
        "macs_per_token": member.macs_per_token,
        "seed": member.seed,
        "identity_hash": identity_hash(member.experiment, run.dataset.fingerprint),
        "data_fingerprint": run.dataset.fingerprint,
        "error": error,
    }


class _Display:
    """One bar over all members, and one over the current member's steps."""

    def __init__(self, console: Console, total: int):
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._total = total
        self._done = 0
        self._overall: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        self._overall = self._bars.add_task("members", total=self._total, detail="")
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextlib.contextmanager
    def member(self, member: Member) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Shows a member; yields the callback that its lines of metrics go to."""
        task = self._bars.add_task(member.label, total=member.experiment.training.steps, detail="")

        def progress(entry: Mapping[str, Any]) -> None:
            self._bars.update(task, completed=entry.get("step", 0), detail=_detail(entry))

        try:
            yield progress
        finally:
            self._bars.remove_task(task)

    def finish(self, member: Member, status: str) -> None:
        """Counts a member and leaves a line of it, which logs without a terminal keep too."""
        self._done += 1
        self._bars.console.print(
            f"{self._done}/{self._total} {member.label}: {status}", highlight=False, markup=False
        )
        if self._overall is not None:
            self._bars.advance(self._overall)


def _detail(entry: Mapping[str, Any]) -> str:
    if isinstance(entry.get("message"), str):
        return entry["message"]
    parts = []
    for key, form in (("loss", "loss {:.3f}"), ("tokens_per_second", "{:,.0f} tokens/s")):
        value = entry.get(key)
        if isinstance(value, int | float):
            parts.append(form.format(value))
    return ", ".join(parts)

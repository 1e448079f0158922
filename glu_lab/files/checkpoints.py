"""Checkpoints of a training run, by Orbax; the only place that imports it.

A checkpoint holds the state (parameters, optimiser, step, RNG), and a JSON document with the data
iterator and the loop's own counters, under one step. A save that fails leaves the earlier
checkpoints as they are.
"""

import contextlib
import errno
import gc
import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
from orbax.checkpoint import v1 as ocp

from glu_lab.errors import RecordError
from glu_lab.files.state_hashes import changed, state_hashes

_STATE, _LOOP, _HASHES = "state", "loop", "sha256"
_METRIC = "log_perplexity"

# Orbax tells every save at INFO through absl; the run's own record is enough.
logging.getLogger("absl").setLevel(logging.WARNING)

_FULL = (errno.ENOSPC, errno.EDQUOT)
#: Files without which there is no checkpoint, and JSON files of one; a reader that fails on these
#: does not say on which.
_NEEDED = ("_CHECKPOINT_METADATA", f"{_STATE}/_METADATA", f"{_STATE}/manifest.ocdbt")
_DOCUMENTS = (*_NEEDED[:2], f"{_STATE}/array_metadatas/*", "metrics/metrics")
#: What TensorStore and Orbax append to a reason: specs of kilobytes, and options of their own.
_APPENDIX = re.compile(
    r"\s*(\[(tensorstore_spec|source locations|os_error_code)"
    r"|Truncating/padding|If this mismatch).*",
    re.DOTALL,
)
_LONGEST = 300
_SETTLING_SECONDS = 0.1


class Checkpoints:
    """The checkpoints of one run directory.

    Attributes:
        directory: the folder that holds them.
    """

    def __init__(self, directory: Path, keep: int, mode: Literal["write", "read"] = "write"):
        """Opens the folder; to write, also creates it and clears what a kill left half-written.

        Args:
            directory: absolute or relative path.
            keep: how many of the newest are kept; the one with the lowest validation loss is kept
                as well.
            mode: ``read`` changes nothing in the folder, so that a run can be read while another
                process trains it.

        Raises:
            RecordError: when the folder cannot be made or read.
        """
        policies = ocp.training.preservation_policies
        self.directory = Path(directory).absolute()
        self._failed = False
        if mode == "read" and not self.directory.is_dir():
            raise RecordError(f"there are no checkpoints: {self.directory} is no folder.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(
                f"checkpoints in {directory} cannot be opened: {error.strerror or error}."
            ) from error
        try:
            # Orbax's annotations do not accept its own policy classes.
            keeping: Any = policies.AnyPreservationPolicy(
                [
                    policies.LatestN(max(1, keep)),
                    policies.BestN(
                        # The end of the sorted list is kept: descending puts the lowest there.
                        get_metric_fn=lambda metrics: metrics[_METRIC],
                        reverse=True,
                        n=1,
                        keep_checkpoints_without_metrics=False,
                    ),
                ]
            )
            with _quiet():
                self._checkpointer = ocp.training.Checkpointer(
                    str(self.directory),
                    preservation_policy=keeping,
                    cleanup_tmp_directories=mode == "write",
                )
        except (OSError, ValueError) as error:
            # Opening reads the losses that the best checkpoint is known by.
            folders = sorted(p for p in self.directory.iterdir() if p.name.isdigit())
            damaged = [folder for folder in folders if _damage(folder)]
            advice = f" Remove {damaged[0]} to do without that one." if damaged else ""
            raise RecordError(
                f"checkpoints in {directory} cannot be opened: "
                f"{_reason(error, damaged[0] if damaged else self.directory)}.{advice}"
            ) from error

    def latest(self) -> int | None:
        """The newest complete step; None where there is none."""
        newest = self._checkpointer.latest
        return None if newest is None else newest.step

    def steps(self) -> list[int]:
        """All complete steps, in order."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def save(
        self, step: int, state: Any, loop: Mapping[str, Any], log_perplexity: float | None = None
    ) -> None:
        """Writes one checkpoint and waits until it is whole.

        Args:
            step: optimiser steps done.
            state: a tree of arrays, typed keys included.
            loop: JSON-ready; the data iterator's state and the loop's counters.
            log_perplexity: validation loss at this step, which decides what is best.

        Raises:
            RecordError: when it could not be written; the message names the last good step.
        """
        document = json.loads(json.dumps({_LOOP: dict(loop)}, allow_nan=False))
        document[_HASHES] = state_hashes(state)
        last = self.latest()
        try:
            with _quiet():
                self._checkpointer.save_checkpointables(
                    step,
                    {_STATE: state},
                    custom_metadata=document,
                    metrics=None if log_perplexity is None else {_METRIC: log_perplexity},
                    force=True,
                )
        except Exception as error:
            self._failed = True
            kept = (
                "There is none before it."
                if last is None
                else f"The last good one (step {last}) is unharmed."
            )
            raise RecordError(
                f"the checkpoint of step {step} was not written to {self.directory}: "
                f"{_reason(error, self.directory)}. {kept}"
            ) from error

    def load(self, abstract_state: Any, step: int | None = None) -> tuple[int, Any, dict[str, Any]]:
        """Reads a checkpoint.

        Args:
            abstract_state: shapes, dtypes and shardings wanted; shardings may differ from those
                saved, and are the first device where none is given.
            step: None for the newest.

        Returns:
            (step, state, loop document).

        Raises:
            RecordError: when there is none, or it does not fit.
        """
        step = self.latest() if step is None else step
        if step is None:
            raise RecordError(f"there is no checkpoint in {self.directory} yet.")
        if step not in self.steps():
            raise RecordError(
                f"no checkpoint of step {step} in {self.directory}; there are {self.steps()}."
            )
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here),
            abstract_state,
        )
        try:
            with _quiet():
                loaded = self._checkpointer.load_checkpointables(step, {_STATE: wanted})
                document: Any = self._checkpointer.metadata(step).custom_metadata
            if not isinstance(document, Mapping) or _LOOP not in document:
                # Orbax takes a document that it cannot parse for one without entries.
                raise ValueError("the training loop's part of _CHECKPOINT_METADATA is not there")
        except Exception as error:
            raise RecordError(
                f"the checkpoint of step {step} in {self.directory} cannot be read: "
                f"{_reason(error, self.directory / str(step))}.{self._instead_of(step)}"
            ) from error
        # TensorStore reads whatever bytes are there. Checkpoints from before this record have none.
        if damaged := changed(loaded[_STATE], document.get(_HASHES, {})):
            raise RecordError(
                f"the checkpoint of step {step} in {self.directory} is damaged: {damaged[0]}"
                f"{f' and {len(damaged) - 1} more arrays' if damaged[1:] else ''} came back with "
                f"other bytes than were saved.{self._instead_of(step)}"
            )
        return step, loaded[_STATE], document[_LOOP]

    def hashes(self, step: int) -> dict[str, str]:
        """SHA-256 of a state's arrays by path, as recorded; empty where nothing was.

        Raises:
            RecordError: when it cannot be read.
        """
        document = self._ask(step, lambda orbax: orbax.metadata(step).custom_metadata)
        recorded = document.get(_HASHES) if isinstance(document, Mapping) else None
        return dict(recorded) if isinstance(recorded, Mapping) else {}

    def describe(self, step: int) -> Any:
        """Shapes and dtypes of a checkpoint's state, as the leaves of its tree.

        Raises:
            RecordError: when it cannot be read.
        """
        tree = self._ask(step, lambda orbax: orbax.checkpointables_metadata(step).metadata[_STATE])
        damage = _damage(self.directory / str(step))
        if not jax.tree.leaves(tree) and damage:
            # Orbax takes a tree that it cannot parse for an empty one.
            raise RecordError(
                f"the checkpoint of step {step} in {self.directory} cannot be read: {damage}."
            )
        return tree

    def load_part(self, step: int, wanted: Any) -> Any:
        """Some arrays of a checkpoint's state, in the memory of the host.

        Args:
            step: which checkpoint.
            wanted: its tree, with a NumPy array of the right shape and dtype for each array to
                load and `...` for every other.

        Raises:
            RecordError: when they cannot be read.
        """
        return self._ask(step, lambda orbax: orbax.load_checkpointables(step, {_STATE: wanted}))

    def _ask(self, step: int, question: Callable[[Any], Any]) -> Any:
        try:
            with _quiet():
                return question(self._checkpointer)
        except Exception as error:
            raise RecordError(
                f"the checkpoint of step {step} in {self.directory} cannot be read: "
                f"{_reason(error, self.directory / str(step))}."
            ) from error

    def _instead_of(self, step: int) -> str:
        """What to do without a checkpoint."""
        others = [other for other in self.steps() if other != step]
        if not others:
            return " There is no other."
        return (
            f" There are others, of step {', '.join(map(str, others))}: ask for one of these, or "
            f"remove {self.directory / str(step)} to go on from step {others[-1]}."
        )

    def close(self) -> None:
        """Releases the folder."""
        try:
            with _quiet():
                self._checkpointer.close()
        except Exception:
            # Orbax raises a failed save's error once more here; `save` has told of it.
            if not self._failed:
                raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax's account of a failure off the terminal.

    It logs one traceback for each thread that met the failure, and leaves tasks behind that report
    themselves when they are collected. What is raised says it once, and has the whole chain as its
    cause.
    """

    def drop(record: logging.LogRecord) -> bool:
        return False

    def unheard(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)

    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    report = sys.unraisablehook
    for logger in loggers:
        logger.addFilter(drop)
    sys.unraisablehook = unheard
    try:
        yield
    except BaseException as error:
        # The frames of the chain hold those tasks; they go here rather than at some later moment,
        # once TensorStore's threads have had theirs.
        time.sleep(_SETTLING_SECONDS)
        for each in _chain(error):
            traceback.clear_frames(each.__traceback__)
        gc.collect()
        raise
    finally:
        sys.unraisablehook = report
        for logger in loggers:
            logger.removeFilter(drop)


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and those that led to it, the first cause last."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) and earlier not in chain:
        chain.append(earlier)
    return chain


def _reason(error: BaseException, folder: Path) -> str:
    """Why Orbax could not do it: one line, with the file where one is known.

    Its own message lists every handler and shape; what went wrong is in the first exception of
    the chain.

    Args:
        error: what Orbax raised.
        folder: of the checkpoint, or of all.
    """
    chain = _chain(error)
    for number in _FULL:
        told = os.strerror(number)
        if any(getattr(e, "errno", None) == number or told in str(e) for e in chain):
            return f"{told[0].lower()}{told[1:]}; free some, then start again to go on"
    damage = _damage(folder)
    if damage:
        return damage
    text = " ".join(_APPENDIX.sub("", str(chain[-1])).split())
    # TensorStore names the operation and what it was part of; file and fault come last.
    files = list(re.finditer(rf'"({re.escape(str(folder))}[^"]*)"', text))
    if files:
        place = Path(files[-1][1])
        fault = text[files[-1].end() :].strip(": ")
        fault = fault or ("cannot be read" if place.exists() else "missing")
        text = f"{place.relative_to(folder.parent)}: {fault}"
    text = text.strip("\"' .")
    return f"{text[:_LONGEST]}…" if len(text) > _LONGEST else text or type(chain[-1]).__name__


def _damage(folder: Path) -> str:
    """What is missing of a checkpoint or not readable as JSON; empty text where nothing is."""
    if not folder.name.isdigit():
        return ""
    for name in _NEEDED:
        if not (folder / name).exists():
            return f"{folder.name}/{name} is missing"
    for pattern in _DOCUMENTS:
        for file in sorted(folder.glob(pattern)):
            place = file.relative_to(folder.parent)
            try:
                json.loads(file.read_text(encoding="utf-8"))
            except OSError as error:
                return f"{place} cannot be read: {error.strerror}"
            except ValueError:
                return f"{place} is damaged: it holds no whole JSON document"
    return ""

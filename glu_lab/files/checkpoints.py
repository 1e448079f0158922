"""Checkpoints of a training run, by Orbax; the only place that imports it.

A checkpoint holds the state (parameters, optimiser, step, RNG), and a JSON document with the data
iterator and the loop's own counters, under one step. A save that fails leaves the earlier
checkpoints as they are.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
from orbax.checkpoint import v1 as ocp

from glu_lab.errors import RecordError

_STATE, _LOOP = "state", "loop"
_METRIC = "log_perplexity"

# Orbax tells every save at INFO through absl; the run's own record is enough.
logging.getLogger("absl").setLevel(logging.WARNING)


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
            self._checkpointer = ocp.training.Checkpointer(
                str(self.directory),
                preservation_policy=keeping,
                cleanup_tmp_directories=mode == "write",
            )
        except (OSError, ValueError) as error:
            raise RecordError(f"checkpoints in {directory} cannot be opened: {error}") from error

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
        last = self.latest()
        try:
            self._checkpointer.save_checkpointables(
                step,
                {_STATE: state},
                custom_metadata=document,
                metrics=None if log_perplexity is None else {_METRIC: log_perplexity},
                force=True,
            )
        except Exception as error:
            self._failed = True
            kept = "none yet" if last is None else f"step {last}"
            raise RecordError(
                f"the checkpoint of step {step} was not written to {self.directory}: {error}. "
                f"The last good one ({kept}) is unharmed."
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
        if step is None or step not in self.steps():
            raise RecordError(
                f"no checkpoint of step {step} in {self.directory}; there are {self.steps()}."
            )
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding or here),
            abstract_state,
        )
        try:
            loaded = self._checkpointer.load_checkpointables(step, {_STATE: wanted})
            document: Any = self._checkpointer.metadata(step).custom_metadata
        except Exception as error:
            raise RecordError(
                f"the checkpoint of step {step} in {self.directory} cannot be read: {error}"
            ) from error
        return step, loaded[_STATE], document[_LOOP]

    def close(self) -> None:
        """Releases the folder."""
        try:
            self._checkpointer.close()
        except Exception:
            # Orbax raises a failed save's error once more here; `save` has told of it.
            if not self._failed:
                raise

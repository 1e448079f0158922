"""The training loop, top to bottom.

The next step is dispatched before the metrics of the last one are read, so that the device never
waits for the host. Everything that a resumed run needs is in the checkpoint: state, data iterator,
and the sums of the unfinished log window.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from glu_lab.errors import DataError, LostProcessError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.files.revision import source_revision
from glu_lab.layers.params import leaves
from glu_lab.models import parameters
from glu_lab.sharding.mesh import make_mesh
from glu_lab.sharding.processes import (
    any_process,
    from_leader,
    is_leader,
    noticing_loss,
)
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.identity import identity_hash
from glu_lab.spec.manifest import manifest
from glu_lab.training import telemetry
from glu_lab.training.environment import environment
from glu_lab.training.evaluation import Totals, evaluate, metrics
from glu_lab.training.initial import check_initial, initial_params
from glu_lab.training.programs import (
    Programs,
    dropout_key,
    program_key,
    programs,
)
from glu_lab.training.record import RunDirectory
from glu_lab.training.schedule import learning_rate
from glu_lab.training.signals import StopSignals
from glu_lab.training.state import check_layout
from glu_lab.training.summary import Counters, summarize
from glu_lab.training.tensorboard import event_writer

#: Called with each line of metrics, and with ``{"kind": "status", "step", "message"}``.
Progress = Callable[[Mapping[str, Any]], None]

#: Statuses after which there is nothing left to train.
FINAL = ("complete", "diverged")


def train(
    experiment: Experiment,
    workdir: Path,
    *,
    dataset: Any = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Trains one run, or takes it up where it stopped.

    Args:
        experiment: the run.
        workdir: its folder: empty, or of this same run.
        dataset: a loaded `glu_lab.data.TextDataset` of ``experiment.data``; None loads it.
        progress: for a display.

    Returns:
        The summary, as in ``summary.json``. Its ``status`` is ``complete``; ``diverged`` after a
        non-finite loss, gradient or final validation, with step and place in ``error``; or
        ``interrupted`` after Ctrl-C or SIGTERM, with a checkpoint to go on from.

    Raises:
        RecordError: for a foreign folder, a run of another identity, or a disk that takes no more.
        DataError: for data that do not fit.
        SpecError: for a mesh or batch that does not fit the devices.
    """
    report = progress or (lambda entry: None)
    # What can be refused without the data is refused before they are prepared.
    mesh = make_mesh(experiment.execution.mesh)
    check_layout(experiment.model, experiment.execution.rules, mesh)
    run = RunDirectory(Path(workdir))
    from_leader(lambda: run.check(experiment))
    if not run.has_checkpoints():
        check_initial(experiment)
    if dataset is None:
        from glu_lab.data import load

        dataset = load(
            experiment.data,
            progress=lambda line: report({"kind": "status", "step": 0, "message": line}),
        )
    if dataset.spec != experiment.data:
        raise DataError(
            "the dataset given was loaded from another data Spec than the experiment's."
        )
    program = programs(program_key(experiment, dataset))
    described = manifest(
        experiment,
        dataset.fingerprint,
        parameters=_described(experiment),
        revision=source_revision(),
    )

    def claim() -> dict[str, Any] | None:
        run.check(experiment, dataset.fingerprint)
        finished = run.summary()
        if finished is not None and finished["status"] in FINAL:
            # Before anything is written: its record says what made it, not who looked at it later.
            return finished
        run.claim(experiment, dataset.tokenizer.model, described, environment(experiment.execution))
        (run.path / "summary.json").unlink(missing_ok=True)
        return None

    checkpoints: Checkpoints | None = None

    def how_to_go_on() -> str:
        last = None if checkpoints is None else checkpoints.latest()
        return (
            "There is no checkpoint yet; the same command starts anew."
            if last is None
            else f"The same command, in all processes, goes on from the checkpoint of step {last}."
        )

    try:
        with noticing_loss(how_to_go_on):
            finished = from_leader(claim)
            if finished is not None:
                return finished
            checkpoints = Checkpoints(run.path / "checkpoints", experiment.recording.keep)
            return _Session(experiment, run, checkpoints, dataset, program, report).run()
    finally:
        # Closing waits for all processes, and a lost one never comes.
        if checkpoints is not None and not isinstance(sys.exception(), LostProcessError):
            checkpoints.close()
        run.close()


def _described(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The parameter table as plain data, for the manifest."""
    return {
        path: {
            "shape": list(p.shape),
            "axes": list(p.axes),
            "initial_std": p.init.stddev(p.size(p.inputs), p.size(p.outputs)),
        }
        for path, p in leaves(parameters(experiment.model))
    }


@dataclasses.dataclass(kw_only=True)
class _Step:
    """One dispatched step whose metrics may not be read yet."""

    number: int
    batch: Any
    learning_rate: float
    out: Mapping[str, Any]


class _Diverged(Exception):
    """A non-finite loss or gradient."""

    def __init__(self, step: _Step):
        super().__init__(step.number)
        self.step = step


class _Session:
    """One process's work on a run."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunDirectory,
        checkpoints: Checkpoints,
        dataset: Any,
        program: Programs,
        report: Progress,
    ):
        self.experiment, self.record, self.checkpoints = experiment, run, checkpoints
        self.dataset, self.program, self.report = dataset, program, report
        self.counters = Counters()
        self.events = event_writer(run.path, is_leader() and experiment.recording.tensorboard)
        group, groups = program.process_rows()
        self.iterator = dataset.train_iterator(
            seed=experiment.seed,
            batch_size=experiment.training.batch_size,
            process_index=group,
            process_count=groups,
        )
        # Positions that the model reads in one step: encoder and decoder, or the rows.
        batch = dataset.batch_spec(experiment.training.batch_size)
        self.positions = sum(
            int(np.prod(batch[name][0]))
            for name in ("encoder_tokens", "decoder_tokens", "tokens")
            if name in batch
        )
        self.last_evaluation: tuple[int, dict[str, Any]] | None = None
        self.last_telemetry: dict[str, Any] | None = None
        self.started = time.time()

    def run(self) -> dict[str, Any]:
        training, recording = self.experiment.training, self.experiment.recording
        self._status(0, "compiling")
        self.program.compile()
        number, state = self._start()
        from_leader(lambda: self.record.open_metrics(number))
        last: _Step | None = None
        several = jax.process_count() > 1
        with StopSignals() as signals, self.events:
            clock = time.perf_counter()
            try:
                while number < training.steps:
                    batch = self.program.put_rows(next(self.iterator))
                    rate = learning_rate(training.schedule, number, training.steps)
                    state, out = self.program.train(state, batch, np.float32(rate))
                    number += 1
                    if last is not None:
                        self._account(last)
                    last = _Step(number=number, batch=batch, learning_rate=rate, out=out)

                    due = {
                        name: number == training.steps or (every > 0 and number % every == 0)
                        for name, every in (
                            ("log", recording.log_every),
                            ("evaluate", recording.eval_every),
                            ("telemetry", recording.telemetry_every),
                            ("save", recording.checkpoint_every),
                        )
                    }
                    if several:
                        # All stop after the same step; they ask each other only when they log.
                        stop = due["log"] and any_process(signals.stop)
                    else:
                        stop = signals.stop
                    if not (any(due.values()) or stop):
                        continue
                    step, last = last, None
                    self._account(step)
                    self._add_time(time.perf_counter() - clock)
                    if due["log"]:
                        self._log(step)
                    if due["evaluate"]:
                        self._evaluate(number, state)
                    if due["telemetry"]:
                        self._telemetry(step, state)
                    if due["save"] or stop:
                        self._save(number, state)
                    if stop and number < training.steps:
                        return self._finish("interrupted", number)
                    clock = time.perf_counter()
                self._evaluate(number, state)
                if not training.steps:
                    self._save(number, state)
                return self._complete(number)
            except _Diverged as stop:
                return self._diverged(stop.step, state)

    # Beginning and end.

    def _start(self) -> tuple[int, Any]:
        """Initial state, or that of the newest checkpoint."""
        if self.checkpoints.latest() is None:
            key = self.program.put_key(self.experiment.seed)
            if self.experiment.initial.path:
                self._status(0, f"reading {self.experiment.initial.path}")
            return 0, self.program.init(key, initial_params(self.experiment))
        step, state, loop = self.checkpoints.load(self.program.abstract_state())
        self.iterator.set_state(loop["iterator"])
        self.counters = Counters.from_json(loop["counters"])
        self.last_telemetry = loop["telemetry"]
        if loop["evaluation"] is not None:
            measured_at, measured = loop["evaluation"]
            self.last_evaluation = (measured_at, measured)
        self._status(step, f"resumed at step {step}")
        return step, state

    def _save(self, step: int, state: Any) -> None:
        measured = None
        if self.last_evaluation is not None and self.last_evaluation[0] == step:
            measured = self.last_evaluation[1]["log_perplexity"]
        loop = {
            "iterator": self.iterator.get_state(),
            "counters": self.counters.to_json(),
            "telemetry": self.last_telemetry,
            "evaluation": self.last_evaluation,
            "identity_hash": identity_hash(self.experiment, self.dataset.fingerprint),
        }
        self.checkpoints.save(step, state, loop, measured)

    def _finish(self, status: str, step: int, error: str | None = None) -> dict[str, Any]:
        written = summarize(
            self.experiment,
            self.dataset.fingerprint,
            status=status,
            step=step,
            counters=self.counters,
            evaluation=None if self.last_evaluation is None else self.last_evaluation[1],
            observed=self.last_telemetry,
            seconds=time.time() - self.started,
            error=error,
        )
        from_leader(lambda: self.record.write_summary(written))
        return written

    def _complete(self, step: int) -> dict[str, Any]:
        """Ends a run whose every step was finite; its last update may still have been too large."""
        assert self.last_evaluation is not None
        measured = self.last_evaluation[1]
        if measured["log_perplexity"] is not None:
            return self._finish("complete", step)
        place = self.last_telemetry and telemetry.first_non_finite(self.last_telemetry)
        message = f"non-finite validation loss after step {step}: {place or 'the logits'}"
        self._write({"step": step, "kind": "diverged", "message": message})
        return self._finish("diverged", step, message)

    def _diverged(self, step: _Step, state: Any) -> dict[str, Any]:
        """Names the place of a non-finite number; the state is still that before the step."""
        key = dropout_key(state["rng"], state["step"])
        sown = self.program.observe(state["params"], step.batch, key)
        place = telemetry.first_non_finite(telemetry.report(jax.device_get(sown)))
        sums = jax.device_get(step.out["sums"])
        if place is None and all(np.isfinite(value) for value in sums.values()):
            rms = jax.device_get(self.program.gradients(state, step.batch))
            bad = [
                f"{path} layer {layer}" if np.ndim(value) else path
                for path, value in rms.items()
                for layer in np.flatnonzero(~np.isfinite(np.atleast_1d(value)))
            ]
            place = "the gradient of " + (", ".join(bad[:5]) or "no parameter by itself")
        place = place or "the logits"
        message = f"non-finite at step {step.number}: {place}"
        self._write({"step": step.number, "kind": "diverged", "message": message})
        return self._finish("diverged", step.number, message)

    # Inside the loop.

    def _account(self, step: _Step) -> None:
        """Reads one step's sums; the step after it is running meanwhile."""
        if not bool(step.out["finite"]):
            raise _Diverged(step)
        c, before = self.counters, self.counters.window.tokens
        c.window.add(jax.device_get(step.out["sums"]))
        c.tokens_seen += c.window.tokens - before
        c.positions += self.positions
        c.window_positions += self.positions

    def _add_time(self, seconds: float) -> None:
        self.counters.train_seconds += seconds
        self.counters.window_seconds += seconds

    def _log(self, step: _Step) -> None:
        c, training = self.counters, self.experiment.training
        entry = {
            "step": step.number,
            "kind": "train",
            "loss": c.window.mean,
            "tokens": c.window.tokens,
            "accuracy": c.window.correct / c.window.tokens if c.window.tokens else None,
            "learning_rate": step.learning_rate,
            "gradient_norm": float(step.out["gradient_norm"]),
        }
        if training.z_loss and c.window.tokens:
            entry["z_loss"] = training.z_loss * c.window.z_squared / c.window.tokens
        entry["tokens_per_second"] = c.window_positions / c.window_seconds
        c.window, c.window_seconds, c.window_positions = Totals(), 0.0, 0
        self._write(entry)

    def _evaluate(self, step: int, state: Any) -> None:
        if self.last_evaluation is not None and self.last_evaluation[0] == step:
            return
        batches = self.dataset.validation(self.experiment.eval_batch_size)
        totals = evaluate(
            self.program.evaluate, state["params"], map(self.program.put_batch, batches)
        )
        measured = metrics(totals, utf8_bytes=self.dataset.scored_bytes)
        self.last_evaluation = (step, measured)
        self._write({"step": step, "kind": "eval", **measured})

    def _telemetry(self, step: _Step, state: Any) -> None:
        key = dropout_key(state["rng"], step.number)
        sown = self.program.observe(state["params"], step.batch, key)
        observed = telemetry.report(jax.device_get(sown))
        self.last_telemetry = observed
        rms = jax.tree.map(telemetry.plain, jax.device_get(step.out["rms"]))
        self._write({"step": step.number, "kind": "telemetry", "ffn": observed, "rms": rms})

    def _write(self, entry: Mapping[str, Any]) -> None:
        if is_leader():
            self.record.write_metrics(entry)
            self.events.write(entry)
        self.report(entry)

    def _status(self, step: int, message: str) -> None:
        self.report({"kind": "status", "step": step, "message": message})

"""A trained run, opened to be used: words and validation numbers from its checkpoint."""

import json
from pathlib import Path

from glu_lab.data.tokenizer_files import open_tokenizer
from glu_lab.errors import RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.spec.codec import decode
from glu_lab.spec.experiment import Experiment
from glu_lab.training.ready import ReadyModel
from glu_lab.training.record import TOKENIZER_FILE, RunDirectory
from glu_lab.training.state import state_shapes


class TrainedRun(ReadyModel):
    """A run directory opened to be used.

    Attributes:
        workdir: its folder.
    """

    def __init__(self, workdir: Path, step: int | None = None):
        """Reads a run.

        Args:
            workdir: its folder.
            step: which checkpoint; None for the newest.

        Raises:
            RecordError: when it is no run, or has no such checkpoint.
        """
        self.workdir = Path(workdir)
        config, pieces = workdir / "config.json", workdir / TOKENIZER_FILE
        for file in (config, workdir / "manifest.json", pieces):
            if not file.is_file():
                raise RecordError(
                    f"{workdir} is no run of `glu-lab train`: {file.name} is missing."
                )
        try:
            tree = json.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecordError(f"{config} is not JSON: {error}.") from error
        experiment = decode(Experiment, tree)
        # A config that was edited names another function than the one whose weights lie here.
        run = RunDirectory(workdir)
        run.check(experiment)
        if not (workdir / "checkpoints").is_dir():
            raise RecordError(_without_weights(run, experiment))
        data = experiment.data
        sentinels = data.num_sentinels if data.objective == "span_corruption" else 0
        tokenizer = open_tokenizer(pieces.read_bytes(), sentinels, name=str(pieces))
        shapes = state_shapes(experiment.model, experiment.numerics, experiment.training.optimizer)
        checkpoints = Checkpoints(workdir / "checkpoints", experiment.recording.keep, "read")
        try:
            if checkpoints.latest() is None:
                raise RecordError(_without_weights(run, experiment))
            found, state, _ = checkpoints.load(shapes, step)
        finally:
            checkpoints.close()
        manifest = json.loads((workdir / "manifest.json").read_text(encoding="utf-8"))
        super().__init__(
            str(workdir),
            experiment,
            tokenizer,
            state["params"],
            step=found,
            fingerprint=manifest["identity"]["data_fingerprint"],
        )


def _without_weights(run: RunDirectory, experiment: Experiment) -> str:
    """Why a run has no checkpoint, and what to do."""
    summary = run.summary() or {}
    status, error = summary.get("status"), (summary.get("error") or "").strip()
    reason = f": {error.splitlines()[-1]}" if error else ""
    if status == "diverged":
        return (
            f"{run.path} diverged before its first checkpoint{reason}. There are no weights to "
            "use; train it anew in another folder, with a lower training.schedule.peak."
        )
    if status == "complete":
        return f"{run.path} is complete, but its checkpoints are gone; train it anew."
    every, steps = experiment.recording.checkpoint_every, experiment.training.steps
    first = min(every, steps) if every > 0 else steps
    begun = f"failed{reason}" if status == "failed" else "has not come so far, or was stopped"
    return (
        f"{run.path} has no checkpoint yet: the first is written at step {first}, and the run "
        f"{begun}. Wait for it, or go on with `glu-lab train` (or the sweep) as it was started."
    )

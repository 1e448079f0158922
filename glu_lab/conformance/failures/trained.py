"""Trained weights, read under the Spec that they were trained with or under another one."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.conformance.failures.proposed import small_experiment
from glu_lab.data import load
from glu_lab.models import parameters
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.ffn import FFN
from glu_lab.training.evaluation import Totals, evaluate
from glu_lab.training.loop import train
from glu_lab.training.programs import program_key, programs
from glu_lab.training.trained import TrainedRun


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Trained weights and the FFN Spec under which they are now read.

    Attributes:
        run: the trained run.
        dataset: its data.
        ffn: the Spec.
    """

    run: TrainedRun
    dataset: Any
    ffn: FFN

    @functools.cached_property
    def before(self) -> Totals:
        """Validation sums under the Spec that the weights were trained with."""
        return self._validated(self.run.experiment.model.ffn)

    @functools.cached_property
    def after(self) -> Totals:
        """The same weights, batches and tokens under the Spec that they are read as."""
        return self._validated(self.ffn)

    def _validated(self, ffn: FFN) -> Totals:
        program = programs(program_key(_with_ffn(self.run.experiment, ffn), self.dataset))
        batches = self.dataset.validation(self.run.experiment.eval_batch_size)
        params = program.put_params(self.run.params)
        return evaluate(program.evaluate, params, map(program.put_batch, batches))

    def seems_right(self) -> bool:
        """Every array has the name and shape that the Spec asks for, and the loss is finite."""
        trained = parameters(self.run.experiment.model)
        asked = parameters(_with_ffn(self.run.experiment, self.ffn).model)
        return trained == asked and bool(np.isfinite(self.after.mean))


def _with_ffn(experiment: Experiment, ffn: FFN) -> Experiment:
    return dataclasses.replace(experiment, model=dataclasses.replace(experiment.model, ffn=ffn))


def trained_weights(folder: Path) -> Weights:
    """The small experiment, trained in a folder and read again under its own Spec."""
    experiment = small_experiment()
    dataset = load(experiment.data)
    train(experiment, folder / "run", dataset=dataset)
    run = TrainedRun(folder / "run")
    return Weights(run=run, dataset=dataset, ffn=experiment.model.ffn)

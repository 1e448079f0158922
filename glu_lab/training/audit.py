"""The audit of a run's compiled programs, on virtual devices."""

import math
from typing import Any

from glu_lab.data.shapes import UnpreparedDataset
from glu_lab.errors import SpecError
from glu_lab.sharding import targets
from glu_lab.sharding.audit import Audit, audit, model_sites
from glu_lab.sharding.collectives import COMPILER_OPTIONS, collectives
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.sharding import parse_mesh
from glu_lab.training.programs import Programs, program_key


def audit_program(experiment: Experiment, program: str = "train") -> Audit:
    """The audit of one program of an experiment.

    Args:
        experiment: its ``execution.mesh`` states every size.
        program: ``train`` or ``evaluate``.

    Raises:
        SpecError: before anything is compiled, for a mesh or sizes that do not fit.
        DataError: for lengths that do not fit.
    """
    sizes = parse_mesh(experiment.execution.mesh, devices=None)
    key = program_key(experiment, UnpreparedDataset(experiment.data))
    # On a mesh without devices first, which refuses what does not divide.
    nowhere: Any = targets.abstract_mesh(sizes)
    Programs(key, nowhere)
    count = math.prod(sizes.values())
    if count > targets.MAX_VIRTUAL_DEVICES:
        raise SpecError(
            f"mesh {experiment.execution.mesh!r} has {count:,} devices; there can be "
            f"{targets.MAX_VIRTUAL_DEVICES:,} virtual ones. Make 'data' and the batch "
            "(--config.training.batch_size) smaller alike: a device then sends the same."
        )
    targets.use_virtual_devices(count)
    mesh = targets.device_mesh(sizes, targets.virtual_devices(count))
    lowered = Programs(key, mesh).lower(program)
    text = lowered.compile(compiler_options=dict(COMPILER_OPTIONS)).as_text()
    assert text is not None
    batch = dict(key.train_batch if program == "train" else key.eval_batch)
    sites = model_sites(experiment.model, batch, experiment.execution.rules, sizes)
    return audit(collectives(text, mesh), sites)

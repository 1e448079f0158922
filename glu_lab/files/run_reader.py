"""The parameters of a glu_lab training run, read from one of its checkpoints.

Names are the canonical paths, ``decoder/layers/ffn/wi``. Optimiser, step and random state stay
where they are: each parameter is loaded by itself, into the memory of the host.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from glu_lab.errors import RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.files.tensor_file import TensorFile, TensorInfo

_PARAMS = "params"
#: What Orbax takes for a leaf that is not to be loaded.
_SKIPPED = ...


class RunFile(TensorFile):
    """One checkpoint of a run.

    Its metadata are ``step``; ``steps``, all that there are; ``sha256``, what was recorded of the
    parameters when they were saved.
    """

    format = "glu_lab-run"

    def __init__(self, path: Path, step: int | None = None):
        """Opens a checkpoint; reads names, shapes and types.

        Args:
            path: the run's folder, or its ``checkpoints`` folder.
            step: which; None for the newest.

        Raises:
            RecordError: when there is none, none of that step, or it is damaged.
        """
        path = Path(path)
        inner = path / "checkpoints"
        self._checkpoints = Checkpoints(inner if inner.is_dir() else path, 1, "read")
        try:
            steps = self._checkpoints.steps()
            if not steps:
                raise RecordError(f"there is no checkpoint in {path} yet.")
            self._step = steps[-1] if step is None else step
            if self._step not in steps:
                raise RecordError(f"no checkpoint of step {step} in {path}; there are {steps}.")
            tree = self._checkpoints.describe(self._step)
            leaves, self._shape = jax.tree_util.tree_flatten_with_path(tree)
            infos: dict[str, TensorInfo] = {}
            self._places: dict[str, int] = {}
            for place, (keys, leaf) in enumerate(leaves):
                first, *rest = (str(getattr(key, "key", key)) for key in keys)
                if first == _PARAMS and rest:
                    name = "/".join(rest)
                    dtype = np.dtype(leaf.dtype)
                    infos[name] = TensorInfo(name, tuple(leaf.shape), dtype, path, dtype.name)
                    self._places[name] = place
            if not infos:
                raise RecordError(f"the checkpoint of step {self._step} in {path} holds no params.")
        except BaseException:
            self._checkpoints.close()
            raise
        recorded = self._checkpoints.hashes(self._step)
        own = {
            k.removeprefix(f"{_PARAMS}/"): v for k, v in recorded.items() if k.startswith(_PARAMS)
        }
        super().__init__(path, infos, {"step": self._step, "steps": steps, "sha256": own})

    def read(self, name: str) -> np.ndarray:
        info = self.info(name)
        leaves: list[Any] = [_SKIPPED] * self._shape.num_leaves
        # Orbax loads what is asked for as a NumPy array as one; this one takes no memory.
        leaves[self._places[name]] = np.broadcast_to(np.zeros((), info.dtype), info.shape)
        wanted = jax.tree.unflatten(self._shape, leaves)
        loaded = self._checkpoints.load_part(self._step, wanted)
        array = jax.tree.leaves(loaded)[self._places[name]]
        array.flags.writeable = False
        return array

    def close(self) -> None:
        self._checkpoints.close()

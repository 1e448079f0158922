"""Opens a whole model that another project wrote: its function, its weights, what names it."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from glu_lab.errors import FileFormatError, LayoutError, SpecError
from glu_lab.files.contents import file_sha256, non_finite
from glu_lab.files.strict_json import parse_object
from glu_lab.files.tensors import open_tensors
from glu_lab.layouts.hints import some
from glu_lab.pretrained import gguf, hugging_face
from glu_lab.pretrained.agreement import differences
from glu_lab.pretrained.families import Family, family_of
from glu_lab.pretrained.weights import read_params
from glu_lab.spec.identity import digest
from glu_lab.spec.model import Model

#: Files of a folder that are part of a model: its weights and what says how to read them.
_WEIGHT_SUFFIXES = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf")


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model's checkpoint, read as far as its headers.

    Attributes:
        path: a GGUF file, or a folder with ``config.json`` and weights.
        family: how its tensors lie.
        model: the function that it states; initialisers and dropouts are not part of it.
        tensors: how many it has.
        nbytes: of the arrays that are read.
        dtypes: of the arrays that are read.
    """

    path: Path
    family: Family
    model: Model
    tensors: int
    nbytes: int
    dtypes: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """What names its content: of a file's bytes, or of a folder's files by name."""
        return content_sha256(self.path)

    def check_dtype(self, dtype: str) -> None:
        """Refuses a format that would round the weights.

        Raises:
            LayoutError: naming what is stored.
        """
        if narrowed := [s for s in self.dtypes if not np.can_cast(np.dtype(s), np.dtype(dtype))]:
            raise LayoutError(
                f"{self.path} stores {', '.join(narrowed)}, which {dtype} would round. Set "
                f"numerics.parameter_dtype={narrowed[0]!r} or a wider one."
            )

    def params(self, dtype: str = "float32") -> dict[str, Any]:
        """The weights as a tree of NumPy arrays of canonical form.

        Args:
            dtype: of every array. Wider formats than those stored change no value.

        Raises:
            LayoutError: for tensors that do not fit, are not finite, or would be rounded.
        """
        self.check_dtype(dtype)
        with open_tensors(self.path) as file:
            if bad := non_finite(file):
                raise LayoutError(f"{self.path} has weights that are not finite: {some(bad)}.")
            stored = read_params(self.family, file.names(), file.read, self.model)
        return jax.tree.map(lambda array: np.ascontiguousarray(array, dtype), stored)


def open_pretrained(path: Path) -> Pretrained:
    """Reads what a checkpoint states of itself; no weights yet.

    Args:
        path: a GGUF file; or a folder of Hugging Face's form, with ``config.json`` and weights.

    Raises:
        FileFormatError: when it cannot be read.
        LayoutError: when it states a function that no Spec here says.
        UnknownNameError: for another architecture, with those that are read.
    """
    path = Path(path)
    if not path.exists():
        raise FileFormatError(f"{path} does not exist.")
    with open_tensors(path) as file:
        if file.format == "gguf":
            source = str(path)
            family = family_of("gguf", str(file.metadata.get("general.architecture")))
            model = gguf.read_model(file.metadata, set(file), source)
        else:
            config = path / "config.json" if path.is_dir() else path.parent / "config.json"
            if not config.is_file():
                raise FileFormatError(
                    f"{config} is missing: tensors alone do not say which function they are of."
                )
            attributes = parse_object(config.read_bytes(), str(config))
            family = family_of("hf", str(attributes.get("model_type")))
            model = hugging_face.read_model(attributes, str(config))
        infos = [file.info(name) for name in file]
        dtypes = tuple(sorted({info.dtype.name for info in infos}))
        return Pretrained(
            path, family, model, len(infos), sum(info.nbytes for info in infos), dtypes
        )


def check_model(ours: Model, checkpoint: Pretrained) -> None:
    """Holds the Model of an experiment against what a checkpoint states.

    Raises:
        SpecError: naming every field in which they are two functions.
    """
    if different := differences(ours, checkpoint.model):
        raise SpecError(
            f"the model of the config is another function than that of {checkpoint.path} (config → "
            f"checkpoint): {'; '.join(different)}."
        )
    if ours.max_length > checkpoint.model.max_length:
        raise SpecError(
            f"model.max_length={ours.max_length} is over the {checkpoint.model.max_length} "
            f"positions that {checkpoint.path} states."
        )


def content_sha256(path: Path) -> str:
    """The hash that names a checkpoint's content, wherever it lies.

    Args:
        path: a file: the hash of its bytes. A folder: that of the names and hashes of its weights
            and its ``config.json``.

    Raises:
        FileFormatError: when something cannot be read.
    """
    path = Path(path)
    if not path.is_dir():
        return file_sha256(path)
    names = sorted(
        name
        for name in os.listdir(path)
        if name == "config.json" or (name.endswith(_WEIGHT_SUFFIXES) and not name.startswith("."))
    )
    return digest({name: file_sha256(path / name) for name in names})

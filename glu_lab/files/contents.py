"""What a tensor file's elements are: digests, and values that are not finite."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from glu_lab.errors import FileFormatError
from glu_lab.files.element_types import is_floating
from glu_lab.files.hashed_output import c_order
from glu_lab.files.tensor_file import TensorFile

_PIECE = 1 << 20


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """How many of a tensor's elements are no numbers.

    Attributes:
        nan: elements that are NaN.
        infinite: elements that are +∞ or −∞.
        size: all elements.
    """

    nan: int
    infinite: int
    size: int


def non_finite(file: TensorFile) -> dict[str, NonFinite]:
    """The tensors that hold NaN or infinity, with counts; empty when all is finite.

    Reads every floating tensor once, piece by piece.

    Raises:
        FileFormatError: when a tensor cannot be read.
    """
    floating = (name for name in file if is_floating(file.info(name).dtype))
    counts = {name: _count(file, name) for name in floating}
    return {name: count for name, count in counts.items() if count.nan or count.infinite}


def _count(file: TensorFile, name: str) -> NonFinite:
    flat = file.read(name).reshape(-1)
    nan = infinite = 0
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        bad = piece[~np.isfinite(piece)]
        undefined = int(np.count_nonzero(np.isnan(bad)))
        nan += undefined
        infinite += bad.size - undefined
    return NonFinite(nan, infinite, flat.size)


def tensor_sha256(file: TensorFile, name: str) -> str:
    """SHA-256 of a tensor's elements as `TensorFile.read` gives them, little-endian in C order.

    It is what the safetensors writer of this room returned for the tensor.
    """
    return array_sha256(file.read(name))


def array_sha256(array: np.ndarray) -> str:
    """SHA-256 of an array's elements, little-endian in C order."""
    digest = hashlib.sha256()
    for piece in c_order(array):
        digest.update(piece)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
        FileFormatError: when it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error

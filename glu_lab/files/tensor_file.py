"""What every reader of tensor files offers, whatever the format.

A reader checks a file's own account of itself (names, types, shapes, where the bytes lie) when it
is opened, against the size that the file really has, and allocates nothing that the file merely
claims. Tensors are then read one at a time.
"""

import abc
import dataclasses
import difflib
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np

from glu_lab.errors import FileFormatError

#: NumPy's own limit on the rank of an array.
MAX_RANK = 64
#: No array has more bytes than this.
_MAX_BYTES = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor as `TensorFile.read` returns it.

    Attributes:
        name: its name in the file.
        shape: its shape, slowest axis first.
        dtype: element type of the array that is read; float32 where the file holds quantised
            blocks.
        file: where it lies; None for one that is yet to be written.
        encoding: how the file stores it, in the format's own words (``BF16``, ``Q4_K``).
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    file: Path | None = None
    encoding: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array that is read; less may lie in the file."""
        return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class ByteRange:
    """A tensor's elements as they lie in an open file: little-endian, C order, nothing else.

    Attributes:
        descriptor: of the file; valid while the `TensorFile` is open.
        offset: of the first byte.
        nbytes: how many.
        file: for messages.
    """

    descriptor: int
    offset: int
    nbytes: int
    file: Path

    def read_into(self, start: int, buffer: memoryview) -> int:
        """Fills a buffer from `start` bytes into the range; returns how many bytes were read.

        Raises:
            FileFormatError: when the file has become shorter, or cannot be read.
        """
        wanted = min(len(buffer), self.nbytes - start)
        done = 0
        while done < wanted:
            try:
                got = os.preadv(self.descriptor, [buffer[done:wanted]], self.offset + start + done)
            except OSError as error:
                raise FileFormatError(f"{self.file} cannot be read: {error.strerror}.") from error
            if not got:
                raise FileFormatError(f"{self.file} has become shorter while it was read.")
            done += got
        return wanted


class TensorFile(abc.ABC):
    """An open file, or set of files, of named tensors.

    Attributes:
        format: one word for the kind of file.
        path: what was opened.
        metadata: everything in it that is no tensor: text for safetensors, typed values (lists
            and NumPy arrays among them) for GGUF.
        aliases: groups of names whose tensors overlap in one storage, which only some formats
            can say. Tensors that merely hold equal bytes are not among them.
    """

    format: ClassVar[str]

    def __init__(self, path: Path, infos: Mapping[str, TensorInfo], metadata: Mapping[str, Any]):
        self.path = path
        self.metadata = metadata
        self.aliases: tuple[tuple[str, ...], ...] = ()
        self._infos = dict(infos)

    def names(self) -> tuple[str, ...]:
        """All names, in the file's order."""
        return tuple(self._infos)

    def info(self, name: str) -> TensorInfo:
        """What the file says of a tensor.

        Raises:
            FileFormatError: when it has none of that name.
        """
        try:
            return self._infos[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._infos, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f" among its {len(self)}."
            raise FileFormatError(f"{self.path} has no tensor {name!r}{hint}") from None

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """One tensor, and no other byte of the file.

        Returns:
            A read-only array; a view of the mapped file where the format allows it. Its memory is
            given back with the array, which may be used after the file is closed.

        Raises:
            FileFormatError: for an unknown name, or bytes that are no value of the type.
            ResourceError: when there is no memory for the tensor.
        """

    def byte_range(self, name: str) -> ByteRange | None:
        """Where a tensor's plain bytes lie; None where the file stores it in another way."""
        self.info(name)
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the file; arrays that were read stay good."""

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OneFile(TensorFile):
    """A `TensorFile` that is one open file on the disk, which it closes."""

    def __init__(
        self,
        path: Path,
        descriptor: int,
        infos: Mapping[str, TensorInfo],
        metadata: Mapping[str, Any],
    ):
        super().__init__(path, infos, metadata)
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _range(self, offset: int, nbytes: int) -> ByteRange:
        if self._descriptor < 0:
            raise FileFormatError(f"{self.path} is closed.")
        return ByteRange(self._descriptor, offset, nbytes, self.path)


def check_shape(where: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Refuses a shape that no array can have.

    Zero extents do not hide the others: NumPy refuses (0, 2⁶²) as well.

    Raises:
        FileFormatError: naming `where`.
    """
    if len(shape) > MAX_RANK:
        raise FileFormatError(f"{where} has {len(shape)} axes; {MAX_RANK} is the most.")
    total = itemsize
    for extent in shape:
        # Checked at each step, so that no product of absurd extents is ever computed.
        if not 0 <= extent <= _MAX_BYTES or total * max(extent, 1) > _MAX_BYTES:
            raise FileFormatError(f"{where} has a shape beyond any memory: {_short(shape)}.")
        total *= max(extent, 1)


def open_regular(path: Path) -> tuple[int, int]:
    """Opens a regular file for reading: (descriptor, size in bytes).

    Raises:
        FileFormatError: when it is missing, unreadable, or no regular file (a named pipe would
            wait for ever).
    """
    try:
        # O_NONBLOCK only keeps the opening of a named pipe from waiting for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileFormatError(f"{path} cannot be opened: {reason}.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise FileFormatError(f"{path} is no regular file.")
    return descriptor, status.st_size


def _short(value: Any, limit: int = 80) -> str:
    """A value for a message, cut where it is long; a lying file may hold very long ones."""
    if isinstance(value, tuple) and any(extent.bit_length() > 200 for extent in value):
        return "extents of hundreds of digits"
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "…"

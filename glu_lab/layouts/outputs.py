"""One tensor of a conversion: the blocks that it is copied from, and how it is built.

Data until `Output.build` is called. Peak memory of a build is the result and one input.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts.axes import Access


class Key(NamedTuple):
    """A stored tensor: its name, and the tensor-parallel rank whose file it is in."""

    name: str
    rank: int = 0


#: Gives the array of a source tensor; a memory map is best where one tensor holds many layers.
Reader = Callable[[Key], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Copy:
    """One block, or one rank's part of it, on its way.

    Attributes:
        source: where it comes from.
        take: where it stands there.
        put: where it goes in the output.
        replicas: further ranks that hold the same values; a difference is an error.
    """

    source: Key
    take: Access
    put: Access
    replicas: tuple[Key, ...] = ()


@dataclasses.dataclass(frozen=True)
class Output:
    """One tensor of the target.

    Attributes:
        key: its name and rank.
        shape, dtype: of the result; the dtype is that of its inputs.
        copies: what it is made of, one source after another. What none of them fills is a bias of
            zeros that the caller asked for.
        full: whether the copies fill it.
        renames: the source whose bytes it is, in their order; None where it has to be built.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: Any
    copies: tuple[Copy, ...]
    full: bool
    renames: Key | None = None

    @property
    def inputs(self) -> tuple[Key, ...]:
        """The source tensors that it needs, in the order of reading."""
        keys = [key for copy in self.copies for key in (copy.source, *copy.replicas)]
        return tuple(dict.fromkeys(keys))

    @property
    def nbytes(self) -> int:
        """Size of the result."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def build(self, read: Reader) -> np.ndarray:
        """The tensor, bit for bit; a view of its input where it is one block of it.

        Args:
            read: called once for each source, one after another.

        Raises:
            LayoutError: when an array has not the dtype that was planned with, or ranks disagree
                on values of which each holds a whole copy.
        """
        if self.full and len(self.copies) == 1 and not self.copies[0].put.gathers:
            (copy,) = self.copies
            array = self._read(read, copy.source)
            block = copy.take.read(array)
            self._check_replicas(read, copy, block)
            return array if self.renames is not None else copy.put.stored(block)
        if self.renames is not None:
            return self._read(read, self.renames)
        out = (np.empty if self.full else np.zeros)(self.shape, self.dtype)
        for source, copies in itertools.groupby(self.copies, key=lambda copy: copy.source):
            array = self._read(read, source)
            for copy in copies:
                block = copy.take.read(array)
                self._check_replicas(read, copy, block)
                copy.put.write(out, block)
            del array, block  # before the next is read: one input is in memory at a time
        return out

    def _read(self, read: Reader, key: Key) -> np.ndarray:
        array = read(key)
        if array.dtype != self.dtype:
            raise LayoutError(
                f"{key.name!r} was planned as {self.dtype} and read as {array.dtype}."
            )
        return array

    def _check_replicas(self, read: Reader, copy: Copy, block: np.ndarray) -> None:
        for key in copy.replicas:
            other = copy.take.read(self._read(read, key))
            if other.tobytes() != block.tobytes():
                raise LayoutError(
                    f"{key.name!r} differs between ranks {copy.source.rank} and {key.rank}; every "
                    "rank holds a whole copy of it, which is kept once and never summed."
                )

"""Writes a file and its SHA-256 digests in one pass over the bytes.

A piece is hashed for its tensor and written while it is still in the processor's cache. The
digest of the whole file, where it is wanted, runs beside in a thread (hashlib lets go of the
interpreter): on an idle second core it costs next to nothing, otherwise a second hash.
"""

import collections
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from glu_lab.files.tensor_file import ByteRange

_PIECE = 1024 * 1024
#: Bytes of one system call. With megabytes, Linux 6.18 on ext4 was seen to look for large free
#: blocks of memory for each call, which took five times as long as the copy itself.
_CALL = 256 * 1024
#: Pieces that the file's digest may lag behind; each has a buffer of its own.
_LAG = 16


class HashedOutput:
    """An open file that is written from front to back.

    Attributes:
        nbytes: written so far.
    """

    def __init__(self, descriptor: int, *, hash_file: bool):
        self._descriptor = descriptor
        self._file_hash = hashlib.sha256() if hash_file else None
        self._thread = ThreadPoolExecutor(1)
        self._lagging: collections.deque[Future[None]] = collections.deque()
        self._buffers = [memoryview(bytearray(_PIECE)) for _ in range(_LAG + 1)]
        self._next_buffer = 0
        self.nbytes = 0

    def __enter__(self) -> "HashedOutput":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def write(self, content: bytes) -> None:
        """Writes what belongs to no tensor."""
        self._piece(memoryview(content))

    def write_array(self, array: np.ndarray) -> str:
        """Writes the elements in C order; returns their digest.

        An array that lies in another order is copied piece by piece, never as a whole.
        """
        digest = hashlib.sha256()
        for piece in c_order(array):
            digest.update(piece)
            self._piece(piece)
        # The caller may let the array go, or change it.
        self._catch_up(0)
        return digest.hexdigest()

    def write_range(self, source: ByteRange) -> str:
        """Copies a range of another file undecoded; returns its digest.

        Raises:
            FileFormatError: when the source has become shorter.
        """
        digest = hashlib.sha256()
        done = 0
        while done < source.nbytes:
            buffer = self._buffers[self._next_buffer]
            self._next_buffer = (self._next_buffer + 1) % len(self._buffers)
            piece = buffer[: source.read_into(done, buffer)]
            digest.update(piece)
            self._piece(piece)
            done += len(piece)
        return digest.hexdigest()

    def file_digest(self) -> str | None:
        """The digest of all that was written; None where it was not wanted."""
        self._catch_up(0)
        return None if self._file_hash is None else self._file_hash.hexdigest()

    def _piece(self, piece: memoryview) -> None:
        if self._file_hash is not None:
            self._lagging.append(self._thread.submit(self._file_hash.update, piece))
        done = 0
        while done < len(piece):
            done += os.write(self._descriptor, piece[done : done + _CALL])
        self.nbytes += len(piece)
        self._catch_up(_LAG)

    def _catch_up(self, lag: int) -> None:
        """Waits until the file's digest is no more than so many pieces behind."""
        while len(self._lagging) > lag:
            self._lagging.popleft().result()


def c_order(array: np.ndarray) -> Iterator[memoryview]:
    """The elements of an array in C order, as pieces of bytes."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE]
        return
    row = array.nbytes // len(array)
    if row > _PIECE:
        for part in array:
            yield from c_order(part)
        return
    step = max(1, _PIECE // row)
    for start in range(0, len(array), step):
        part = np.ascontiguousarray(array[start : start + step])
        yield part.reshape(-1).view(np.uint8).data

"""How the tensors of a conversion flow from open files into the writer.

Bytes that stay as they are go from file to file undecoded; all else is built one tensor at a time.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from glu_lab.files.safetensors_writer import Entry, described
from glu_lab.files.tensor_file import ByteRange, TensorFile
from glu_lab.layouts.outputs import Key, Output, Reader

#: Told of bytes as they are written.
Advance = Callable[[int], None]


def entry_of(output: Output, files: Sequence[TensorFile], advance: Advance) -> Entry:
    """An output as the writer takes it.

    Args:
        output: of a plan.
        files: the source, one open file a rank.
        advance: told of its bytes.
    """
    info = described(output.key.name, output.shape, output.dtype)
    if output.renames is not None and is_copied(output, files):
        where = files[output.renames.rank].byte_range(output.renames.name)
        assert where is not None
        return announced((info, where), advance)
    # A renamed tensor may join axes that its source has apart.
    return announced(
        (info, lambda: output.build(plain(files)).reshape(output.shape)),
        advance,
    )


def is_copied(output: Output, files: Sequence[TensorFile]) -> bool:
    """Whether a tensor's bytes go from file to file as they are."""
    if output.renames is None or any(copy.replicas for copy in output.copies):
        return False
    return files[output.renames.rank].byte_range(output.renames.name) is not None


@dataclasses.dataclass(frozen=True)
class _ToldRange(ByteRange):
    """Bytes of another file that tell how far they are copied."""

    advance: Callable[[int], None]

    def read_into(self, start: int, buffer: memoryview) -> int:
        got = super().read_into(start, buffer)
        self.advance(got)
        return got


def announced(entry: Entry, advance: Advance) -> Entry:
    """An entry that tells of its progress."""
    info, produce = entry
    if isinstance(produce, ByteRange):
        where = produce.descriptor, produce.offset, produce.nbytes, produce.file
        return info, _ToldRange(*where, advance)

    def build() -> np.ndarray:
        array = produce()
        advance(info.nbytes)
        return array

    return info, build


def plain(files: Sequence[TensorFile]) -> Reader:
    """Reads tensors of open files, keeping none."""
    return lambda key: files[key.rank].read(key.name)


def cached(files: Sequence[TensorFile], keep: int = 4) -> Reader:
    """Reads tensors of open files; the last few that had to be decoded are kept."""
    held: dict[Key, np.ndarray] = {}

    def read(key: Key) -> np.ndarray:
        if key in held:
            return held[key]
        array = files[key.rank].read(key.name)
        if files[key.rank].byte_range(key.name) is None:
            while len(held) >= keep:
                del held[next(iter(held))]
            held[key] = array
        return array

    return read

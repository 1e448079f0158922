"""Arrays that are windows on a file.

One mapping a tensor: it goes with the last array that uses it, so a file of any size can be read
tensor by tensor without its pages gathering in the process.
"""

import mmap

import numpy as np

from glu_lab.errors import FileFormatError, ResourceError
from glu_lab.files.tensor_file import ByteRange


def map_bytes(where: ByteRange) -> np.ndarray:
    """A range of an open file as a read-only uint8 array.

    Args:
        where: the range; it must lie in the file, or touching the array ends the process.

    Raises:
        FileFormatError: when the system maps no more.
    """
    if not where.nbytes:
        return np.empty(0, np.uint8)
    start = where.offset % mmap.ALLOCATIONGRANULARITY
    try:
        window = mmap.mmap(
            where.descriptor,
            start + where.nbytes,
            access=mmap.ACCESS_READ,
            offset=where.offset - start,
        )
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{where.file} cannot be mapped: {error}.") from error
    return np.frombuffer(window, np.uint8, where.nbytes, start)


def map_array(where: ByteRange, shape: tuple[int, ...], dtype: np.dtype, name: str) -> np.ndarray:
    """A tensor of plain elements as a read-only array; a copy only where it lies unaligned.

    Args:
        where: its bytes, exactly as many as shape and type take.
        shape, dtype: of the array.
        name: of the tensor, for messages.

    Raises:
        FileFormatError: for a boolean that is neither 0 nor 1, or when it cannot be mapped.
        ResourceError: when there is no memory for a copy.
    """
    # Some writers do not pad the header; NumPy is then better served by a copy.
    aligned = where.offset % dtype.alignment == 0
    raw = map_bytes(where) if aligned else _copy_bytes(where)
    if dtype == np.bool_ and raw.size and raw.max() > 1:
        raise FileFormatError(
            f"tensor {name!r} of {where.file} holds a boolean of {raw.max()}; only 0 and 1 are."
        )
    array = raw.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _copy_bytes(where: ByteRange) -> np.ndarray:
    try:
        raw = np.empty(where.nbytes, np.uint8)
    except MemoryError as error:
        raise ResourceError(f"no memory for {where.nbytes:,} bytes of {where.file}.") from error
    where.read_into(0, raw.data)
    return raw

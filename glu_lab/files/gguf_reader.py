"""Reads one GGUF file: typed metadata, tokenizer included, and tensors decoded on the way.

The format (ggml, ``docs/gguf.md``, versions 2 and 3): magic, version, number of tensors, number
of key–value pairs; the pairs; the tensors' names, extents (fastest axis first), types and
offsets; padding; the data, each tensor on a multiple of ``general.alignment``. Little-endian.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.errors import FileFormatError, ResourceError
from glu_lab.files.ggml_blocks import ENCODINGS, UNREAD, Encoding, dequantize
from glu_lab.files.mapping import map_array, map_bytes
from glu_lab.files.tensor_file import (
    ByteRange,
    OneFile,
    TensorInfo,
    check_shape,
    open_regular,
)

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_AXES = 4  # of ggml
_MAX_ALIGNMENT = 1 << 20
#: More than any vocabulary; a list of more values is a lie that would cost memory to follow.
_MAX_ITEMS = 1 << 24
_MAX_LEVELS = 4

#: Number of a scalar type → how it is written.
_SCALARS: dict[int, np.dtype] = {
    0: np.dtype(np.uint8),
    1: np.dtype(np.int8),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype(np.bool_),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_TEXT, _LIST = 8, 9


class GGUFFile(OneFile):
    """One GGUF file.

    Its metadata have Python's scalars and texts; a list of texts is a list, a list of numbers is
    a NumPy array of the type that the file states.
    """

    format = "gguf"

    def __init__(self, path: Path):
        """Opens and checks a file; reads its header and nothing else.

        Raises:
            FileFormatError: when it is truncated, damaged, of another version or byte order, one
                part of several, or has a type that is not read.
        """
        path = Path(path)
        descriptor, size = open_regular(path)
        try:
            metadata, infos, self._places = _read_header(descriptor, size, path)
        except BaseException:
            os.close(descriptor)
            raise
        super().__init__(path, descriptor, infos, metadata)

    def read(self, name: str) -> np.ndarray:
        info = self.info(name)
        encoding, where = self._where(name)
        if encoding.decode is None:
            return map_array(where, info.shape, info.dtype, name)
        try:
            array = dequantize(map_bytes(where), encoding, info.shape)
        except MemoryError as error:
            raise ResourceError(
                f"no memory for the {info.nbytes:,} bytes of tensor {name!r} of {self.path}."
            ) from error
        array.flags.writeable = False
        return array

    def byte_range(self, name: str) -> ByteRange | None:
        self.info(name)
        encoding, where = self._where(name)
        return where if encoding.decode is None else None

    def _where(self, name: str) -> tuple[Encoding, ByteRange]:
        encoding, offset, nbytes = self._places[name]
        return encoding, self._range(offset, nbytes)


class _Cursor:
    """Reads the header from front to back and never beyond the end."""

    def __init__(self, content: mmap.mmap, path: Path):
        self._content, self.path = content, path
        self.position, self.size = 0, len(content)

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.position:
            raise FileFormatError(
                f"{self.path} ends within {what}: {count:,} bytes from byte {self.position:,} on, "
                f"of {self.size:,}. It is truncated or damaged."
            )
        start = self.position
        self.position += count
        return self._content[start : self.position]

    def number(self, kind: str, what: str) -> int:
        return struct.unpack("<" + kind, self.take(struct.calcsize(kind), what))[0]

    def count(self, least: int, what: str) -> int:
        """A number of things that take at least so many bytes each, if they can be there."""
        count = self.number("Q", what)
        if count * least > self.size - self.position or count > _MAX_ITEMS:
            raise FileFormatError(
                f"{self.path} announces {count:,} {what}; {self.size - self.position:,} bytes are "
                f"left, and {_MAX_ITEMS:,} is the most that is read."
            )
        return count

    def text(self, what: str) -> str:
        raw = self.take(self.number("Q", what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{what} of {self.path} is not UTF-8.") from error

    def value(self, kind: int, what: str, level: int = 0) -> Any:
        if kind == _TEXT:
            return self.text(what)
        if kind == _LIST:
            return self._list(what, level)
        return self._scalars(kind, 1, what).item()

    def _list(self, what: str, level: int) -> Any:
        if level == _MAX_LEVELS:
            raise FileFormatError(f"{what} of {self.path} nests lists too deeply.")
        kind = self.number("I", what)
        if kind == _TEXT:
            return [self.text(what) for _ in range(self.count(8, f"texts in {what}"))]
        if kind == _LIST:
            lists = self.count(12, f"lists in {what}")
            return [self._list(what, level + 1) for _ in range(lists)]
        return self._scalars(kind, None, what)

    def _scalars(self, kind: int, count: int | None, what: str) -> np.ndarray:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise FileFormatError(f"{what} of {self.path} has the unknown type {kind}.")
        if count is None:
            count = self.count(dtype.itemsize, f"numbers in {what}")
        raw = self.take(count * dtype.itemsize, what)
        if dtype == np.bool_ and count and max(raw) > 1:
            raise FileFormatError(f"{what} of {self.path} has a boolean that is neither 0 nor 1.")
        return np.frombuffer(raw, dtype)


_Place = tuple[Encoding, int, int]
_Header = tuple[dict[str, Any], dict[str, TensorInfo], dict[str, _Place]]


def _read_header(descriptor: int, size: int, path: Path) -> _Header:
    if size < 24:
        raise FileFormatError(f"{path} has {size} bytes, too few for a GGUF file.")
    try:
        content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be mapped: {error}.") from error
    with content:
        cursor = _Cursor(content, path)
        if cursor.take(4, "the magic") != MAGIC:
            raise FileFormatError(f"{path} does not start with {MAGIC.decode()}.")
        version = cursor.number("I", "the version")
        if version not in _VERSIONS:
            swapped = " (the file is big-endian)" if version and not version & 0xFFFF else ""
            raise FileFormatError(
                f"{path} has GGUF version {version}{swapped}; read are 2 and 3, little-endian."
            )
        tensors = cursor.count(24, "tensors")
        metadata = _pairs(cursor)
        alignment = _alignment(metadata, path)
        parts = metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise FileFormatError(
                f"{path} is one of {parts} parts of a split model; join them first "
                "(llama-gguf-split --merge)."
            )
        described = [_described(cursor) for _ in range(tensors)]
        start = cursor.position + -cursor.position % alignment
    infos: dict[str, TensorInfo] = {}
    places: dict[str, _Place] = {}
    for info, encoding, offset in described:
        if info.name in infos:
            raise FileFormatError(f"{path} has tensor {info.name!r} twice.")
        nbytes = info.size // encoding.elements * encoding.nbytes
        infos[info.name], places[info.name] = info, (encoding, start + offset, nbytes)
    _check_places(places, start, size, alignment, path)
    return metadata, infos, places


def _pairs(cursor: _Cursor) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count(13, "metadata keys")):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise FileFormatError(f"{cursor.path} has the metadata key {key[:200]!r} twice.")
        what = f"metadata {key[:200]!r}"
        metadata[key] = cursor.value(cursor.number("I", what), what)
    return metadata


def _alignment(metadata: dict[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
        raise FileFormatError(
            f"{path} has general.alignment {str(value)[:80]}; a power of two is expected."
        )
    return value


def _described(cursor: _Cursor) -> tuple[TensorInfo, Encoding, int]:
    name = cursor.text("a tensor's name")
    where = f"tensor {name[:200]!r} of {cursor.path}"
    axes = cursor.number("I", where)
    if axes > _MAX_AXES:
        raise FileFormatError(f"{where} has {axes:,} axes; ggml has no more than {_MAX_AXES}.")
    # ggml lists the fastest axis first, NumPy the slowest.
    shape = tuple(reversed([cursor.number("Q", where) for _ in range(axes)]))
    number = cursor.number("I", where)
    offset = cursor.number("Q", where)
    encoding = ENCODINGS.get(number)
    if encoding is None:
        kind = UNREAD.get(number, f"number {number}")
        read = ", ".join(known.name for known in ENCODINGS.values())
        raise FileFormatError(f"{where} is stored as {kind}; read are {read}.")
    check_shape(where, shape, encoding.dtype.itemsize)
    if (shape[-1] if shape else 1) % encoding.elements:
        raise FileFormatError(
            f"{where} has rows of {shape[-1] if shape else 1:,}, not a multiple of the "
            f"{encoding.elements} elements of a {encoding.name} block."
        )
    return TensorInfo(name, shape, encoding.dtype, cursor.path, encoding.name), encoding, offset


def _check_places(
    places: dict[str, _Place], start: int, size: int, alignment: int, path: Path
) -> None:
    """The tensors follow each other with padding alone between them, and end the file."""
    position, before = start, "the header"
    for name, (_, offset, nbytes) in sorted(places.items(), key=lambda item: item[1][1:]):
        if offset != position:
            fault = "a gap" if offset > position else "an overlap"
            raise FileFormatError(
                f"{path} has {fault} between {before} and tensor {name!r}: it begins at byte "
                f"{offset:,}, where {position:,} was expected."
            )
        end = offset + nbytes
        if end > size:
            raise FileFormatError(
                f"{path} is truncated: tensor {name!r} ends at byte {end:,} of {size:,}."
            )
        position, before = end + -end % alignment, f"tensor {name!r}"
    if size > position:
        raise FileFormatError(f"{path} has {size - position:,} bytes that belong to no tensor.")

"""Reads one safetensors file: a strict header, then views of the mapped file.

The format (safetensors README, "Format"): eight bytes of little-endian N, N bytes of a JSON
object name → {dtype, shape, data_offsets}, then the elements. Offsets count from the end of the
header and leave neither gap nor overlap; ``__metadata__`` maps text to text.
"""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.errors import FileFormatError
from glu_lab.files.element_types import DTYPES, PACKED
from glu_lab.files.mapping import map_array
from glu_lab.files.strict_json import is_utf8, parse_object
from glu_lab.files.tensor_file import (
    ByteRange,
    OneFile,
    TensorInfo,
    check_shape,
    open_regular,
)

#: The format's own limit on N.
MAX_HEADER = 100_000_000
METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}


class SafetensorsFile(OneFile):
    """One .safetensors file."""

    format = "safetensors"

    def __init__(self, path: Path):
        """Opens and checks a file; reads its header and nothing else.

        Raises:
            FileFormatError: when it is truncated, damaged, or says what cannot be true.
        """
        path = Path(path)
        descriptor, size = open_regular(path)
        try:
            header = _read_header(descriptor, size, path)
            self._data = 8 + len(header)
            entries = parse_object(header, f"the header of {path}")
            metadata = _metadata(entries.pop(METADATA, {}), path)
            infos, self._offsets = _tensors(entries, size - self._data, path)
        except BaseException:
            os.close(descriptor)
            raise
        super().__init__(path, descriptor, infos, metadata)

    def read(self, name: str) -> np.ndarray:
        info = self.info(name)
        return map_array(self.byte_range(name), info.shape, info.dtype, name)

    def byte_range(self, name: str) -> ByteRange:
        info = self.info(name)
        return self._range(self._data + self._offsets[name], info.nbytes)


def _read_header(descriptor: int, size: int, path: Path) -> bytes:
    if size < 8:
        raise FileFormatError(f"{path} has {size} bytes; a safetensors file has more than 8.")
    (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
    if length > min(MAX_HEADER, size - 8):
        limit = f"the format allows {MAX_HEADER:,} bytes and the file has {size - 8:,} left"
        raise FileFormatError(
            f"{path} says that its header has {length:,} bytes, but {limit}: it is truncated, or "
            "no safetensors file."
        )
    header = os.pread(descriptor, length, 8)
    if len(header) < length:
        raise FileFormatError(f"{path} has become shorter while it was read.")
    if header[:1] != b"{":
        raise FileFormatError(f"the header of {path} does not start with '{{' but {header[:1]!r}.")
    return header


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict):
        raise FileFormatError(f"{METADATA} of {path} is no object but {type(value).__name__}.")
    for key, text in value.items():
        if not isinstance(text, str) or not is_utf8(text):
            raise FileFormatError(f"{METADATA} of {path} maps {key[:200]!r} to what is no text.")
    return value


def _tensors(
    entries: dict[str, Any], data_size: int, path: Path
) -> tuple[dict[str, TensorInfo], dict[str, int]]:
    """Infos and offsets in the order in which the tensors lie."""
    found: list[tuple[int, int, TensorInfo]] = []
    for name, entry in entries.items():
        info, begin, end = _tensor(name, entry, path)
        found.append((begin, end, info))
    found.sort(key=lambda item: item[:2])
    position, before = 0, "the header"
    for begin, end, info in found:
        if begin != position:
            fault = "a gap" if begin > position else "an overlap"
            raise FileFormatError(
                f"{path} has {fault} between {before} and tensor {info.name!r}: it begins at byte "
                f"{begin:,} of the data, where {position:,} was expected."
            )
        position, before = end, f"tensor {info.name!r}"
    if position != data_size:
        fault = (
            f"it is truncated: {position - data_size:,} bytes are missing"
            if position > data_size
            else f"{data_size - position:,} bytes at its end belong to no tensor"
        )
        raise FileFormatError(
            f"{path} holds {data_size:,} bytes of data, its header describes {position:,}; {fault}."
        )
    return (
        {info.name: info for _, _, info in found},
        {info.name: begin for begin, _, info in found},
    )


def _tensor(name: str, entry: Any, path: Path) -> tuple[TensorInfo, int, int]:
    where = f"tensor {name[:200]!r} of {path}"
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise FileFormatError(f"{where} is described by {got}, not by {sorted(_FIELDS)}.")
    type_name = entry["dtype"]
    if not isinstance(type_name, str) or type_name not in DTYPES:
        packed = " (its elements are smaller than a byte)" if type_name in PACKED else ""
        raise FileFormatError(
            f"{where} has the type {str(type_name)[:80]!r}{packed}; read are {', '.join(DTYPES)}."
        )
    shape = _whole_numbers(entry["shape"])
    offsets = _whole_numbers(entry["data_offsets"])
    if shape is None:
        raise FileFormatError(f"{where} has no shape of whole numbers ≥ 0.")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileFormatError(f"{where} has no data_offsets [begin, end] with 0 ≤ begin ≤ end.")
    dtype = DTYPES[type_name]
    check_shape(where, shape, dtype.itemsize)
    info = TensorInfo(name, shape, dtype, path, type_name)
    begin, end = offsets
    if end >= 2**63:
        raise FileFormatError(f"{where} ends beyond any file.")
    if end - begin != info.nbytes:
        raise FileFormatError(
            f"{where} has {end - begin:,} bytes; shape {list(shape)} of {type_name} takes "
            f"{info.nbytes:,}."
        )
    return info, begin, end


def _whole_numbers(value: Any) -> tuple[int, ...] | None:
    """A list of numbers ≥ 0 as a tuple; None for anything else (True is no number)."""
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        return None
    return tuple(value)

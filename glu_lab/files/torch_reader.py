"""Reads tensors saved by torch (``pytorch_model.bin``, ``consolidated.00.pth``), and nothing else.

Such a file is a zip archive of raw storages and one pickle that says how tensors are cut from
them. A pickle is a program; this one is only ever given to torch's own weights-only reader, which
builds tensors and plain containers and refuses every other name. The storages are mapped.
"""

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from glu_lab.errors import FileFormatError
from glu_lab.files.tensor_file import (
    TensorFile,
    TensorInfo,
    check_shape,
    open_regular,
)

ZIP_MAGIC = b"PK\x03\x04"
#: Beginning of what torch wrote before version 1.6: a pickled number, then several pickles.
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

#: torch.<name> → the NumPy type, and the torch type of that size that NumPy can be handed.
_DTYPES: dict[str, tuple[np.dtype, str | None]] = {
    "float64": (np.dtype("<f8"), None),
    "float32": (np.dtype("<f4"), None),
    "float16": (np.dtype("<f2"), None),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), "int16"),
    "float8_e4m3fn": (np.dtype(ml_dtypes.float8_e4m3fn), "uint8"),
    "float8_e4m3fnuz": (np.dtype(ml_dtypes.float8_e4m3fnuz), "uint8"),
    "float8_e5m2": (np.dtype(ml_dtypes.float8_e5m2), "uint8"),
    "float8_e5m2fnuz": (np.dtype(ml_dtypes.float8_e5m2fnuz), "uint8"),
    "float8_e8m0fnu": (np.dtype(ml_dtypes.float8_e8m0fnu), "uint8"),
    "complex64": (np.dtype("<c8"), None),
    "int64": (np.dtype("<i8"), None),
    "int32": (np.dtype("<i4"), None),
    "int16": (np.dtype("<i2"), None),
    "int8": (np.dtype(np.int8), None),
    "uint64": (np.dtype("<u8"), None),
    "uint32": (np.dtype("<u4"), None),
    "uint16": (np.dtype("<u2"), None),
    "uint8": (np.dtype(np.uint8), None),
    "bool": (np.dtype(np.bool_), None),
}
_PICKLE = "/data.pkl"
#: The mapping is renewed after so many bytes, so that pages once read do not gather.
_WINDOW = 64 * 1024 * 1024
_MAX_PICKLE = 1 << 28
_MAX_LEVELS = 64


class TorchFile(TensorFile):
    """One file of torch.save. Nested containers give names joined by dots.

    Numbers and texts beside the tensors are its metadata; anything else is refused by name.
    """

    format = "torch"

    def __init__(self, path: Path):
        """Opens a file and its tensors' descriptions.

        Raises:
            FileFormatError: when torch is not installed, or the file is damaged, compressed, of
                the format before torch 1.6, or holds more than tensors, numbers and texts.
        """
        path = Path(path)
        try:
            import torch
        except ImportError as error:
            raise FileFormatError(
                f"reading {path} needs torch, which is not installed: pip install "
                "'glu_lab[reference]', or use the safetensors file of the same model."
            ) from error
        self._torch = torch
        stored = _check_archive(path)
        self._stamp = _stamp(path)
        self._touched = 0
        self._leaves: dict[str, Any] | None = self._load(path)
        tensors = {k: v for k, v in self._leaves.items() if isinstance(v, torch.Tensor)}
        infos = {name: _info(name, tensor, path) for name, tensor in tensors.items()}
        metadata = {k: v for k, v in self._leaves.items() if k not in tensors}
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
        used = sum(storage.nbytes() for storage in storages.values())
        if used != stored:
            raise FileFormatError(
                f"{path} stores {stored:,} bytes of elements, its tensors are cut from {used:,}; "
                "it is damaged, or holds something that is no tensor."
            )
        super().__init__(path, infos, metadata)
        self.aliases = _overlapping(tensors)

    def read(self, name: str) -> np.ndarray:
        info = self.info(name)
        if self._stamp is None:
            raise FileFormatError(f"{self.path} is closed.")
        if self._leaves is None or self._touched > _WINDOW:
            # Arrays handed out keep the old mapping as long as they need it.
            self._leaves = None
            if _stamp(self.path) != self._stamp:
                raise FileFormatError(f"{self.path} has changed while it was read.")
            self._leaves = self._load(self.path)
            self._touched = 0
        self._touched += info.nbytes
        tensor = self._leaves[name].detach()
        handed = _DTYPES[_name(tensor.dtype)][1]
        if handed is not None:
            tensor = tensor.view(getattr(self._torch, handed))
        array = tensor.resolve_conj().numpy().view(info.dtype)
        array.flags.writeable = False
        return array

    def close(self) -> None:
        self._leaves = self._stamp = None

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            content = self._torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            # torch's own text also advises to switch the protection off.
            text = str(error)
            if named := re.search(r"GLOBAL ([\w.]+)", text):
                raise FileFormatError(
                    f"{path} calls for {named[1]} when it is loaded; code in a pickle is never "
                    "executed here. Use a safetensors file, or save the state dict by itself."
                ) from error
            told = re.search(r"WeightsUnpickler error: (.+)", text)
            why = told[1] if told else next(iter(text.splitlines()), type(error).__name__)
            raise FileFormatError(
                f"{path} cannot be read as weights alone: {why[:200]}. It is damaged, or no file "
                "of plain tensors."
            ) from error
        return dict(_leaves(content, "", path, self._torch.Tensor))


def is_archive(path: Path) -> bool:
    """Whether a zip file has the parts of one that torch.save wrote; other programs zip too."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(
                name.count("/") == 1 and name.endswith(_PICKLE) for name in archive.namelist()
            )
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def _check_archive(path: Path) -> int:
    """Bytes of all storages, after a look at the archive's directory."""
    descriptor, _ = open_regular(path)
    try:
        with os.fdopen(descriptor, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FileFormatError(f"{path} is a damaged archive: {error}.") from error
    if packed := [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]:
        raise FileFormatError(
            f"{path} has the compressed entry {packed[0][:80]!r}; torch compresses none."
        )
    pickles = [e for e in entries if e.filename.count("/") == 1 and e.filename.endswith(_PICKLE)]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE:
        raise FileFormatError(f"{path} is an archive, but none of torch.save.")
    folder = pickles[0].filename.removesuffix(_PICKLE) + "/data/"
    return sum(e.file_size for e in entries if e.filename.startswith(folder))


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _leaves(
    value: Any, name: str, path: Path, tensor: type, level: int = 0
) -> Iterator[tuple[str, Any]]:
    """Tensors, numbers and texts with their dotted names."""
    if level > _MAX_LEVELS:
        raise FileFormatError(f"{path} nests containers too deeply at {name[:200]!r}.")
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(enumerate(value))
    elif value is None or isinstance(value, bool | int | float | str | tensor):
        yield name, value
        return
    else:
        raise FileFormatError(
            f"{path} holds a {type(value).__name__} at {name[:200]!r}; read are tensors, numbers "
            "and texts."
        )
    seen: set[str] = set()
    for key, inner in pairs:
        if not isinstance(key, str | int):
            raise FileFormatError(f"{path} has a key of type {type(key).__name__} at {name!r}.")
        joined = f"{name}.{key}" if name else str(key)
        for leaf, found in _leaves(inner, joined, path, tensor, level + 1):
            if leaf in seen:
                raise FileFormatError(f"{path} has two values with the name {leaf[:200]!r}.")
            seen.add(leaf)
            yield leaf, found


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _info(name: str, tensor: Any, path: Path) -> TensorInfo:
    where = f"tensor {name[:200]!r} of {path}"
    kind = _name(tensor.dtype)
    if _name(tensor.layout) != "strided" or tensor.is_quantized or tensor.device.type != "cpu":
        raise FileFormatError(
            f"{where} is {_name(tensor.layout)} {kind} on {tensor.device}; read are dense tensors."
        )
    if kind not in _DTYPES:
        raise FileFormatError(f"{where} has the type {kind}; read are {', '.join(_DTYPES)}.")
    dtype = _DTYPES[kind][0]
    shape = tuple(tensor.shape)
    check_shape(where, shape, dtype.itemsize)
    return TensorInfo(name, shape, dtype, path, kind)


def _overlapping(tensors: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Groups of names whose elements share memory."""
    spans: list[tuple[int, int, int]] = []
    names = list(tensors)
    for place, tensor in enumerate(tensors.values()):
        if tensor.numel():
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans.append((start, start + (last + 1) * tensor.element_size(), place))
    groups: list[list[int]] = []
    reached = 0
    for start, end, place in sorted(spans):
        if groups and start < reached:
            groups[-1].append(place)
        else:
            groups.append([place])
        reached = max(reached, end)
    shared = sorted(sorted(group) for group in groups if len(group) > 1)
    return tuple(tuple(names[place] for place in group) for group in shared)

"""Writes safetensors files tensor by tensor, with the digests that a manifest keeps.

All names, shapes and types are known before the first byte is written; the tensors themselves are
asked for one at a time, or copied from another file without being decoded.
"""

import dataclasses
import json
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.errors import FileFormatError, RecordError
from glu_lab.files.atomic import write_json
from glu_lab.files.element_types import NAMES
from glu_lab.files.hashed_output import HashedOutput
from glu_lab.files.safetensors_reader import MAX_HEADER, METADATA
from glu_lab.files.staging import staged_file, staged_folder
from glu_lab.files.strict_json import is_utf8
from glu_lab.files.tensor_file import (
    ByteRange,
    TensorFile,
    TensorInfo,
    check_shape,
)

#: Makes a tensor when its turn comes, or says where its bytes lie already.
Produce = Callable[[], np.ndarray] | ByteRange
Entry = tuple[TensorInfo, Produce]

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class WrittenTensor:
    """One tensor of a written file.

    Attributes:
        name, shape: as in the header.
        dtype: the header's name of the type.
        file: name of the file that holds it.
        sha256: of its elements, little-endian in C order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        files: file name → (bytes, sha256 or None), in order; an index is not among them.
        tensors: in the order in which they lie.
    """

    files: Mapping[str, tuple[int, str | None]]
    tensors: tuple[WrittenTensor, ...]


def described(name: str, shape: Sequence[int], dtype: Any) -> TensorInfo:
    """The info of a tensor to be written."""
    return TensorInfo(name, tuple(shape), np.dtype(dtype))


def entry_from(source: TensorFile, name: str, new_name: str | None = None) -> Entry:
    """An entry that copies a tensor of an open file, renamed if asked; undecoded where possible."""
    info = dataclasses.replace(source.info(name), name=name if new_name is None else new_name)
    return info, source.byte_range(name) or (lambda: source.read(name))


def write_safetensors(
    path: Path,
    entries: Iterable[Entry],
    metadata: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
    hash_files: bool = False,
) -> Written:
    """Writes one file, whole or not at all.

    Args:
        path: the file.
        entries: (info, produce) of each tensor. What `produce` returns must have the shape and
            type of its info; it is let go before the next is asked for. They lie in this order,
            but for types of wider elements, which come first so that every view is aligned.
        metadata: text to text, for the header.
        overwrite: whether an existing file may be replaced.
        hash_files: whether the whole file gets a digest beside those of its tensors: a second
            hash over every byte, which costs a third of the time where no core is idle.

    Returns:
        Digests of each tensor and, if wanted, of the file.

    Raises:
        FileFormatError: for a type that safetensors does not have, a name given twice, metadata
            that are no text, a produced array that differs from its info, or a damaged source.
        RecordError: when the target exists or the disk is full; nothing is left behind.
    """
    path = Path(path)
    plan = _plan(entries, f"the new file {path}")
    return _write(path, plan, metadata or {}, overwrite, hash_files)


def write_sharded(
    folder: Path,
    entries: Iterable[Entry],
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_bytes: int,
    overwrite: bool = False,
    hash_files: bool = False,
) -> Written:
    """Writes a folder of shards and their index, whole or not at all.

    Args:
        folder: holds ``model.safetensors`` where all fits in one shard, else
            ``model-00001-of-0000N.safetensors``, … and ``model.safetensors.index.json``.
        entries, metadata, hash_files: as in `write_safetensors`.
        max_shard_bytes: of the tensors in one shard; one that is larger has a shard of its own.
        overwrite: whether a folder that a conversion wrote may be replaced.

    Raises:
        As `write_safetensors`; FileFormatError also for a shard size below one byte.
    """
    folder = Path(folder)
    plan = _plan(entries, f"the new folder {folder}")
    with staged_folder(folder, overwrite=overwrite) as staged:
        return write_shards(
            staged, plan, metadata, max_shard_bytes=max_shard_bytes, hash_files=hash_files
        )


def write_shards(
    folder: Path,
    entries: Iterable[Entry],
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_bytes: int,
    hash_files: bool = False,
) -> Written:
    """The files of `write_sharded` in a folder that the caller stages itself."""
    plan = _plan(entries, f"the new folder {folder}")
    shards = _cut(plan, max_shard_bytes)
    total = sum(info.nbytes for info, _ in plan)
    _check_space(Path(folder), total)
    if len(shards) == 1:
        return _write(Path(folder) / WHOLE, shards[0], metadata or {}, False, hash_files)
    files: dict[str, tuple[int, str | None]] = {}
    tensors: list[WrittenTensor] = []
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        written = _write(Path(folder) / name, shard, metadata or {}, False, hash_files)
        files |= written.files
        tensors += written.tensors
    placed = {tensor.name: tensor.file for tensor in sorted(tensors, key=lambda t: t.name)}
    write_json(Path(folder) / INDEX, {"metadata": {"total_size": total}, "weight_map": placed})
    return Written(files, tuple(tensors))


def _plan(entries: Iterable[Entry], what: str) -> list[Entry]:
    """All entries, checked."""
    plan = list(entries)
    seen: set[str] = set()
    for info, _ in plan:
        where = f"tensor {info.name[:200]!r} of {what}"
        if info.name in seen:
            raise FileFormatError(f"{what} would have tensor {info.name!r} twice.")
        if info.name == METADATA or not is_utf8(info.name):
            raise FileFormatError(f"{where} has a name that safetensors cannot hold.")
        if info.dtype not in NAMES:
            raise FileFormatError(
                f"{where} has the type {info.dtype}; safetensors has {', '.join(NAMES.values())}."
            )
        check_shape(where, info.shape, info.dtype.itemsize)
        seen.add(info.name)
    return plan


def _cut(plan: list[Entry], max_shard_bytes: int) -> list[list[Entry]]:
    if max_shard_bytes < 1:
        raise FileFormatError(f"a shard holds one byte at least, not {max_shard_bytes}.")
    shards: list[list[Entry]] = [[]]
    filled = 0
    for entry in plan:
        size = entry[0].nbytes
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += size
    return shards


def _write(
    path: Path,
    plan: list[Entry],
    metadata: Mapping[str, str],
    overwrite: bool,
    hash_files: bool,
) -> Written:
    # Sorting is stable: tensors of one width stay in the order given.
    plan = sorted(plan, key=lambda entry: -entry[0].dtype.alignment)
    header = _header(plan, metadata, path)
    total = len(header) + sum(info.nbytes for info, _ in plan)
    _check_space(path, total)
    tensors: list[WrittenTensor] = []
    with (
        staged_file(path, overwrite=overwrite) as descriptor,
        HashedOutput(descriptor, hash_file=hash_files) as output,
    ):
        output.write(header)
        for info, produce in plan:
            digest = _write_tensor(output, info, produce)
            type_name = NAMES[info.dtype]
            tensors.append(WrittenTensor(info.name, info.shape, type_name, path.name, digest))
        whole = output.file_digest()
    return Written({path.name: (total, whole)}, tuple(tensors))


def _write_tensor(output: HashedOutput, info: TensorInfo, produce: Produce) -> str:
    if isinstance(produce, ByteRange):
        if produce.nbytes != info.nbytes:
            raise FileFormatError(
                f"tensor {info.name!r} takes {info.nbytes:,} bytes, its source in {produce.file} "
                f"has {produce.nbytes:,}."
            )
        return output.write_range(produce)
    array = produce()
    if array.shape != info.shape or array.dtype != info.dtype:
        raise FileFormatError(
            f"tensor {info.name!r} was announced as {info.dtype} {info.shape} and came as "
            f"{array.dtype} {array.shape}."
        )
    return output.write_array(array)


def _header(plan: list[Entry], metadata: Mapping[str, str], path: Path) -> bytes:
    described: dict[str, Any] = {}
    if metadata:
        for key, text in metadata.items():
            if not (isinstance(key, str) and isinstance(text, str) and is_utf8(key + text)):
                raise FileFormatError(
                    f"metadata of {path} map text to text, not {key!r} to {type(text).__name__}."
                )
        described[METADATA] = dict(metadata)
    position = 0
    for info, _ in plan:
        described[info.name] = {
            "dtype": NAMES[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [position, position + info.nbytes],
        }
        position += info.nbytes
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    # Spaces up to a multiple of eight keep the data aligned.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise FileFormatError(f"the header of {path} would have {len(text):,} bytes, too many.")
    return struct.pack("<Q", len(text)) + text


def _check_space(path: Path, total: int) -> None:
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return  # The write itself will tell.
    if total > free:
        raise RecordError(
            f"{path} was not written: it takes {total:,} bytes and {free:,} are free. Free some, "
            "or choose another place."
        )

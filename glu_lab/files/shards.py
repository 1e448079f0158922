"""One checkpoint in several safetensors files, with or without an index.

An index (``model.safetensors.index.json``) maps tensor names to file names. Those names come from
whoever wrote it, so they may lead nowhere but into the folder of the index.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.errors import FileFormatError
from glu_lab.files.safetensors_reader import SafetensorsFile
from glu_lab.files.strict_json import parse_object
from glu_lab.files.tensor_file import (
    ByteRange,
    TensorFile,
    open_regular,
)

_MAX_INDEX = 256 * 1024 * 1024
#: ``model-00002-of-00007.safetensors``; the count is what proves that none is missing.
NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})\.safetensors")


class ShardedFile(TensorFile):
    """Several safetensors files read as one."""

    format = "safetensors-sharded"

    def __init__(self, path: Path, shards: Iterable[SafetensorsFile], metadata: Mapping[str, Any]):
        """Joins open shards, which this object closes.

        Raises:
            FileFormatError: when two of them hold a tensor of one name.
        """
        self._owner: dict[str, SafetensorsFile] = {}
        self._shards = tuple(shards)
        for shard in self._shards:
            for name in shard:
                if name in self._owner:
                    raise FileFormatError(
                        f"tensor {name!r} is in {self._owner[name].path.name} and in "
                        f"{shard.path.name} of {path}."
                    )
                self._owner[name] = shard
        infos = {name: shard.info(name) for name, shard in self._owner.items()}
        super().__init__(path, infos, metadata)

    def read(self, name: str) -> np.ndarray:
        self.info(name)
        return self._owner[name].read(name)

    def byte_range(self, name: str) -> ByteRange:
        self.info(name)
        return self._owner[name].byte_range(name)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()


def open_index(path: Path) -> ShardedFile:
    """Opens the shards that an index names.

    Args:
        path: the index file.

    Returns:
        The tensors of all shards. Its metadata are those of the index, and the shards' own where
        all agree.

    Raises:
        FileFormatError: when the index is no index, names a file outside its folder, or differs
            from what the shards hold, in either direction.
    """
    path = Path(path)
    index = parse_object(_content(path), str(path))
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FileFormatError(f"{path} has no weight_map of tensor names to files.")
    notes = index.get("metadata", {})
    if not isinstance(notes, dict):
        raise FileFormatError(f"metadata of {path} is no object but {type(notes).__name__}.")
    for name, file in placed.items():
        if not isinstance(file, str):
            raise FileFormatError(f"{path} maps {name[:200]!r} to {type(file).__name__}, no file.")
    files = {file: inside(path.parent, file) for file in dict.fromkeys(placed.values())}
    wanted: dict[str, set[str]] = {file: set() for file in files}
    for name, file in placed.items():
        wanted[file].add(name)
    return _joined(path, files, wanted, notes)


def open_numbered(folder: Path, names: Iterable[str]) -> ShardedFile:
    """Opens shards that no index lists, if their numbers show that none is missing.

    Args:
        folder: where they are.
        names: file names, each of the form ``stem-00001-of-00003.safetensors``.

    Raises:
        FileFormatError: when one is missing, or they belong to more than one set.
    """
    names = sorted(names)
    parts = [found for found in map(NUMBERED.fullmatch, names) if found]
    count = int(parts[0]["count"]) if parts else 0
    sets = {(part["stem"], int(part["count"])) for part in parts}
    numbers = sorted(int(part["number"]) for part in parts)
    complete = count == len(parts) and numbers == list(range(1, len(parts) + 1))
    if len(sets) != 1 or len(parts) != len(names) or not complete:
        raise FileFormatError(
            f"{folder} has no index, and its safetensors files are no complete set "
            f"stem-00001-of-N: {listed(names)}. Name one file, or put the missing ones beside it."
        )
    return _joined(folder, {name: inside(folder, name) for name in names}, None, {})


def inside(folder: Path, name: str) -> Path:
    """The file that a name means, if it lies in the folder.

    A hub cache keeps its files in ``blobs`` and links to them from ``snapshots/<revision>``; such
    links are followed, any other that leads out of the folder is not.

    Args:
        folder: of the index.
        name: relative to it.

    Raises:
        FileFormatError: for a name that leads elsewhere.
    """
    pieces = name.replace("\\", "/").split("/")
    if not name or "\0" in name or ".." in pieces or pieces[0] == "" or ":" in pieces[0]:
        raise FileFormatError(
            f"{folder} refers to the file {name[:200]!r}; only files in the same folder are read."
        )
    root = folder.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    try:
        target = (root / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise FileFormatError(f"{folder / name} leads nowhere: {error}.") from error
    if not any(target.is_relative_to(allowed) for allowed in roots):
        raise FileFormatError(
            f"{folder / name} is a link to {target}, outside its folder; only files in the same "
            "folder are read. Copy the file there, or open it by its own path."
        )
    return root / name


def listed(names: Iterable[str], limit: int = 5) -> str:
    """Some names for a message."""
    names = sorted(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name[:200] for name in names[:limit]) + rest


def _joined(
    path: Path,
    files: Mapping[str, Path],
    wanted: Mapping[str, set[str]] | None,
    notes: Mapping[str, Any],
) -> ShardedFile:
    shards: list[SafetensorsFile] = []
    try:
        for file, place in files.items():
            shard = SafetensorsFile(place)
            shards.append(shard)
            if wanted is not None:
                _same_names(path, file, wanted[file], set(shard))
        common = dict(shards[0].metadata)
        for shard in shards[1:]:
            common = {k: v for k, v in common.items() if shard.metadata.get(k) == v}
        return ShardedFile(path, shards, {**common, **notes})
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def _same_names(path: Path, file: str, wanted: set[str], held: set[str]) -> None:
    if missing := wanted - held:
        raise FileFormatError(f"{path} says that {file} holds {listed(missing)}; it does not.")
    if extra := held - wanted:
        raise FileFormatError(
            f"{file} holds {listed(extra)}, which {path} does not place in it; the index and the "
            "shard are of different checkpoints, or one of them is damaged."
        )


def _content(path: Path) -> bytes:
    descriptor, size = open_regular(path)
    try:
        if size > _MAX_INDEX:
            raise FileFormatError(f"{path} has {size:,} bytes, too many for an index.")
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)

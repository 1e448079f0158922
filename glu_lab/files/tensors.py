"""Opens tensor files of any kind that is read; the content decides, not the name.

* one safetensors file; its shards, by an index or by complete numbering
* one GGUF file
* one file of torch.save, read as weights alone
* a folder with one of these
* a run of `glu-lab train`, at one of its checkpoints
* one of these for each tensor-parallel rank (`open_ranks`)
"""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from glu_lab.errors import FileFormatError
from glu_lab.files.gguf_reader import MAGIC, GGUFFile
from glu_lab.files.safetensors_reader import SafetensorsFile
from glu_lab.files.shards import NUMBERED, inside, listed, open_index, open_numbered
from glu_lab.files.tensor_file import (
    ByteRange,
    TensorFile,
    TensorInfo,
    open_regular,
)
from glu_lab.files.torch_reader import OLD_MAGIC, ZIP_MAGIC, TorchFile, is_archive

__all__ = [
    "ByteRange",
    "FileFormatError",
    "RankFiles",
    "TensorFile",
    "TensorInfo",
    "open_ranks",
    "open_tensors",
]

_SAFETENSORS, _INDEX, _GGUF, _TORCH = "safetensors", "index", "gguf", "torch"

_READERS = {
    _SAFETENSORS: SafetensorsFile,
    _INDEX: open_index,
    _GGUF: GGUFFile,
    _TORCH: TorchFile,
}

#: First bytes of files that are not read → what they are, and what to do.
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it (git lfs pull)"),
    (b"<", "a web page or XML, perhaps a download that failed"),
    (b"\x89HDF", "an HDF5 file; save its weights as safetensors"),
    (b"\x93NUMPY", "a NumPy file; save its weights as safetensors"),
    (OLD_MAGIC, "of torch before 1.6; load it there with weights_only=True and save it again"),
    (b"\x80", "a pickle; code in a pickle is never executed here, use a safetensors file"),
)

_TENSOR_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")

#: Names of the parts of tensor-parallel rank i, folders or files; who writes them so.
_RANK_NAMES: tuple[re.Pattern[str], ...] = tuple(
    map(
        re.compile,
        (
            r"mp_rank_(\d{1,6})(_\d+)*",  # Megatron-LM; further numbers: pipeline, expert
            r"mp_rank_(\d{1,6})_model_states\.pt",  # DeepSpeed
            r"(?:tp[_-]?)?rank[_-]?(\d{1,6})(?:\.(?:safetensors|bin|pt|pth))?",  # TensorRT-LLM
            r"consolidated\.(\d{1,6})\.(?:pth|safetensors)",  # Llama as Meta publishes it
        ),
    )
)


class RankFiles(Sequence[TensorFile]):
    """One `TensorFile` a tensor-parallel rank, in the order of the ranks.

    Attributes:
        path: what was opened.
    """

    def __init__(self, path: Path, files: Sequence[TensorFile]):
        self.path, self._files = path, tuple(files)

    @overload
    def __getitem__(self, index: int) -> TensorFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorFile]: ...
    def __getitem__(self, index: int | slice) -> TensorFile | Sequence[TensorFile]:
        return self._files[index]

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Closes all."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "RankFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_tensors(path: Path, step: int | None = None) -> TensorFile:
    """Opens one checkpoint whose tensors are whole.

    Args:
        path: a file or a folder.
        step: of a training run's checkpoint; None for the newest.

    Raises:
        FileFormatError: when it is of no kind that is read, damaged, several checkpoints at once,
            or cut into ranks (`open_ranks` opens those).
        RecordError: for a run without the checkpoint that is asked for.
    """
    path = Path(path)
    found = _run(path, step)
    if found is not None:
        return found
    if step is not None:
        raise FileFormatError(f"{path} is no training run; only these have steps (got {step}).")
    if not path.is_dir():
        return _open_file(path)
    ranks = _rank_parts(path)
    if len(ranks) > 1:
        raise FileFormatError(
            f"{path} holds {len(ranks)} tensor-parallel ranks ({listed(p.name for p in ranks)}); "
            "none of them has a whole tensor."
        )
    if ranks:
        return open_tensors(ranks[0])
    return _open_folder(path)


def open_ranks(path: Path, step: int | None = None) -> RankFiles:
    """Opens a checkpoint that may be cut into tensor-parallel ranks.

    Args:
        path: a folder with one part a rank (``mp_rank_00``, …), or anything that `open_tensors`
            takes, which counts as one rank.
        step: as in `open_tensors`.

    Raises:
        FileFormatError: when ranks are missing or also cut by pipeline stage; as `open_tensors`.
        RecordError: as `open_tensors`.
    """
    path = Path(path)
    parts = _rank_parts(path) if path.is_dir() else []
    if len(parts) < 2:
        return RankFiles(path, [open_tensors(path, step)])
    if step is not None:
        raise FileFormatError(f"{path} is no training run; only these have steps (got {step}).")
    files: list[TensorFile] = []
    try:
        for part in parts:
            files.append(open_tensors(part))
    except BaseException:
        for file in files:
            file.close()
        raise
    return RankFiles(path, files)


def _run(path: Path, step: int | None) -> TensorFile | None:
    """A training run, its checkpoints folder, or one step of it; None for anything else."""
    if path.name.isdecimal() and (path / "_CHECKPOINT_METADATA").is_file():
        path, step = path.parent, int(path.name) if step is None else step
    is_run = (path / "checkpoints").is_dir() and (path / "config.json").is_file()
    if not is_run and not any(path.glob("*/_CHECKPOINT_METADATA")):
        return None
    # JAX and Orbax take a second to import, which no other kind of file needs.
    from glu_lab.files.run_reader import RunFile

    return RunFile(path, step)


def _open_file(path: Path) -> TensorFile:
    kind, first = _kind(path)
    if kind is not None:
        return _READERS[kind](path)
    for magic, what in _REFUSED:
        if first.startswith(magic):
            raise FileFormatError(f"{path} is {what}.")
    what = f"starts with {first[:8]!r}" if first else "is empty"
    raise FileFormatError(
        f"{path} {what}; read are safetensors and its index, GGUF, and files of torch.save."
    )


def _kind(path: Path) -> tuple[str | None, bytes]:
    """The kind of a regular file, and its first bytes."""
    descriptor, size = open_regular(path)
    try:
        first = os.pread(descriptor, 32, 0)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    if first.startswith(MAGIC):
        return _GGUF, first
    if first.startswith(ZIP_MAGIC):
        return _TORCH, first
    # A header that announces too much is still a safetensors file; its reader says what is wrong.
    # Eight characters of JSON, read as a number, are beyond any file.
    if size > 8 and first[8:9] == b"{" and int.from_bytes(first[:8], "little") < 2**56:
        return _SAFETENSORS, first
    if first.lstrip()[:1] == b"{":
        return _INDEX, first
    if path.suffix == ".safetensors" and not any(first.startswith(m) for m, _ in _REFUSED):
        return _SAFETENSORS, first
    return None, first


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise FileFormatError(f"{folder} cannot be listed: {error.strerror}.") from error


def _open_folder(folder: Path) -> TensorFile:
    """The one checkpoint in a folder: an index before its shards, else the only tensor file."""
    indices: list[Path] = []
    files: list[Path] = []
    for entry in _entries(folder):
        if entry.name.endswith(".index.json"):
            indices.append(entry)
        elif _is_tensor_file(entry):
            files.append(entry)
    numbered = [file for file in files if NUMBERED.fullmatch(file.name)]
    choices = [*indices, *(file for file in files if file not in numbered)]
    if numbered and not indices:
        if choices:
            choices += numbered
        else:
            return open_numbered(folder, [file.name for file in numbered])
    if not choices:
        raise FileFormatError(
            f"{folder} holds no tensor file; read are safetensors and its index, GGUF, files of "
            "torch.save, folders of ranks, and runs of `glu-lab train`."
        )
    if len(choices) > 1:
        raise FileFormatError(
            f"{folder} holds more than one checkpoint: {listed(c.name for c in choices)}. Open one "
            "of these files by its own path."
        )
    inside(folder, choices[0].name)
    return _open_file(choices[0])


def _is_tensor_file(path: Path) -> bool:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        kind, _ = _kind(path)
    except (OSError, FileFormatError):
        # A link to nowhere, or no right to read. Under a name that promises tensors it must not
        # be passed over.
        return path.suffix in _TENSOR_SUFFIXES
    if kind == _TORCH:
        return is_archive(path) or path.suffix in _TENSOR_SUFFIXES
    return kind in (_SAFETENSORS, _GGUF)


def _rank_parts(folder: Path) -> list[Path]:
    """The parts of a folder by rank, 0 first; empty where it is not cut into ranks."""
    ranks: dict[int, Path] = {}
    others: list[Path] = []
    for entry in _entries(folder):
        found = next((m for p in _RANK_NAMES if (m := p.fullmatch(entry.name))), None)
        if found is None or not (entry.is_dir() or _is_tensor_file(entry)):
            others.append(entry)
            continue
        if found.lastindex and found.lastindex > 1:
            raise FileFormatError(
                f"{entry} is a part of more than a tensor-parallel rank; checkpoints cut by "
                "pipeline stage or expert are not read. Merge those first."
            )
        rank = int(found[1])
        if rank in ranks:
            raise FileFormatError(
                f"{folder} has rank {rank} twice: {ranks[rank].name} and {entry.name}."
            )
        ranks[rank] = entry
    if not ranks:
        return []
    if whole := [other.name for other in others if _is_tensor_file(other)]:
        raise FileFormatError(
            f"{folder} holds parts of ranks ({listed(p.name for p in ranks.values())}) and also "
            f"{listed(whole)}. Open one of these by its own path."
        )
    if missing := set(range(min(max(ranks), 10_000))) - set(ranks):
        raise FileFormatError(
            f"{folder} has parts of ranks up to {max(ranks)}, but none of rank "
            f"{listed(map(str, missing))}."
        )
    for part in ranks.values():
        inside(folder, part.name)
    return [ranks[rank] for rank in sorted(ranks)]

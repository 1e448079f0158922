"""Large files and folders that appear whole or not at all.

What is written goes to a hidden place beside the target and is renamed over it when it is
complete and on the disk. An error or an interruption removes it; what a killed process left there
is removed by the next writer to the same target.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from glu_lab.errors import RecordError
from glu_lab.files.atomic import sync_folder

#: What a folder may hold to be replaced as a whole: the files that a conversion writes.
_OURS = (".safetensors", ".json")


def check_target(path: Path, *, overwrite: bool = False, sources: Iterable[Path] = ()) -> None:
    """Refuses a target that must not be written; writes nothing.

    Args:
        path: file or folder to be.
        overwrite: whether an existing one may be replaced. An empty folder is none.
        sources: files or folders that are read; the target may be neither of them, nor lie in
            one, nor hold one.

    Raises:
        RecordError: naming what stands in the way.
    """
    path = Path(path)
    try:
        place = path.resolve()
        for source in sources:
            origin = Path(source).resolve()
            inside = origin.is_dir() and place.is_relative_to(origin)
            if place == origin or inside or origin.is_relative_to(place):
                raise RecordError(
                    f"{path} would overwrite its own source {source}; choose another target."
                )
        if path.is_symlink():
            raise RecordError(f"{path} is a link; name the place itself.")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not overwrite:
            raise RecordError(
                f"{path} exists and is left as it is; choose another target, or ask for it to be "
                "overwritten."
            )
        if path.is_dir():
            _check_ours(path)
    except (OSError, RuntimeError) as error:
        raise RecordError(f"{path} cannot be written: {error}.") from error


@contextlib.contextmanager
def staged_file(path: Path, *, overwrite: bool = False) -> Iterator[int]:
    """A file to write through the descriptor that the context gives.

    At its end the content is flushed to the disk and the file gets its name.

    Raises:
        RecordError: when the target exists (unless `overwrite`) or is a folder, before anything
            is written; when the disk is full or the place cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise RecordError(f"{path} is a folder; a file is to be written.")
    check_target(path, overwrite=overwrite)
    temporary = _hidden(path)
    descriptor = -1
    try:
        with _system_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear(path)
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            _lock(descriptor)
            yield descriptor
            os.fsync(descriptor)
            check_target(path, overwrite=overwrite)
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        # Only what this call made; another thread may be writing to the same target.
        if descriptor >= 0:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def staged_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill; at the end of the context it gets its name.

    Files in it are to be on the disk by then, which `staged_file` and the other writers of this
    room see to. To replace a folder its old content is renamed away first and removed at the end;
    a machine that stops between the two renames leaves it as ``.<name>.<process>.old`` beside.

    Raises:
        RecordError: as `staged_file`; also, with `overwrite`, for a folder that holds anything but
            the files of a conversion.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise RecordError(f"{path} is a file; a folder is to be written.")
    check_target(path, overwrite=overwrite)
    temporary, old = _hidden(path), _hidden(path, "old")
    descriptor = -1
    try:
        with _system_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _clear(path)
            temporary.mkdir()
            descriptor = os.open(temporary, os.O_RDONLY)
            _lock(descriptor)
            yield temporary
            for folder, _, _ in os.walk(temporary):
                sync_folder(Path(folder))
            check_target(path, overwrite=overwrite)
            if path.is_dir() and any(path.iterdir()):
                os.rename(path, old)
            try:
                os.rename(temporary, path)
            except OSError:
                if old.exists():
                    os.rename(old, path)
                raise
            sync_folder(path.parent)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
            shutil.rmtree(temporary, ignore_errors=True)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


def _hidden(path: Path, kind: str = "tmp") -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{kind}")


def _clear(path: Path) -> None:
    """Removes what killed writers to this target left; a living one holds a lock on its own."""
    for left in path.parent.glob(f".{_literal(path.name)}.*.tmp"):
        if left.is_symlink() or not left.name[len(path.name) + 2 : -4].isdecimal():
            continue
        try:
            descriptor = os.open(left, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _lock(descriptor: int) -> None:
    # Where a file system has no locks, nobody can tell a living writer's file from a dead one's;
    # `_clear` then removes neither, since it asks for the lock as well.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _check_ours(folder: Path) -> None:
    for entry in folder.rglob("*"):
        if entry.is_symlink() or not (entry.is_dir() or entry.suffix in _OURS):
            raise RecordError(
                f"{folder} also holds {entry.relative_to(folder)}, which no conversion wrote; it "
                "is not replaced. Choose another folder, or remove this one yourself."
            )


@contextlib.contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path} was not written: {error.strerror or error}.") from error

"""Writes that either happen whole or not at all.

A file is written beside its target, flushed to the disk, and renamed over it. A reader sees the
old content or the new one, never half of either; a crash leaves the target as it was.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file's content atomically; parent folders are made.

    Args:
        path: the file.
        content: all of its bytes.

    Raises:
        RecordError: when the disk is full or the place cannot be written; the old file is kept.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RecordError(_message(path, len(content), error)) from error
    finally:
        # After a successful rename there is nothing left to remove. A disk that refused the
        # write may refuse this too; that must not hide the first error.
        try:
            temporary.unlink(missing_ok=True)
        except OSError:
            pass


def write_text(path: Path, text: str) -> None:
    """Replaces a UTF-8 text file atomically.

    Raises:
        RecordError: as `write_bytes`.
    """
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file atomically, indented, with a newline at its end.

    Raises:
        RecordError: for a value that JSON cannot say (NaN and infinities among them), before
            anything is written; and as `write_bytes`.
    """
    try:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{path} was not written: {error}. JSON takes mappings, lists, text, booleans, null "
            "and finite numbers; write null where a number is undefined."
        ) from error
    write_text(path, text + "\n")


def sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; the rename has happened all the same.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _message(path: Path, size: int, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"{path} was not written: no space left for its {size:,} bytes. The previous file, if "
            "any, is unharmed; free space or choose another folder."
        )
    return f"{path} was not written: {error.strerror or error}."

"""Where prepared corpora, tokenizers and tokens are kept, and how they get there.

An entry is built in a scratch folder beside its place and renamed into it, so that a reader sees
all of it or nothing. When two processes build one entry, both build it and the first to finish
keeps its copy; entries are named by their content's hash, so the copies are equal.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from glu_lab.errors import DataError, resource_error

ENVIRONMENT_VARIABLE = "GLU_LAB_CACHE"


def cache_root(cache_dir: Path | str | None = None) -> Path:
    """The cache folder: the argument, else `$GLU_LAB_CACHE`, else `~/.cache/glu_lab`."""
    chosen = cache_dir or os.environ.get(ENVIRONMENT_VARIABLE) or "~/.cache/glu_lab"
    return Path(chosen).expanduser().resolve()


def cached_folder(folder: Path, build: Callable[[Path], None]) -> Path:
    """Returns `folder`, building it when it is not there.

    Args:
        folder: the entry's place. That it exists says that it is complete.
        build: fills the empty folder it is given; called only when the entry is missing.

    Returns:
        `folder`, complete.

    Raises:
        DataError: when the cache cannot be written.
    """
    if folder.is_dir():
        return folder
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        build(scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            # A folder cannot be renamed onto a non-empty one: another process was first.
            if not folder.is_dir():
                raise
    except (OSError, RuntimeError) as error:
        # ArrayRecord's writer raises RuntimeError for a full disk, as others do for other things.
        full = resource_error(error)
        if full is None and not isinstance(error, OSError):
            raise
        reason = "no space left on the disk" if full else getattr(error, "strerror", None) or error
        raise DataError(
            f"the cache entry {folder} was not written: {reason}. Free space, or choose another "
            f"cache folder with ${ENVIRONMENT_VARIABLE}."
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder

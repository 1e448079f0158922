"""A file system so small that a test can fill it."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of `size` (as mount writes it, ``"2m"``); skips without the right to."""
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)

"""How fast tensors are renamed, beside a plain copy of the same file.

A conversion that only renames has to move every byte and to hash it. The yardstick does the same
with the standard library: copy the file, then read it once for its SHA-256.
"""

import dataclasses
import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from glu_lab.files.safetensors_reader import SafetensorsFile
from glu_lab.files.safetensors_writer import described, entry_from, write_safetensors


@dataclasses.dataclass(frozen=True)
class CopyRate:
    """Times of alternating rounds, in seconds.

    Attributes:
        nbytes: of the file.
        rename: our copy with new names, flushed to the disk, with the digests of its tensors.
        copy: the plain copy and one SHA-256 pass, left to the system to flush.
    """

    nbytes: int
    rename: tuple[float, ...]
    copy: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Rate of the renaming over the rate of the plain copy: the ratio of median times."""
        return statistics.median(self.copy) / statistics.median(self.rename)


def measure(
    folder: Path,
    *,
    nbytes: int = 1 << 30,
    tensors: int = 32,
    rounds: int = 5,
    hash_files: bool = False,
) -> CopyRate:
    """Times both on a file of float32 tensors in a temporary folder inside `folder`.

    Args:
        folder: on the disk to be measured; has to have room for three files.
        nbytes: of each file.
        tensors: how many tensors of equal size it holds.
        hash_files: whether the renaming also makes the digest of the whole file.
        rounds: how often each is done; the two take turns, and so does who goes first.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source = Path(place) / "source.safetensors"
        count = nbytes // tensors // 4
        block = np.random.default_rng(0).standard_normal(count, np.float32)
        write_safetensors(
            source,
            [(described(f"old.{i}", (count,), np.float32), lambda: block) for i in range(tensors)],
        )

        def rename(target: Path) -> None:
            with SafetensorsFile(source) as file:
                entries = [entry_from(file, name, f"new.{name}") for name in file]
                write_safetensors(target, entries, hash_files=hash_files)

        def copy(target: Path) -> None:
            shutil.copyfile(source, target)
            with open(target, "rb") as file:
                hashlib.file_digest(file, "sha256")

        times: dict[str, list[float]] = {"rename": [], "copy": []}
        tasks: list[tuple[str, Callable[[Path], None]]] = [("rename", rename), ("copy", copy)]
        for turn in range(rounds):
            for name, task in tasks if turn % 2 == 0 else tasks[::-1]:
                target = Path(place) / f"{name}.safetensors"
                start = time.perf_counter()
                task(target)
                times[name].append(time.perf_counter() - start)
                target.unlink()
        return CopyRate(source.stat().st_size, tuple(times["rename"]), tuple(times["copy"]))

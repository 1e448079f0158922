"""A run directory: what is written when, and whose it is.

config.json       the experiment, complete
tokenizer.model   the SentencePiece model that its ids belong to
manifest.json     what the weights are; holds the identity
environment.json  one entry for each session that worked on the run
metrics.jsonl     one JSON object a line
summary.json      last, atomically, or not at all
checkpoints/
run.lock          there while a session trains the run; its lock is what counts, not the file
"""

import json
import os
import platform
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError, RunInUseError
from glu_lab.files.atomic import write_bytes, write_json, write_text
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.identity import difference, identity

try:
    import fcntl
except ImportError:  # a system without POSIX locks: runs are not locked there
    fcntl = None

TOKENIZER_FILE = "tokenizer.model"
LOCK_FILE = "run.lock"

_OURS = (
    TOKENIZER_FILE,
    LOCK_FILE,
    "config.json",
    "manifest.json",
    "environment.json",
    "metrics.jsonl",
    "summary.json",
    "checkpoints",
    "tensorboard",
)


class RunDirectory:
    """Opens a run directory for one session.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._metrics: Any = None
        self._release: Callable[[], object] = lambda: None

    def claim(
        self,
        experiment: Experiment,
        tokenizer: bytes,
        manifest: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        """Locks the folder for this session and writes what names the run, after `check`.

        Raises:
            RunInUseError: when another session trains the run; nothing is changed.
            RecordError: as `check`, and when the disk takes no more.
        """
        fingerprint = manifest["identity"]["data_fingerprint"]
        self.check(experiment, fingerprint)
        self._lock()
        try:
            # Once more: whoever held the lock before may have made the folder its own.
            self.check(experiment, fingerprint)
            self._write_claim(experiment, tokenizer, manifest, environment)
        except BaseException:
            self._release()
            raise

    def _write_claim(
        self,
        experiment: Experiment,
        tokenizer: bytes,
        manifest: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        write_json(self.path / "manifest.json", manifest)
        write_json(self.path / "config.json", encode(experiment))
        write_bytes(self.path / TOKENIZER_FILE, tokenizer)
        sessions = self._read("environment.json") or []
        write_json(
            self.path / "environment.json",
            [
                *sessions,
                {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **environment},
            ],
        )

    def _lock(self) -> None:
        """Takes the folder's lock, which the kernel frees however this process ends.

        Reading needs no lock. A file system without locks (some network ones) leaves the run
        unlocked.
        """
        if fcntl is None:
            return
        file = self.path / LOCK_FILE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = _open_current(file)
        except OSError as error:
            raise RecordError(
                f"{self.path} cannot be written: {error.strerror or error}."
            ) from error
        if handle is None:
            raise RunInUseError(
                f"{self.path} is being trained by {_holder(file)}; two sessions would overwrite "
                "each other's checkpoints. Wait for it, stop it, or choose another folder."
            )
        try:
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())
        except OSError:
            pass  # a full disk; the files that matter are written next, and say so
        self._release = weakref.finalize(self, _unlock, file, handle)

    def has_checkpoints(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any(step.name.isdigit() for step in (self.path / "checkpoints").glob("*"))

    def check(self, experiment: Experiment, data_fingerprint: str | None = None) -> None:
        """Checks that the folder is empty or this run's; writes nothing.

        Args:
            experiment: the run.
            data_fingerprint: of its data; None, before they are loaded, takes the one on record.

        Raises:
            RecordError: for a folder of something else, or of a run with another identity; the
                message lists every difference.
        """
        old = self._owner()
        if old is None:
            return
        recorded = old.get("identity", {})
        wanted = identity(experiment, data_fingerprint or recorded.get("data_fingerprint", ""))
        changes = difference(recorded, wanted)
        if changes:
            raise RecordError(
                f"{self.path} belongs to another run; resuming it with this config would mix two "
                "experiments. What differs (data_fingerprint stands for text, split and tokenizer):"
                "\n  " + "\n  ".join(changes)
            )

    def _owner(self) -> dict[str, Any] | None:
        """The manifest of the run whose folder this is; None for an empty or missing folder."""
        try:
            if not self.path.exists():
                return None
            if not self.path.is_dir():
                raise RecordError(f"{self.path} is a file; a run needs a folder of its own.")
            content = sorted(entry.name for entry in self.path.iterdir())
        except OSError as error:
            raise RecordError(f"{self.path} cannot be read: {error.strerror}.") from error
        foreign = [name for name in content if name not in _OURS and not name.endswith(".tmp")]
        if foreign:
            raise RecordError(
                f"{self.path} holds something else ({', '.join(foreign[:5])}); choose an empty "
                "folder or one of this run."
            )
        old = self._read("manifest.json")
        if old is None:
            # The manifest is the first file of a run, so without it nothing here is a run's: a
            # config.json or tokenizer.model may be of another program, and would be overwritten.
            theirs = [n for n in content if not n.endswith(".tmp") and n != LOCK_FILE]
            if theirs:
                raise RecordError(
                    f"{self.path} has {', '.join(theirs)} but no manifest.json, so whose they are "
                    "is not known; choose an empty folder or one of this run."
                )
            return None
        if not isinstance(old, dict):
            raise RecordError(f"{self.path / 'manifest.json'} is no manifest of a run.")
        return old

    def _read(self, name: str) -> Any:
        file = self.path / name
        if not file.exists():
            return None
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"{file} cannot be read: {error}.") from error

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while there is none."""
        return self._read("summary.json")

    def open_metrics(self, step: int) -> None:
        """Opens ``metrics.jsonl`` for appending, without the lines after a step.

        A run that goes on from a checkpoint writes those again; a line that a kill cut short goes
        too.
        """
        file = self.path / "metrics.jsonl"
        kept = []
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if entry["step"] <= step:
                    kept.append(line)
        write_text(file, "".join(f"{line}\n" for line in kept))
        self._metrics = open(file, "a", encoding="utf-8")

    def write_metrics(self, entry: Mapping[str, Any]) -> None:
        """Appends one line and hands it to the operating system.

        Raises:
            RecordError: when the disk does not take it.
        """
        try:
            self._metrics.write(json.dumps(dict(entry), allow_nan=False) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise RecordError(
                f"{self.path / 'metrics.jsonl'}: {os.strerror(error.errno or 0)}"
            ) from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, whole or not at all."""
        write_json(self.path / "summary.json", summary)

    def close(self) -> None:
        """Closes the metrics file and frees the folder."""
        if self._metrics is not None:
            try:
                self._metrics.close()
            except OSError:
                # Closing tries once more to write what a full disk refused; `write_metrics` has
                # told of it, and a resumed run writes those lines again.
                pass
            self._metrics = None
        self._release()


def _open_current(file: Path) -> int | None:
    """A descriptor of the lock file, locked where the file system can; None when it is taken.

    A session removes the file when it ends, so a lock counts only on the file that the name still
    stands for.
    """
    assert fcntl is not None
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            return handle
        try:
            if os.path.samestat(os.fstat(handle), os.stat(file)):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)


def _unlock(file: Path, handle: int) -> None:
    """Frees a lock; the file goes first, while nobody else can hold it."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        pass  # the file may stay: an unlocked one is free
    os.close(handle)


def _holder(file: Path) -> str:
    """Who holds a lock, as far as its file tells."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return f"process {content['pid']} on {content['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

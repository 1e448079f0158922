"""A run directory: what is written when, and whose it is.

config.json       the experiment, complete
tokenizer.model   the SentencePiece model that its ids belong to
manifest.json     what the weights are; holds the identity
environment.json  one entry for each session that worked on the run
metrics.jsonl     one JSON object a line
summary.json      last, atomically, or not at all
checkpoints/
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glu_lab.errors import RecordError
from glu_lab.files.atomic import write_bytes, write_json, write_text
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.identity import difference, identity

TOKENIZER_FILE = "tokenizer.model"

_OURS = (
    TOKENIZER_FILE,
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

    def claim(
        self,
        experiment: Experiment,
        tokenizer: bytes,
        manifest: Mapping[str, Any],
        environment: Mapping[str, Any],
    ) -> None:
        """Writes what names the run, after `check`.

        Raises:
            RecordError: as `check`, and when the disk takes no more.
        """
        self.check(experiment, manifest["identity"]["data_fingerprint"])
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
        if self.path.exists() and not self.path.is_dir():
            raise RecordError(f"{self.path} is a file; a run needs a folder of its own.")
        if not self.path.exists():
            return None
        try:
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
            theirs = [name for name in content if not name.endswith(".tmp")]
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
        """Closes the metrics file."""
        if self._metrics is not None:
            try:
                self._metrics.close()
            except OSError:
                # Closing tries once more to write what a full disk refused; `write_metrics` has
                # told of it, and a resumed run writes those lines again.
                pass
            self._metrics = None

"""TensorBoard events by option, through tensorboardX."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glu_lab.errors import SpecError


class _NoEvents(contextlib.AbstractContextManager["_NoEvents"]):
    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def __exit__(self, *_: object) -> None:
        """Closes nothing."""


class _Events(_NoEvents):
    def __init__(self, folder: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise SpecError(
                "recording.tensorboard=True needs the package tensorboardX: "
                "pip install 'glu_lab[tensorboard]'."
            ) from error
        self._writer = SummaryWriter(str(folder))

    def write(self, entry: Mapping[str, Any]) -> None:
        """Every number of a line of metrics, nested names joined by slashes."""
        for name, value in _scalars(entry, str(entry["kind"])):
            self._writer.add_scalar(name, value, entry["step"])

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _scalars(value: Any, name: str) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _scalars(item, f"{name}/{key}")]
    if isinstance(value, list):
        return [pair for i, item in enumerate(value) for pair in _scalars(item, f"{name}/{i}")]
    if isinstance(value, bool) or not isinstance(value, int | float) or name.endswith("/step"):
        return []
    return [(name, float(value))]


def event_writer(run: Path, enabled: bool) -> _NoEvents:
    """A context manager with ``write(entry)``.

    Raises:
        SpecError: when events are asked for and tensorboardX is not installed.
    """
    return _Events(run / "tensorboard") if enabled else _NoEvents()

"""Ctrl-C and SIGTERM end a run after the step that is under way."""

import signal
import threading
from typing import Any


class StopSignals:
    """Turns the first Ctrl-C or SIGTERM into a request to stop after the current step.

    A second one interrupts at once. Outside of the main thread signals cannot be caught, and
    nothing is changed.
    """

    def __init__(self) -> None:
        self.stop = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: Any) -> None:
        if self.stop:
            raise KeyboardInterrupt
        self.stop = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

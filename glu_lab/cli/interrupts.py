"""Ctrl-C in a process that runs JAX: it is not lost, and the process ends cleanly."""

import os
import signal
import sys
import threading
from typing import Any, NoReturn

_RESEND_SECONDS = 0.05


def resend_lost_interrupts() -> None:
    """Sends a Ctrl-C again that fell into a callback, which Python would only report.

    JAX runs a Python callback at each garbage collection. A KeyboardInterrupt raised in there, or
    in a finaliser, cannot reach the program: Python prints "Exception ignored" and goes on, and
    the user would have to press again.
    """
    report = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)
            return
        # Later and from another thread: at once, it would fall into this callback again.
        timer = threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = hook


def leave(code: int) -> NoReturn:
    """Ends an interrupted process now, without the interpreter's own shutdown.

    XLA compiles in a thread of its own. An interrupt takes Python out of waiting for it and leaves
    it running; the shutdown of the interpreter would then destroy the JAX client that the thread
    goes on to use, which ends in a segmentation fault. Everything that has to be closed was closed
    on the way here, by ``finally`` and ``with``, so that only the streams are left.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # no stream, a closed one, or a reader that has gone
    os._exit(code)

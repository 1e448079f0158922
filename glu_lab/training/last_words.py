"""A message for a process that cannot speak for itself.

When a process of a run dies while the others are not inside a collective, JAX's runtime aborts
them from C++: no Python code of theirs runs any more. A small process beside each of them sees
that end and says what it means.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Reads until its parent is gone; speaks unless the parent has said that all is well.
_WITNESS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.stdin.read() != "well":
    try:
        steps = [int(name) for name in os.listdir(sys.argv[1]) if name.isdigit()]
    except OSError:
        steps = []
    onward = "goes on from the checkpoint of step %d" % max(steps) if steps else "starts anew"
    print("error: this process was ended from outside, most likely because another one of the run, "
          "or its machine, is gone. The same command, in all processes, " + onward + ".",
          file=sys.stderr, flush=True)
"""


@contextmanager
def last_words(workdir: Path) -> Iterator[None]:
    """While inside, a sudden end of this process is told on stderr, with how to go on.

    Args:
        workdir: the run's folder; its newest checkpoint is named.
    """
    witness = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WITNESS, str(workdir / "checkpoints")],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert witness.stdin is not None
    try:
        yield
    finally:
        # Also after an exception: that speaks for itself.
        try:
            witness.stdin.write("well")
            witness.stdin.close()
        except BrokenPipeError:
            pass
        witness.wait()

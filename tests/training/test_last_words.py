"""A process that ends without a word of its own is spoken for."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
from glu_lab.training.last_words import last_words

with last_words(Path(sys.argv[1])):
    if sys.argv[2] == "abort":
        os._exit(134)
    if sys.argv[2] == "raise":
        raise ValueError("its own word")
"""


@pytest.mark.parametrize("steps", [(), (5, 20)])
@pytest.mark.parametrize("end", ["abort", "raise", "well"])
def test_only_a_sudden_end_is_told_and_the_newest_step_is_named(tmp_path, end, steps):
    for step in steps:
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), end],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    onward = "goes on from the checkpoint of step 20" if steps else "starts anew"
    assert (f"The same command, in all processes, {onward}." in done.stderr) == (end == "abort")
    assert ("its own word" in done.stderr) == (end == "raise")

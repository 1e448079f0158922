"""Ctrl-C in a process that runs JAX: heard whenever it comes, and no crash at the end."""

import os
import subprocess
import sys
import time

import pytest

PROGRAM = """
import gc, os, signal, sys, threading, time, types
from glu_lab.cli import main


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


{command}

module = types.ModuleType("glu_lab.cli.fake")
module.HELP, module.EPILOG = "fake", ""
module.add_arguments = lambda parser: None
module.run = run
sys.modules["glu_lab.cli.fake"] = module
main.COMMANDS["fake"] = "fake"
sys.argv = ["glu-lab", "fake"]
sys.exit(main.main())
"""

# XLA takes seconds for this; the interpreter leaves it half done.
COMPILES = """
import jax, jax.numpy as jnp


def slow(x):
    for number in range(5_000):
        x = jnp.sin(x) + number
    return x


def run(args):
    lowered = jax.jit(slow).lower(jnp.ones((8, 8)))
    threading.Timer(0.3, interrupt).start()
    lowered.compile()
    return 0
"""

LOST = """
lost = []


def callback(phase, info):
    if phase == "start" and not lost:
        lost.append(True)
        interrupt()
        for _ in range(1000):
            pass


def run(args):
    gc.callbacks.append(callback)
    gc.collect()
    assert lost
    time.sleep(60)
    return 0
"""


@pytest.mark.parametrize("command", [COMPILES, LOST], ids=["compile", "lost"])
def test_ctrl_c_ends_the_program_at_once_with_its_exit_code(command):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.replace("{command}", command)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "error: interrupted.\n"
    assert done.stdout == ""
    assert time.monotonic() - start < 50

"""A copy of the repository in which one fault at a time is planted and tests are run.

The copy comes first on the module path of every run, before the editable installation of the tree
it was made from, and each run tells from where the package was imported. No byte code is written:
Python takes a cached file for current by its size and the second of its change, which a fault may
leave as they are.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.mutation.mutation import Mutation
from tests.mutation.witness import REPORT

#: Exceptions of a program that does not hold together. They say that a row is badly written, and
#: nothing about what the tests would notice.
NO_EVIDENCE = ("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError")

#: Seconds after which a run is ended.
TIMEOUT = 300.0


class WorkshopError(Exception):
    """Runs of which nothing can be concluded."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What the tests of a row said.

    Attributes:
        status: ``caught``, ``survived``, ``broken`` (a program that does not hold together, or
            tests that were not run), or ``timeout``.
        by: the test that failed.
        message: the first line of its error, or what is wrong with the row.
    """

    status: str
    by: str = ""
    message: str = ""


def tree_files(root: Path) -> list[str]:
    """Paths of everything that git tracks or would: no caches, no environments.

    Raises:
        WorkshopError: where git cannot tell.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        raise WorkshopError(f"git does not list the files of {root}: {listed.stderr.strip()}")
    names = dict.fromkeys(filter(None, listed.stdout.split("\0")))
    return [name for name in names if (root / name).is_file()]


class Workshop:
    """One copy of the tree.

    Attributes:
        root: the copy.
    """

    def __init__(self, source: Path, folder: Path, timeout: float = TIMEOUT):
        """Copies the tree.

        Args:
            source: root of the repository.
            folder: empty; the copy and everything that its runs write go there.
            timeout: seconds.
        """
        self.root = (folder / "tree").resolve()
        self._scratch, self._timeout = folder / "scratch", timeout
        self._process: subprocess.Popen[str] | None = None
        for name in tree_files(source):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target, follow_symlinks=False)

    def control(self, tests: tuple[str, ...]) -> None:
        """Runs tests in the tree as it is.

        Raises:
            WorkshopError: when they do not all run and pass.
        """
        code, seen = self._run(tests)
        if code or seen["skipped"] or not seen["passed"]:
            what = "timed out" if code is None else self._first_failure(seen).message
            skipped = ", ".join(seen["skipped"][:3])
            raise WorkshopError(
                f"{' '.join(tests)} must pass before a fault is planted: "
                f"{what or (f'skipped: {skipped}' if skipped else f'pytest ended with {code}')}"
            )

    def try_out(self, mutation: Mutation) -> Result:
        """Plants a fault, runs the row's tests, and takes the fault out again.

        Raises:
            ValueError: when the fault cannot be planted.
            WorkshopError: when another tree than the copy was tested.
        """
        file = self.root / mutation.file
        honest = file.read_text(encoding="utf-8")
        file.write_text(mutation.applied(honest), encoding="utf-8")
        try:
            code, seen = self._run(mutation.tests)
        finally:
            file.write_text(honest, encoding="utf-8")
        if code is None:
            return Result("timeout", message=f"over {self._timeout:g} s")
        if code == 0:
            if seen["skipped"] or not seen["passed"]:
                return Result("broken", message="its tests were not run")
            loaded = str(file.resolve()) in seen["loaded"]
            note = "" if loaded else f"the tests did not import {mutation.file}"
            return Result("survived", message=note)
        failure = self._first_failure(seen)
        if code != 1 or not failure.by:
            return Result("broken", failure.by, failure.message or f"pytest ended with {code}")
        return failure

    def stop(self) -> None:
        """Ends the run that is going on, and the processes that its tests started."""
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def _first_failure(self, seen: dict[str, Any]) -> Result:
        if not seen["failures"]:
            return Result("broken")
        first = seen["failures"][0]
        text = first["message"].replace(str(self.root), ".").replace(str(self._scratch), "TMP")
        text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        status = "broken" if first["collecting"] or first["type"] in NO_EVIDENCE else "caught"
        return Result(status, first["node"], f"{first['type']}: {' '.join(lines[:2])[:200]}")

    def _run(self, tests: tuple[str, ...]) -> tuple[int | None, dict[str, Any]]:
        """Exit code of pytest, None when it took too long, and what the witness saw."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        report = self._scratch / "report.json"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutation.witness", "-p", "no:xdist", "--hypothesis-seed=0"]
        command += ["--basetemp", str(self._scratch / "pytest"), *tests]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment(report, tests),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._process = process
        try:
            output, _ = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            process.communicate()
            return None, {"passed": 0, "skipped": [], "failures": []}
        finally:
            self._process = None
        if not report.is_file():
            tail = " / ".join(output.strip().splitlines()[-3:])
            failure = {"node": "", "collecting": True, "type": "pytest", "message": tail}
            return process.returncode, {"passed": 0, "skipped": [], "failures": [failure]}
        seen = json.loads(report.read_text(encoding="utf-8"))
        if not Path(seen["package"]).is_relative_to(self.root):
            raise WorkshopError(
                f"the tests imported {seen['package']}, which is not the copy in {self.root}: "
                "nothing that they say is about the fault."
            )
        return process.returncode, seen

    def _environment(self, report: Path, tests: tuple[str, ...]) -> dict[str, str]:
        dropped = ("PYTEST_ADDOPTS", "GLU_LAB_TEST_DEVICES", "JAX_COMPILATION_CACHE_DIR")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        eight = tests[0].startswith("tests/eight_devices/")
        temporary = self._scratch / "tmp"
        temporary.mkdir()
        return kept | {
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GLU_LAB_CACHE": str(self._scratch / "cache"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._scratch / "hypothesis"),
            "TMPDIR": str(temporary),
            REPORT: str(report),
            **({"GLU_LAB_TEST_DEVICES": "8"} if eight else {}),
        }


class Controls:
    """Sets of tests that were seen to pass, each run once whoever asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], tuple[threading.Lock, list[Any]]] = {}

    def passed(self, workshop: Workshop, tests: tuple[str, ...]) -> None:
        """Checks that tests pass in the tree as it is.

        Raises:
            WorkshopError: when they do not.
        """
        with self._lock:
            own, outcome = self._known.setdefault(tests, (threading.Lock(), []))
        with own:
            if not outcome:
                try:
                    workshop.control(tests)
                    outcome.append(None)
                except WorkshopError as error:
                    outcome.append(error)
        if outcome[0] is not None:
            raise outcome[0]

"""Several processes of one run: how they find each other, and what they have to agree on.

JAX's own runtime connects them. Every process runs the same program on its part of the mesh;
process 0, the leader, alone writes records.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from glu_lab.errors import GluLabError, LostProcessError, RecordError, SpecError

#: A process that says nothing for so long counts as dead.
HEARTBEAT_SECONDS = 30


def connect(
    coordinator: str | None = None, processes: int | None = None, process: int | None = None
) -> None:
    """Joins this process to the others of its run; before anything else touches JAX.

    Args:
        coordinator: ``host:port`` of process 0; None asks Slurm, a TPU's metadata, Open MPI or
            Kubernetes, as `jax.distributed.initialize` does.
        processes: how many there are.
        process: which of them this is, from 0.

    Raises:
        SpecError: when some of the three are given and others not, when they do not fit, or when
            nothing is given and no cluster is found.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise SpecError(
            f"{', '.join(missing)} missing: give all of {', '.join(given)}, or none of them under "
            "Slurm or on a TPU."
        )
    if coordinator is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise SpecError(f"--coordinator={coordinator!r}: write host:port, as in 10.0.0.1:8476.")
        assert processes is not None and process is not None
        if not 0 <= process < processes:
            raise SpecError(
                f"--process={process} is not among --processes={processes}: count from 0."
            )
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
    except ValueError as error:
        raise SpecError(
            f"no cluster was found ({error}). Start under Slurm (srun), on a TPU, or with "
            "--coordinator=HOST:PORT --processes=N --process=I."
        ) from error
    except RuntimeError as error:
        raise SpecError(
            f"the processes did not find each other at {coordinator}: {first_line(error)}"
        ) from error


@contextlib.contextmanager
def noticing_loss(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Turns the failure of a collective whose partner is gone into a readable error.

    Raises:
        LostProcessError: with what `how_to_go_on` says.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise LostProcessError(
            f"another process of this run ended or cannot be reached ({first_line(error)[:200]}). "
            f"{how_to_go_on()}"
        ) from error


def disconnect() -> None:
    """Leaves the other processes in good order, once all have come to their end."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def is_leader() -> bool:
    """Whether this process writes the records."""
    return jax.process_index() == 0


def from_leader(work: Callable[[], Any]) -> Any:
    """The leader's result of a piece of work, in every process.

    Args:
        work: called by the leader alone; returns what JSON can hold.

    Raises:
        GluLabError: the leader's error; the others raise a `RecordError` of the same text, so that
            all end together.
    """
    if jax.process_count() == 1:
        return work()
    failure: GluLabError | None = None
    told: dict[str, Any] = {}
    if is_leader():
        try:
            told = {"result": work()}
        except GluLabError as error:
            failure, told = error, {"error": str(error)}
    told = json.loads(_broadcast(json.dumps(told).encode()).decode())
    if failure is not None:
        raise failure
    if "error" in told:
        raise RecordError(f"process 0 says: {told['error']}")
    return told["result"]


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


def _broadcast(content: bytes) -> bytes:
    from jax.experimental import multihost_utils

    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    buffer = np.zeros(length, np.uint8)
    if is_leader():
        buffer[:] = np.frombuffer(content, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def first_line(error: Exception) -> str:
    """What an error says, without the stack that some runtimes append."""
    return str(error).strip().split("\n", 1)[0]

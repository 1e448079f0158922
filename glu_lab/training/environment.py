"""Where a run ran: device, cores, libraries, flags, revision."""

import os
import platform
from importlib import metadata
from typing import Any

import jax

from glu_lab import __version__
from glu_lab.files.revision import source_revision
from glu_lab.spec.codec import encode
from glu_lab.spec.execution import Execution
from glu_lab.spec.identity import digest

_LIBRARIES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "sentencepiece",
    "numpy",
)
_JAX_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


def execution_facts(execution: Execution) -> dict[str, Any]:
    """Everything but the identity that can move the last bits of a result."""
    device = jax.devices()[0]
    return {
        "execution": encode(execution),
        "backend": device.platform,
        "device_kind": device.device_kind,
        "device_count": jax.device_count(),
        "process_count": jax.process_count(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "machine": platform.machine(),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "jax_flags": {name: str(getattr(jax.config, name)) for name in _JAX_FLAGS},
    }


def execution_hash(execution: Execution) -> str:
    """The hash of `execution_facts`; runs of one identity are bit-identical when it is equal."""
    return digest(execution_facts(execution))


def environment(execution: Execution) -> dict[str, Any]:
    """One session's environment, for the record."""
    return {
        "execution_hash": execution_hash(execution),
        **execution_facts(execution),
        # Timings of a busy machine are not those of the code.
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "glu_lab": __version__,
        "revision": source_revision(),
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
    }

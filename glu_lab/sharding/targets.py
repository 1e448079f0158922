"""What stands in for the devices of a mesh that is only planned, and who compiles for it.

* ``cpu``: virtual devices of this process; XLA's CPU compiler.
* ``tpu:<topology>``: descriptions of TPU chips; the TPU compiler, from the package libtpu.
* ``cuda``: nothing, an abstract mesh; programs are lowered and not compiled.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec.sharding import MESH_AXES, Rules

#: Platform → how a target of it is written.
PLATFORMS: Mapping[str, str] = {"cpu": "cpu", "tpu": "tpu:v5e:2x4", "cuda": "cuda"}

#: Devices that the CPU client of one process can have: further ones count as another process's,
#: for which it does not compile.
MAX_VIRTUAL_DEVICES = 2048

#: libtpu asks the machine which TPU it has; these answers keep it from looking for one.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
}

_EXPLICIT = (AxisType.Explicit,) * len(MESH_AXES)


@dataclasses.dataclass(frozen=True)
class Target:
    """What a program is planned for.

    Attributes:
        name: as the user wrote it.
        platform: ``cpu``, ``tpu`` or ``cuda``.
        topology: of TPU chips, in libtpu's words, for example ``v5e:2x4``.
    """

    name: str
    platform: str
    topology: str = ""

    @property
    def compiles(self) -> bool:
        """Whether a compiler for the target runs on any machine."""
        return self.platform != "cuda"


def parse_target(text: str) -> Target:
    """A target from ``cpu``, ``cuda`` or ``tpu:<topology>``.

    Raises:
        UnknownNameError: for another platform.
        SpecError: for a topology that is missing, or that the platform does not have.
    """
    if text == "gpu":
        raise SpecError("target 'gpu': write 'cuda', which lowers for NVIDIA GPUs.")
    platform, colon, topology = text.partition(":")
    if platform not in PLATFORMS:
        raise UnknownNameError("target", text, PLATFORMS.values())
    if (platform == "tpu") != bool(topology) or (colon and not topology):
        expected = (
            "a TPU target names its chips, as in 'tpu:v5e:2x4'"
            if platform == "tpu"
            else f"{platform} has no topologies; write {platform!r}"
        )
        raise SpecError(f"target {text!r}: {expected}.")
    return Target(text, platform, topology)


def topology_devices(target: Target) -> list[Any]:
    """Descriptions of a TPU target's devices; none of them has to exist.

    Raises:
        SpecError: without the package libtpu, or for a topology that it does not know.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise SpecError(
            f"target {target.name!r} needs the TPU compiler, which is not installed; it runs "
            "without a TPU: pip install 'glu_lab[tpu]' (or jax[tpu] of the same jax: package "
            "libtpu)."
        )
    from jax.experimental import topologies

    for name, value in _NO_TPU_HERE.items():
        os.environ.setdefault(name, value)
    try:
        return list(topologies.get_topology_desc(target.topology, "tpu").devices)
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise SpecError(
            f"target {target.name!r}: libtpu does not know this topology ({said}). Write the "
            "generation and the chips along each side, as in tpu:v5e:2x4, tpu:v6e:4x4, "
            "tpu:v4:2x2x2 or tpu:v5p:2x2x2."
        ) from error


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of these sizes without devices."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=_EXPLICIT)


def device_mesh(sizes: Mapping[str, int], devices: list[Any]) -> Mesh:
    """A mesh of these sizes over as many of the devices, in an order that suits their links."""
    count = math.prod(sizes.values())
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=_EXPLICIT, devices=devices[:count]
    )


def use_virtual_devices(count: int) -> None:
    """Gives this process `count` CPU devices and no others; before anything of JAX has run.

    For processes that only plan: an accelerator of this machine is not touched.

    Raises:
        SpecError: when JAX has started with fewer.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        virtual_devices(count)


def virtual_devices(count: int) -> list[Any]:
    """This process's first `count` CPU devices.

    Raises:
        SpecError: when there are fewer.
    """
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise SpecError(
            f"the mesh needs {count} virtual devices, and JAX has started in this process with "
            f"{len(devices)}. Call glu_lab.sharding.targets.use_virtual_devices({count}) before "
            "anything else of JAX, or use `glu-lab plan`, which has a process of its own."
        )
    return devices[:count]


def stand_in(sizes: Mapping[str, int], rules: Rules, limit: int) -> dict[str, int] | None:
    """A smaller mesh on which one device's program is the same.

    The ``data`` axis alone can shrink: where it splits nothing but the batch, a device's arrays
    depend on the batch per device, and the sums over the axis on their own size.

    Args:
        sizes: of the planned mesh.
        rules: which axes split what.
        limit: devices that the smaller mesh may have.

    Returns:
        Its sizes, the planned ones where these fit; None when there is none.
    """
    others = math.prod(sizes.values()) // sizes["data"]
    if others * sizes["data"] <= limit:
        return dict(sizes)
    if any("data" in split for name, split in vars(rules).items() if name != "batch"):
        return None
    fitting = [d for d in range(2, limit // others + 1) if sizes["data"] % d == 0]
    return {**sizes, "data": max(fitting)} if fitting else None


@contextlib.contextmanager
def entered(mesh: Mesh | AbstractMesh) -> Iterator[None]:
    """Traces what is inside under a mesh."""
    if isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:
        with jax.sharding.use_abstract_mesh(mesh):
            yield


def compiler_name(target: Target) -> str:
    """Who compiles for the target, with its version."""
    package = "libtpu" if target.platform == "tpu" else "jaxlib"
    return f"XLA for {target.platform.upper()}, {package} {metadata.version(package)}"

"""The device mesh, from text such as ``"data=2,fsdp=1,model=4"``."""

import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from glu_lab.errors import SpecError, UnknownNameError

#: Mesh axes, in order: batches; parameters and optimiser state; tensor parallelism.
AXES: tuple[str, ...] = ("data", "fsdp", "model")


def parse_mesh(text: str, devices: int) -> dict[str, int]:
    """Sizes of the mesh axes.

    Args:
        text: ``axis=size`` pairs; axes left out have size 1; one size may be -1 for the rest.
        devices: how many there are.

    Raises:
        SpecError: for a typo, or sizes that do not multiply to the number of devices.
    """
    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    seen = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SpecError(f"mesh {text!r}: write axis=size, as in 'data=2,model=4'.")
        if name not in sizes:
            raise UnknownNameError("mesh axis", name, AXES)
        if name in seen:
            raise SpecError(f"mesh {text!r} names axis {name!r} twice.")
        seen.add(name)
        try:
            sizes[name] = int(number)
        except ValueError:
            raise SpecError(f"mesh {text!r}: the size of {name!r} must be an integer.") from None
        if sizes[name] < 1 and sizes[name] != -1:
            raise SpecError(f"mesh {text!r}: the size of {name!r} must be ≥ 1, or -1 for the rest.")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise SpecError(f"mesh {text!r}: only one axis can take the rest, got {', '.join(free)}.")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        if devices % fixed:
            raise SpecError(f"mesh {text!r}: {fixed} does not divide the {devices} devices here.")
        sizes[free[0]] = devices // fixed
    elif fixed != devices:
        raise SpecError(f"mesh {text!r} needs {fixed} devices; there are {devices}.")
    return sizes


def make_mesh(text: str) -> Mesh:
    """The mesh over all devices of this process group.

    Raises:
        SpecError: as `parse_mesh`; and for axes other than ``data`` of a size over 1, which no rule
            lays out: parameters would be replicated along them and nothing gained.
    """
    sizes = parse_mesh(text, jax.device_count())
    for name in ("fsdp", "model"):
        if sizes[name] > 1:
            raise SpecError(
                f"mesh {text!r}: parameters have no layout along {name!r}; use 'data=-1'."
            )
    return jax.make_mesh(
        tuple(sizes.values()),
        AXES,
        axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Examples split over ``data``."""
    return NamedSharding(mesh, PartitionSpec("data"))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())

"""The device mesh, and which piece of an array each of its devices and processes holds."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from glu_lab.errors import SpecError
from glu_lab.layers.params import Table, leaves, map_table
from glu_lab.layers.placement import partition_spec
from glu_lab.spec.sharding import MESH_AXES, Rules, check_divides, parse_mesh


def make_mesh(text: str) -> Mesh:
    """The mesh over all devices of all processes, with Explicit axes.

    Raises:
        SpecError: as `glu_lab.spec.sharding.parse_mesh`.
    """
    sizes = parse_mesh(text, jax.device_count())
    return jax.make_mesh(
        tuple(sizes.values()), MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES)
    )


def automatic(mesh: Mesh) -> Mesh:
    """The same devices with axes that the compiler propagates, for code that states no layouts."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def check_table(table: Table, rules: Rules, mesh: Mapping[str, int]) -> None:
    """Checks that every array of a parameter table can be laid out.

    Raises:
        SpecError: as `check_divides` and `Rules.splits`.
    """
    dimensions = []
    for _, parameter in leaves(table):
        rules.splits(parameter.axes)
        dimensions += zip(parameter.axes, parameter.shape, strict=True)
    check_divides(dimensions, rules, mesh)


def parameter_specs(table: Table, rules: Rules) -> dict:
    """The layout of every parameter as it is stored: a tree of the table's form."""
    return map_table(lambda _, p: partition_spec(rules.splits(p.axes)), table)


def shardings(mesh: Mesh, specs: Any) -> Any:
    """Layouts on a mesh: a tree of `NamedSharding` from one of `PartitionSpec`."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        specs,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def batch_sharding(mesh: Mesh, rules: Rules) -> NamedSharding:
    """Rows of a batch split by the rule for ``batch``."""
    return NamedSharding(mesh, partition_spec(rules.splits(("batch",))))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def put_replicated(value: Any, mesh: Mesh) -> jax.Array:
    """A number, array or key that every process knows, on every device."""
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(put_replicated(jax.random.key_data(array), mesh))
    known = np.asarray(array)
    return jax.make_array_from_callback(known.shape, replicated(mesh), known.__getitem__)


def on_mesh(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The same buffers with the mesh's own axis types; nothing is moved."""
    sharding = NamedSharding(mesh, array.sharding.spec)  # pyright: ignore[reportAttributeAccessIssue]
    pieces = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, pieces)


def process_rows(sharding: NamedSharding, rows: int) -> tuple[int, int]:
    """Which rows of a batch this process has to read.

    Processes whose devices hold the same rows (a ``model`` axis across hosts) read the same ones.

    Returns:
        (index, count): the batch is ``count`` equal groups of rows, and this process's devices
        hold group ``index``.

    Raises:
        SpecError: when the devices of a process hold rows that are not one whole group.
    """
    groups = set()
    for device, index in sharding.devices_indices_map((rows,)).items():
        groups.add((device.process_index, index[0].start or 0, index[0].stop or rows))
    mine: dict[int, tuple[int, int]] = {}
    for process in sorted({group[0] for group in groups}):
        slices = sorted((start, stop) for owner, start, stop in groups if owner == process)
        start, stop = slices[0][0], slices[-1][1]
        whole = sum(b - a for a, b in slices) == stop - start
        if not whole or start % (stop - start) or rows % (stop - start):
            raise SpecError(
                f"the mesh gives process {process} the rows {slices} of a batch of {rows}: not one "
                "group in a row. Let the axes of the batch be a multiple of the processes, or let "
                "'model' span whole processes."
            )
        mine[process] = (start, stop)
    start, stop = mine[jax.process_index()]
    return start // (stop - start), rows // (stop - start)


def put_whole(batch: Mapping[str, np.ndarray], sharding: NamedSharding) -> dict:
    """A batch that every process holds whole, as global arrays."""
    return {
        name: jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
        for name, value in batch.items()
    }


def put_rows(batch: Mapping[str, np.ndarray], sharding: NamedSharding, rows: int) -> dict:
    """This process's rows of a batch as global arrays of `rows` rows."""
    return {
        name: jax.make_array_from_process_local_data(sharding, value, (rows, *value.shape[1:]))
        for name, value in batch.items()
    }

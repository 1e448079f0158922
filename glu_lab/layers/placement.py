"""Where a layer's arrays lie on the mesh, said by their logical axes.

A layer names the axes of an array and knows nothing of meshes. Under a mesh with Explicit axes
every array has its layout in its type, so that a layer states one only where a contraction, a
lookup or a new array leaves it open.
"""

import dataclasses

import jax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from glu_lab.spec.sharding import Rules, Split


@dataclasses.dataclass(frozen=True)
class Placement:
    """Layouts of a model's arrays.

    Attributes:
        rules: logical → mesh axes; None outside a mesh, where nothing is laid out.
    """

    rules: Rules | None = None

    def spec(self, *axes: str | None) -> PartitionSpec | None:
        """The layout of an array with these logical axes; None outside a mesh."""
        if self.rules is None:
            return None
        return partition_spec(self.rules.splits(axes))

    def rows(self, x: Array, *last: str | None) -> PartitionSpec | None:
        """The layout of (…, last): leading dimensions are the batch, then positions."""
        leading = ("batch", "seq", *(None,) * x.ndim)[: x.ndim - 1]
        return self.spec(*leading, *last)

    def use(self, value: Array, axes: tuple[str, ...]) -> Array:
        """A parameter as a layer computes with it: gathered over the axes of the batch."""
        if self.rules is None:
            return value
        return jax.sharding.reshard(value, partition_spec(self.rules.used(axes)))


def partition_spec(splits: tuple[Split, ...]) -> PartitionSpec:
    """JAX's form of the splits of an array's dimensions."""
    return PartitionSpec(*(s if len(s) > 1 else next(iter(s), None) for s in splits))


#: No mesh: the layers by themselves.
UNPLACED = Placement()

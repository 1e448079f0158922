"""Parameters as data: shape, logical axes, roles and initialiser of every array.

A sublayer states its parameters once, in a table. Initial values, counts, logical axes and the
matrix view that optimisers need all follow from it.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jaxtyping import Array

from glu_lab.layers.dtypes import resolve
from glu_lab.spec.ffn import Initializer

#: Axes along which independent weights are stacked: drawn and updated one by one.
STACK_AXES = ("layers", "branch")

#: Standard deviation of a standard normal truncated at ±2.
_TRUNCATED_STD = 0.87962566103423978


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One array of a model.

    Attributes:
        shape: its dimensions.
        axes: the logical name of each dimension.
        role: ``matrix`` for a projection inside a layer, ``embedding`` and ``head`` for the tables
            at the model's ends, ``vector`` for the rest. Optimisers treat roles apart.
        inputs, outputs: names of the axes that a weight contracts and produces; their sizes are
            its fans.
        init: initialiser, by fan.
        start: constant initial value of a learned scalar; overrides `init`.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    role: Literal["matrix", "embedding", "head", "vector"] = "vector"
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    init: Initializer = Initializer(distribution="zeros")
    start: float | None = None

    def __post_init__(self):
        assert len(self.shape) == len(self.axes), (self.shape, self.axes)

    def size(self, axes: tuple[str, ...]) -> int:
        """Product of the sizes of some axes; 1 for none."""
        return math.prod(n for n, axis in zip(self.shape, self.axes, strict=True) if axis in axes)

    @property
    def count(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)


Table = Mapping[str, Union[Parameter, "Table"]]


def leaves(table: Table, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
    """Every parameter with its canonical path, ``"decoder/layers/ffn/wi"``, in table order."""
    for name, entry in table.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(entry, Parameter):
            yield path, entry
        else:
            yield from leaves(entry, path)


def map_table(function: Callable[[str, Parameter], Any], table: Table, prefix: str = "") -> dict:
    """A tree of the table's form with ``function(path, parameter)`` at each leaf."""
    tree = {}
    for name, entry in table.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(entry, Parameter):
            tree[name] = function(path, entry)
        else:
            tree[name] = map_table(function, entry, path)
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of dicts as one dict of canonical paths."""
    flat: dict[str, Any] = {}
    for name, entry in tree.items():
        path = f"{prefix}/{name}" if prefix else name
        flat.update(flatten(entry, path) if isinstance(entry, Mapping) else {path: entry})
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict:
    """The inverse of `flatten`."""
    tree: dict = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree


def count(table: Table) -> int:
    """Number of scalars in all arrays."""
    return sum(parameter.count for _, parameter in leaves(table))


def stack(table: Table, layers: int) -> dict:
    """The table of `layers` independent copies, stacked along a leading ``layers`` axis."""

    def stacked(_: str, p: Parameter) -> Parameter:
        return dataclasses.replace(p, shape=(layers, *p.shape), axes=("layers", *p.axes))

    return map_table(stacked, table)


def path_key(key: Array, path: str) -> Array:
    """A key that depends on a root key and a canonical path, and on nothing else."""
    number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big")
    return jax.random.fold_in(key, number)


@functools.lru_cache(maxsize=1024)
def _drawer(
    shape: tuple[int, ...],
    stacking: tuple[int, ...],
    distribution: str,
    dtype: Any,
    sharding: Sharding | None,
) -> Callable[[Array, Array], Array]:
    """(Key, standard deviation) → an array; compiled once a shape, whatever asks for it."""
    stacked = tuple(shape[i] for i in stacking)
    rest = tuple(n for i, n in enumerate(shape) if i not in stacking)

    def one(key: Array) -> Array:
        if distribution == "normal":
            return jax.random.normal(key, rest, dtype)
        if distribution == "truncated_normal":
            return jax.random.truncated_normal(key, -2.0, 2.0, rest, dtype) / _TRUNCATED_STD
        bound = math.sqrt(3.0)
        return jax.random.uniform(key, rest, dtype, -bound, bound)

    def draw(key: Array, std: Array) -> Array:
        keys = key[None]
        for n in stacked:
            children = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
            keys = jax.vmap(children, in_axes=(0, None))(keys, jnp.arange(n)).reshape(-1)
        drawn = (std.astype(dtype) * jax.vmap(one)(keys)).reshape(*stacked, *rest)
        return jnp.moveaxis(drawn, range(len(stacked)), stacking)

    return jax.jit(draw, out_shardings=sharding)


def initialize(
    table: Table,
    key: Array,
    dtype: Any = jnp.float32,
    prefix: str = "",
    sharding: Callable[[Parameter], Sharding] | None = None,
) -> dict:
    """Draws initial values.

    Each array depends on (key, its canonical path, its index along the stacking axes) alone, so
    that models share every weight they have in common, whatever else they contain, and a stack of
    layers holds the values of its layers drawn one by one.

    Args:
        table: the parameters.
        key: a root key, `jax.random.key(seed)`.
        dtype: of every array.
        prefix: canonical path of the table's root.
        sharding: where each array shall lie, on a mesh with Auto axes: devices then draw no more
            than their own pieces, of the same values.

    Returns:
        A tree of arrays of the table's form.
    """
    dtype = resolve(dtype)

    def draw(path: str, p: Parameter) -> Array:
        where = sharding(p) if sharding else None
        if p.start is not None:
            return jnp.full(p.shape, p.start, dtype, device=where)
        if p.init.distribution in ("zeros", "ones"):
            return jnp.full(p.shape, float(p.init.distribution == "ones"), dtype, device=where)
        stacking = tuple(i for i, axis in enumerate(p.axes) if axis in STACK_AXES)
        std = jnp.float32(p.init.stddev(p.size(p.inputs), p.size(p.outputs)))
        drawer = _drawer(p.shape, stacking, p.init.distribution, dtype, where)
        return drawer(path_key(key, path), std)

    return map_table(draw, table, prefix)

"""SHA-256 of every array of a training state: bytes that changed on the disk are noticed."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.files.contents import array_sha256


def state_hashes(state: Any) -> dict[str, str]:
    """Path of an array → SHA-256 of its elements, little-endian in C order.

    Typed keys count as their words. Arrays of which other processes hold pieces are left out: no
    process has their bytes.
    """
    out = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            continue
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        out[path] = array_sha256(np.asarray(leaf))
    return out


def changed(state: Any, recorded: Mapping[str, str]) -> list[str]:
    """Paths of the arrays that are not what was recorded; those without a record are left out."""
    found = state_hashes(state)
    return [path for path, digest in recorded.items() if found.get(path, digest) != digest]

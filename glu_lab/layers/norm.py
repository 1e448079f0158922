"""Normalisation over the model width."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from glu_lab.layers.params import Parameter
from glu_lab.spec.ffn import Initializer
from glu_lab.spec.model import Norm


def parameters(spec: Norm, width: int, axis: str = "embed") -> dict[str, Parameter]:
    """``scale (width,)``, and ``bias (width,)`` where the Spec has one."""
    table = {
        "scale": Parameter(shape=(width,), axes=(axis,), init=Initializer(distribution="ones"))
    }
    if spec.bias:
        table["bias"] = Parameter(shape=(width,), axes=(axis,))
    return table


def apply(
    params: Mapping[str, Array], x: Float[Array, "... D"], spec: Norm
) -> Float[Array, "... D"]:
    """Normalises the last axis, with statistics in float32 at least, and keeps x's dtype."""
    dtype = np.promote_types(x.dtype, np.float32)
    wide = x.astype(dtype)
    if spec.kind == "layernorm":
        wide = wide - wide.mean(axis=-1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + spec.eps)
    leading = (1,) * (x.ndim - 1)
    wide = wide * params["scale"].astype(dtype).reshape((*leading, -1))
    if spec.bias:
        wide = wide + params["bias"].astype(dtype).reshape((*leading, -1))
    return wide.astype(x.dtype)

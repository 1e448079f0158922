"""Number formats by name, refused where JAX would silently take a narrower one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.errors import SpecError


def resolve(name: Any) -> np.dtype:
    """The dtype of a name of `glu_lab.spec.numerics.Numerics`, or of anything NumPy accepts.

    Raises:
        SpecError: for float64 while JAX's 64-bit mode is off: it would compute in float32.
    """
    dtype = jnp.dtype(name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise SpecError(
            f"{dtype} needs JAX's 64-bit mode, which is off: set JAX_ENABLE_X64=1, or compute "
            "under `with jax.enable_x64(True):`."
        )
    return dtype

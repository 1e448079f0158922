"""A number format that JAX would silently narrow is refused."""

import jax
import jax.numpy as jnp
import pytest

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.spec import variant
from glu_lab.spec.numerics import Numerics


def test_float64_without_64_bit_mode_is_refused():
    spec = variant("swiglu", d_model=4, d_ff=6)
    params = ffn.init(jax.random.key(0), spec)
    with pytest.raises(SpecError, match="JAX_ENABLE_X64"):
        ffn.apply(params, jnp.ones((2, 4)), spec, numerics=Numerics.uniform("float64"))
    with pytest.raises(SpecError, match="JAX_ENABLE_X64"):
        ffn.init(jax.random.key(0), spec, "float64")


def test_float64_is_float64_in_64_bit_mode():
    spec = variant("swiglu", d_model=4, d_ff=6)
    with jax.enable_x64(True):
        params = ffn.init(jax.random.key(0), spec, "float64")
        y = ffn.apply(params, jnp.ones((2, 4)), spec, numerics=Numerics.uniform("float64"))
    assert y.dtype == jnp.float64

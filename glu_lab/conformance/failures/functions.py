"""Artefacts that compute: a sublayer, a fused kernel.

Dimension letters: T rows, D d_model, N branches, F d_ff.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab.conformance.failures.fused import Kernel
from glu_lab.layers import ffn
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle.functions import wide
from glu_lab.oracle.properties import Subject
from glu_lab.spec.ffn import FFN
from glu_lab.spec.numerics import Numerics

Params = Mapping[str, Any]

#: (parameters, rows, Spec) → Y, in JAX.
Function = Callable[[Params, Array, FFN], Array]


def numerics_of(dtype: Any) -> Numerics:
    """The layers' number formats for rows of a dtype: all float64, or sums in float32."""
    name: Any = jnp.dtype(dtype).name
    return Numerics.uniform("float64") if name == "float64" else Numerics(compute_dtype=name)


def layer(params: Params, x: Array, spec: FFN, dropout_key: Array | None = None) -> Array:
    """The product's own sublayer."""
    return ffn.apply(params, x, spec, numerics=numerics_of(x.dtype), dropout_key=dropout_key)


def branches(params: Params, x: Array, spec: FFN) -> list[Array]:
    """The pre-activations x W_i of every branch; for Specs without biases."""
    return [x @ params["wi"][:, i, :] for i in range(spec.num_branches)]


#: Compiling is nearly all the time that the lab takes.
_QUICK = {"xla_backend_optimization_level": 0}


@functools.cache
def _compiled(function: Function, spec: FFN) -> Any:
    return jax.jit(lambda params, x: function(params, x, spec), compiler_options=_QUICK)


@functools.cache
def _pulled_back(function: Function, spec: FFN) -> Any:
    def run(params: Params, x: Array, upstream: Array) -> Any:
        _, pull = jax.vjp(lambda p, rows: function(p, rows, spec), params, x)
        by_params, by_x = pull(upstream)
        return by_x, by_params

    return jax.jit(run, compiler_options=_QUICK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sublayer:
    """A function that is said to compute an FFN Spec, with parameters and rows to try it on.

    Attributes:
        function: what it computes.
        spec: what it should.
        params, x: in float64; rounded to `dtype` for the function, and for the oracle too.
        keep: the dropout mask that it should have used; None for the inference mode.
        dtype, accumulate: its number formats.
    """

    function: Function
    spec: FFN
    params: Params
    x: Any
    keep: np.ndarray | None = None
    dtype: str = "float64"
    accumulate: str = "float64"

    def forward(self, params: Params, x: Any, spec: FFN) -> np.ndarray:
        """Y as float64."""
        with jax.enable_x64(True):
            return wide(_compiled(self.function, spec)(self._rounded(params), self._round(x)))

    def backward(
        self, params: Params, x: Any, spec: FFN, upstream: Any
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The gradients of Σ Y·upstream by the rows and by each parameter."""
        with jax.enable_x64(True):
            by_x, by_params = _pulled_back(self.function, spec)(
                self._rounded(params), self._round(x), self._round(upstream)
            )
            return wide(by_x), {name: wide(value) for name, value in by_params.items()}

    @property
    def subject(self) -> Subject:
        """As the properties take it."""
        return Subject(self.forward, self.backward)

    def inputs(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Parameters and rows as the function gets them, in float64."""
        with jax.enable_x64(True):
            params, x = self._rounded(self.params), self._round(self.x)
            return {name: wide(value) for name, value in params.items()}, wide(x)

    def _round(self, values: Any) -> Array:
        return jnp.asarray(values).astype(self.dtype)

    def _rounded(self, params: Params) -> dict[str, Array]:
        return {name: self._round(value) for name, value in params.items()}

    def seems_right(self) -> bool:
        """It runs, the residual stream takes its output, and all is finite."""
        try:
            stream = self.x + self.forward(self.params, self.x, self.spec)
        except (TypeError, ValueError):
            return False
        return stream.shape == self.x.shape and bool(np.isfinite(stream).all())


def draw(spec: FFN, rows: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Parameters and rows (T, D) of order 1, in general position."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=shape) * 0.8 for name, shape in oracle.shapes(spec).items()}
    return params, rng.normal(size=(rows, spec.d_model))


def sublayer(function: Function, spec: FFN, *, rows: int = 4, **fields: Any) -> Sublayer:
    """A function on drawn parameters and rows, the same for all functions of a Spec."""
    params, x = draw(spec, rows)
    return Sublayer(function=function, spec=spec, **({"params": params, "x": x} | fields))


#: Parameters that make a row (gate, up) its own pre-activations, and H the first output.
PAIR: Mapping[str, Any] = {
    "wi": np.eye(2, dtype=np.float32)[:, :, None],
    "wo": np.array([[1.0, 0.0]], np.float32),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedGate:
    """A fused gated activation that is said to compute the branches of a Spec.

    Attributes:
        function: (gate, up) → H, in the dtype of its arguments.
        spec: two branches, d_model 2 and d_ff 1, so that a row is a pair of pre-activations.
        dtype: that it ships in, beside float32.
        rounding_point: where it says that it rounds, as in `Numerics`.
    """

    function: Kernel
    spec: FFN
    dtype: str = "bfloat16"
    rounding_point: str = "product"

    def run(self, gate: Any, up: Any, dtype: str) -> np.ndarray:
        """H as float64, of arguments rounded to a dtype."""
        rounded = (jnp.asarray(values, dtype) for values in (gate, up))
        return wide(jax.jit(self.function, compiler_options=_QUICK)(*rounded))

    def pull_back(self, gate: Any, up: Any, upstream: Any, dtype: str) -> np.ndarray:
        """∂gate and ∂up as float64, (…, 2)."""

        def run(gate: Array, up: Array, upstream: Array) -> Any:
            return jax.vjp(self.function, gate, up)[1](upstream)

        jitted = jax.jit(run, compiler_options=_QUICK)
        rounded = (jnp.asarray(values, dtype) for values in (gate, up, upstream))
        return np.stack([wide(part) for part in jitted(*rounded)], axis=-1)

    def seems_right(self) -> bool:
        """In eager float32, on numbers of order 1, it is within a hundredth of the layers."""
        gate, up = np.random.default_rng(2).normal(size=(2, 256)).astype(np.float32)
        rows = jnp.asarray(np.stack([gate, up], axis=-1))
        eager = wide(ffn.product(PAIR, rows, self.spec, Numerics()))[:, 0]
        hidden = wide(self.function(jnp.asarray(gate), jnp.asarray(up)))
        return hidden.shape == gate.shape and np.allclose(hidden, eager, rtol=0.01, atol=0.01)

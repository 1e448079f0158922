"""The feed-forward sublayer: one function for every product of branches.

    a_i = pre_i( scale_i · (x W_i + b_i) )
    H   = Π_i ( post_i( φ_i(a_i) ) + offset_i ) + b_product
    Y   = output_scale · ( dropout(H) W_o + b_o )

Usable without any framework:

    spec = variant("swiglu", d_model=512, d_ff=1376)
    params = ffn.init(jax.random.key(0), spec)
    y = ffn.apply(params, x, spec)

Dimension letters: D d_model, F d_ff, N branches; leading dimensions are any. Parameters, in one
canonical form: ``wi (D, N, F)``, ``wo (F, D)``, and where the Spec asks for them ``bi_<i> (F,)``,
``bp (F,)``, ``bo (D,)``, and the learned scalars of branch i as ``phi_<i>_<name> ()``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Key

from glu_lab import activations
from glu_lab.layers import params as params_lib
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import Parameter
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.spec.ffn import FFN, Branch, Clamp
from glu_lab.spec.numerics import Numerics

#: Called with the name and value of an intermediate; see `TAPS`.
Tap = Callable[[str, Array], Any]

#: What a tap sees, in order. Shapes: input and output (..., D), pre_activation, slopes and branches
#: (..., N, F), product (..., F). ``pre_activation`` is the clamped argument of φ, ``slopes`` is φ′
#: there; ``branches`` are the factors of the product; ``product`` is taken before dropout.
TAPS = ("input", "pre_activation", "slopes", "branches", "product", "output")


def parameters(spec: FFN) -> dict[str, Parameter]:
    """The table of a Spec's parameters."""
    D, N, F = spec.d_model, spec.num_branches, spec.d_ff
    table = {
        "wi": Parameter(
            shape=(D, N, F),
            axes=("embed", "branch", "mlp"),
            role="matrix",
            inputs=("embed",),
            outputs=("mlp",),
            init=spec.wi_init,
        ),
        "wo": Parameter(
            shape=(F, D),
            axes=("mlp", "embed"),
            role="matrix",
            inputs=("mlp",),
            outputs=("embed",),
            init=spec.wo_init,
        ),
    }
    for i, branch in enumerate(spec.branches):
        if branch.bias:
            table[f"bi_{i}"] = Parameter(shape=(F,), axes=("mlp",))
        for name, start in branch.activation.row.learned.items():
            table[f"phi_{i}_{name}"] = Parameter(shape=(), axes=(), start=start)
    if spec.product_bias:
        table["bp"] = Parameter(shape=(F,), axes=("mlp",))
    if spec.output_bias:
        table["bo"] = Parameter(shape=(D,), axes=("embed",))
    return table


def init(key: Key[Array, ""], spec: FFN, dtype: Any = jnp.float32) -> dict[str, Array]:
    """Initial parameters of a Spec, by its own initialisers."""
    return params_lib.initialize(parameters(spec), key, dtype)


def _clamp(x: Array, clamp: Clamp | None) -> Array:
    return x if clamp is None else jnp.clip(x, clamp[0], clamp[1])


def _factor(a: Array, branch: Branch, learned: Mapping[str, Array]) -> Array:
    """post(φ(a)) + offset."""
    factor = _clamp(activations.value(branch.activation, a, learned), branch.post)
    return factor + branch.offset if branch.offset else factor


def keep_mask(key: Key[Array, ""], x: Array, spec: FFN, place: Placement = UNPLACED) -> Array:
    """Which elements of the hidden state (..., F) of rows x stay; size 1 along shared axes.

    The last leading dimension is the position, those before it are the batch. An element depends on
    the key and its position in the whole array, however that is split.
    """
    whole = (*x.shape[:-1], spec.d_ff)
    *batch, position, features = whole if x.ndim > 1 else (1, *whole)
    if "batch" in spec.hidden_dropout_shared:
        batch = [1] * len(batch)
    if "position" in spec.hidden_dropout_shared:
        position = 1
    shape = (*batch, position, features)[-x.ndim :]
    layout = place.rows(x, "mlp")
    if layout is not None:
        splits = zip(layout, shape, whole, strict=True)
        layout = PartitionSpec(*(split if n == full else None for split, n, full in splits))
    return jax.random.bernoulli(key, 1.0 - spec.hidden_dropout, shape, out_sharding=layout)


def check(params: Mapping[str, Array], x: Array, spec: FFN) -> None:
    """Checks that rows and parameters are those of the Spec.

    Raises:
        ValueError: when the last dimension of x is not D, or parameters are not those of the Spec.
    """
    if x.ndim < 1 or x.shape[-1] != spec.d_model:
        raise ValueError(
            f"x has shape {x.shape}; its last dimension must be d_model={spec.d_model}."
        )
    expected = parameters(spec)
    if params.keys() != expected.keys():
        raise ValueError(
            f"parameters {sorted(params)} do not fit the Spec, which has {sorted(expected)}."
        )
    for name, entry in expected.items():
        if params[name].shape != entry.shape:
            raise ValueError(
                f"parameter {name!r} has shape {params[name].shape}; the Spec has {entry.shape}."
            )


# The sublayer in the steps between which a schedule can put something of its own. Each hidden
# channel is computed by itself, so that `product` takes any block of channels; `down` of a block is
# its summand of the output, and `finish` comes after their sum.


def product(
    params: Mapping[str, Array],
    x: Float[Array, "... D"],
    spec: FFN,
    numerics: Numerics,
    tap: Tap | None = None,
) -> Float[Array, "... F"]:
    """The hidden state before dropout, of rows in ``numerics.compute_dtype``.

    Args:
        params: arrays named as in `parameters`, or the same block of channels of each.
        x: rows.
        spec: which function.
        numerics: which number format each step uses.
        tap: called with the intermediates from ``pre_activation`` to ``product``.
    """
    compute = resolve(numerics.compute_dtype)
    phi_dtype = resolve(numerics.activation_dtype)
    accumulate = resolve(numerics.accumulation_dtype)
    product_dtype = compute if numerics.rounding_point == "branch" else phi_dtype

    projected = jnp.einsum(
        "...d,dnf->...nf", x, params["wi"].astype(compute), preferred_element_type=accumulate
    )
    arguments, slopes, factors = [], [], []
    for i, branch in enumerate(spec.branches):
        a = projected[..., i, :]
        if branch.bias:
            a = a + _broadcast(params[f"bi_{i}"].astype(accumulate), a)
        if branch.scale != 1.0:
            a = branch.scale * a
        a = _clamp(a.astype(compute).astype(phi_dtype), branch.pre)
        learned = {
            name: params[f"phi_{i}_{name}"].astype(phi_dtype)
            for name in branch.activation.row.learned
        }
        if tap is not None:
            arguments.append(a)
            slopes.append(activations.derivative(branch.activation, a, learned))
        factors.append(_factor(a, branch, learned).astype(product_dtype))
    if tap is not None:
        tap("pre_activation", jnp.stack(arguments, axis=-2))
        tap("slopes", jnp.stack(slopes, axis=-2))
        tap("branches", jnp.stack(factors, axis=-2))

    hidden = factors[0]
    for factor in factors[1:]:
        hidden = hidden * factor
    if spec.product_bias:
        hidden = hidden + _broadcast(params["bp"].astype(product_dtype), hidden)
    hidden = hidden.astype(compute)
    if tap is not None:
        tap("product", hidden)
    return hidden


def drop(hidden: Float[Array, "... F"], keep: Array, spec: FFN) -> Float[Array, "... F"]:
    """The hidden state with the elements outside the mask at 0 and the rest scaled up."""
    scaled = hidden / (1.0 - spec.hidden_dropout)
    return jnp.where(keep, scaled, jnp.zeros_like(scaled))


def down(
    params: Mapping[str, Array],
    hidden: Float[Array, "... F"],
    numerics: Numerics,
    layout: PartitionSpec | None = None,
) -> Float[Array, "... D"]:
    """The hidden state times ``wo``, in ``numerics.accumulation_dtype``.

    Args:
        params: as in `product`.
        hidden: all channels, or the block that the parameters are of.
        numerics: which number format each step uses.
        layout: of the result, where F is split over the mesh.
    """
    return jnp.einsum(
        "...f,fd->...d",
        hidden,
        params["wo"].astype(resolve(numerics.compute_dtype)),
        preferred_element_type=resolve(numerics.accumulation_dtype),
        out_sharding=layout,
    )


def finish(
    params: Mapping[str, Array], y: Float[Array, "... D"], spec: FFN, numerics: Numerics
) -> Float[Array, "... D"]:
    """The output from the whole sum over channels: bias, scale, ``numerics.compute_dtype``."""
    if spec.output_bias:
        y = y + _broadcast(params["bo"].astype(y.dtype), y)
    if spec.output_scale != 1.0:
        y = spec.output_scale * y
    return y.astype(resolve(numerics.compute_dtype))


def apply(
    params: Mapping[str, Array],
    x: Float[Array, "... D"],
    spec: FFN,
    *,
    numerics: Numerics = Numerics(),
    dropout_key: Key[Array, ""] | None = None,
    tap: Tap | None = None,
    place: Placement = UNPLACED,
) -> Float[Array, "... D"]:
    """The sublayer's output for every row of x.

    Args:
        params: arrays named as in `parameters`.
        x: rows of width D.
        spec: which function.
        numerics: which number format each step uses.
        dropout_key: a key drops hidden elements with the Spec's probability; None does not (the
            inference mode).
        tap: called with each intermediate of `TAPS`.
        place: how arrays lie on the mesh; parameters come as `Placement.use` gives them.

    Returns:
        Y, in ``numerics.compute_dtype``.

    Raises:
        ValueError: when the last dimension of x is not D, or parameters are not those of the Spec.
    """
    check(params, x, spec)
    observe = tap or (lambda name, value: None)

    x = x.astype(resolve(numerics.compute_dtype))
    observe("input", x)
    hidden = product(params, x, spec, numerics, tap)
    if dropout_key is not None and spec.hidden_dropout > 0.0:
        hidden = drop(hidden, keep_mask(dropout_key, x, spec, place), spec)
    y = finish(params, down(params, hidden, numerics, place.rows(x, None)), spec, numerics)
    observe("output", y)
    return y


def _broadcast(vector: Array, like: Array) -> Array:
    """A vector over the last axis, given the rank of `like`."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)

"""A fused gated activation of the lab's own: φ(gate)·up and its pull-back, one function each.

    H = (φ_0(pre_0(gate)) + offset_0) · (φ_1(pre_1(up)) + offset_1)

It is what a hand-written kernel is to the eager layers: the same formula with choices of its own,
each of which has a right value and wrong ones. `gated` is the right one of a Spec; the lab spoils
one choice at a time.

Dimension letters: gate, up and H have one shape, any.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from glu_lab import activations
from glu_lab.errors import SpecError
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN
from glu_lab.spec.formula import formula

#: (gate, up) → H.
Kernel = Callable[[Float[Array, "..."], Float[Array, "..."]], Float[Array, "..."]]

#: An elementwise function, or its slope.
Pointwise = Callable[[Array], Array]


def wide(x: Array) -> Array:
    """At least float32, in which a kernel computes whatever it is given."""
    return x.astype(np.promote_types(x.dtype, np.float32))


def phi(activation: Activation) -> Pointwise:
    """The value of φ as the layers have it."""
    return lambda x: activations.value(activation, x)


def phi_slope(activation: Activation) -> Pointwise:
    """The derivative of φ as the layers have it."""
    return lambda x: activations.derivative(activation, x)


def from_parts(
    value: Callable[[Array, Array], Array],
    pull_back: Callable[[Any, Array], tuple[Array, Array]],
    keep: Callable[[Array, Array, Array], Any] = lambda gate, up, hidden: (gate, up),
) -> Kernel:
    """A kernel from its forward and backward.

    Args:
        value: (gate, up) → H.
        pull_back: (what was kept, ∂H) → (∂gate, ∂up).
        keep: (gate, up, H) → what backward is given; by default both pre-activations.
    """

    @jax.custom_vjp
    def kernel(gate: Array, up: Array) -> Array:
        return value(gate, up)

    def forward(gate: Array, up: Array) -> tuple[Array, Any]:
        hidden = value(gate, up)
        return hidden, keep(gate, up, hidden)

    kernel.defvjp(forward, pull_back)
    return kernel


def gated(
    spec: FFN,
    *,
    value: Pointwise | None = None,
    slope: Pointwise | None = None,
    clamped: tuple[int, ...] = (0, 1),
    rounded_first: bool = False,
) -> Kernel:
    """The kernel of a Spec's two branches, computed in float32 at least and rounded once.

    Args:
        spec: two branches without biases, scales, learned scalars, and clamps after φ.
        value, slope: of the first branch's φ; by default as the Spec says.
        clamped: the branches whose ``pre`` clamps are applied.
        rounded_first: whether both factors are rounded to the dtype of `gate` before they are
            multiplied, and not only their product.

    Raises:
        SpecError: for a Spec of another form.
    """
    plain = [
        not (b.bias or b.scale != 1.0 or b.post or b.activation.row.learned) for b in spec.branches
    ]
    if plain != [True, True]:
        raise SpecError(
            "a fused gate has two branches without biases, scales, learned scalars and clamps "
            f"after φ, got {formula(spec)}."
        )
    values = [value or phi(spec.branches[0].activation), phi(spec.branches[1].activation)]
    slopes = [slope or phi_slope(spec.branches[0].activation)]
    slopes.append(phi_slope(spec.branches[1].activation))

    def argument(i: int, x: Array) -> tuple[Array, Array]:
        """The clamped argument of φ, and where the clamp lets a gradient through."""
        bounds = spec.branches[i].pre
        if bounds is None or i not in clamped:
            return x, jnp.ones_like(x)
        inside = (x > bounds[0]) & (x < bounds[1])
        return jnp.clip(x, *bounds), jnp.where(jnp.isnan(x), x, inside.astype(x.dtype))

    def factor(i: int, x: Array) -> Array:
        found = values[i](argument(i, x)[0])
        return found + spec.branches[i].offset if spec.branches[i].offset else found

    def forward(gate: Array, up: Array) -> Array:
        first, second = factor(0, wide(gate)), factor(1, wide(up))
        if rounded_first:
            return first.astype(gate.dtype) * second.astype(gate.dtype)
        return (first * second).astype(gate.dtype)

    def pull_back(kept: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
        gate, up = map(wide, kept)
        along = []
        for i, x, other in ((0, gate, factor(1, up)), (1, up, factor(0, gate))):
            inner, passed = argument(i, x)
            along.append(wide(upstream) * other * slopes[i](inner) * passed)
        return along[0].astype(kept[0].dtype), along[1].astype(kept[1].dtype)

    return from_parts(forward, pull_back)

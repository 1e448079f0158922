"""Floating-point operations of a traced program, for one device, loops counted out.

A program traced under a mesh with Explicit axes states in the type of every array how it is split.
A matrix product's work on one device is then that of its local pieces, and a loop's is its body's
times the trip count. Nothing is compiled: an abstract mesh of any size will do.

Counted are matrix products and convolutions, 2 operations for each multiply-accumulate; pointwise
operations and reductions are not. What a program computes twice (rematerialization) counts twice.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import AxisType

#: Primitives whose arithmetic is hidden from this walk or that it has no formula for.
OPAQUE = ("ffi_call", "pallas_call", "ragged_dot_general", "pure_callback")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """The count of one program.

    Attributes:
        per_device: on one device.
        compiler_placed: part of `per_device` in regions whose layout is left to the compiler. It is
            counted as though every device did all of it: an upper bound.
        once: part of `per_device` in loops whose trip count is data; their body is counted once.
        opaque: primitives met that hide their arithmetic, and how often; not counted.
    """

    per_device: int = 0
    compiler_placed: int = 0
    once: int = 0
    opaque: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __add__(self, other: "Flops") -> "Flops":
        names = self.opaque.keys() | other.opaque.keys()
        return Flops(
            per_device=self.per_device + other.per_device,
            compiler_placed=self.compiler_placed + other.compiler_placed,
            once=self.once + other.once,
            opaque={n: self.opaque.get(n, 0) + other.opaque.get(n, 0) for n in sorted(names)},
        )

    def times(self, count: int) -> "Flops":
        """Of `count` executions."""
        return Flops(
            per_device=count * self.per_device,
            compiler_placed=count * self.compiler_placed,
            once=count * self.once,
            opaque={name: count * n for name, n in self.opaque.items()},
        )


def count_flops(program: ClosedJaxpr | Jaxpr) -> Flops:
    """Counts a traced program, for example ``jax.jit(f).trace(*args).jaxpr``.

    Args:
        program: arrays are whole, or split over Explicit mesh axes; inside a `shard_map` they are
            one device's pieces. Of the branches of a conditional the most expensive one counts.
    """
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    total = Flops()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _FORMULAS:
            total += _arithmetic(equation)
        elif name in OPAQUE:
            total += Flops(opaque={name: 1})
        else:
            parts = [count_flops(part) for part in _subprograms(equation)]
            total += _COMBINE.get(name, _all)(equation, parts)
    return total


def _subprograms(equation: Any) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, ClosedJaxpr | Jaxpr):
                yield part


# How the counts of an equation's subprograms make up its own.


def _all(equation: Any, parts: list[Flops]) -> Flops:
    return sum(parts, Flops())


def _scan(equation: Any, parts: list[Flops]) -> Flops:
    return _all(equation, parts).times(equation.params["length"])


def _while(equation: Any, parts: list[Flops]) -> Flops:
    total = _all(equation, parts)
    trips = trip_count(equation)
    if trips is not None:
        return total.times(trips)
    return dataclasses.replace(total, once=total.per_device)


def _conditional(equation: Any, parts: list[Flops]) -> Flops:
    return max(parts, key=lambda part: part.per_device)


_COMBINE: dict[str, Callable[[Any, list[Flops]], Flops]] = {
    "scan": _scan,
    "while": _while,
    "cond": _conditional,
}


def trip_count(equation: Any) -> int | None:
    """How often a ``while`` runs, where it counts an integer up to a bound by a constant step.

    Returns:
        None for every other condition: the count depends on data.
    """
    condition = equation.params["cond_jaxpr"].jaxpr
    body = equation.params["body_jaxpr"].jaxpr
    skipped, constants = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    # What the condition, the body's input and its output call by one position of the carry.
    start = equation.invars[skipped + constants :]
    carried, before, after = condition.invars[skipped:], body.invars[constants:], body.outvars

    def position(variable: Any) -> int | None:
        return next((i for i, v in enumerate(carried) if v is variable), None)

    counter, bound = condition.eqns[0].invars
    index = position(counter)
    limit = bound
    if not isinstance(bound, Literal):
        at = position(bound)
        if at is None or after[at] is not before[at]:
            return None
        limit = start[at]
    if index is None or not isinstance(limit, Literal) or not isinstance(start[index], Literal):
        return None
    for step in body.eqns:
        if step.outvars[0] is after[index] and step.primitive.name == "add":
            one, other = step.invars
            if one is before[index] and isinstance(other, Literal) and int(other.val) > 0:
                distance = int(limit.val) - int(start[index].val)
                return max(0, -(-distance // int(other.val)))
    return None


# Formulas: multiply-accumulates from the sizes of the operands' dimensions.


def _dot_macs(params: Mapping[str, Any], lhs: list[int], rhs: list[int]) -> int:
    contracted, batched = params["dimension_numbers"]
    left, right = list(lhs), dict(enumerate(rhs))
    for pairs in (contracted, batched):
        for i, j in zip(*pairs, strict=True):
            # Where one operand alone is split, the other is cut to its pieces.
            left[i] = min(left[i], right.pop(j))
    return math.prod(left) * math.prod(right.values())


def _convolution_macs(params: Mapping[str, Any], rhs: list[int], out: list[int]) -> int:
    """Every output element takes one product a kernel position and input channel of its group."""
    kernel = params["dimension_numbers"].rhs_spec
    return math.prod(out) * math.prod(rhs[axis] for axis in kernel[1:])


#: Primitive → (which arrays its formula wants, the formula).
_FORMULAS: dict[str, tuple[Callable[[Any], tuple[Any, Any]], Callable[..., int]]] = {
    "dot_general": (lambda e: (e.invars[0], e.invars[1]), _dot_macs),
    "conv_general_dilated": (lambda e: (e.invars[1], e.outvars[0]), _convolution_macs),
}


def _arithmetic(equation: Any) -> Flops:
    pick, macs = _FORMULAS[equation.primitive.name]
    arrays = [variable.aval for variable in pick(equation)]
    flops = 2 * macs(equation.params, *(_local_shape(array) for array in arrays))
    placed = any(_left_to_the_compiler(array) for array in arrays)
    return Flops(per_device=flops, compiler_placed=flops if placed else 0)


def _local_shape(array: Any) -> list[int]:
    """The shape of one device's piece."""
    sharding = array.sharding
    shape = list(array.shape)
    for dimension, split in enumerate(sharding.spec):
        axes = split if isinstance(split, tuple) else (split,)
        shape[dimension] //= math.prod(
            sharding.mesh.shape[axis] for axis in axes if axis in sharding.mesh.shape
        )
    return shape


def _left_to_the_compiler(array: Any) -> bool:
    mesh = array.sharding.mesh
    return any(
        kind == AxisType.Auto and mesh.shape[axis] > 1
        for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )

"""The collectives of a compiled program: what devices send each other, how much, and what for.

**Payload.** The elements of the whole array that a group of devices works on, as one of them sees
it: the operand of an all-reduce, a reduce-scatter, an all-to-all or a collective-permute, the
result of an all-gather. An all-gather and a reduce-scatter of T rows of width D are T·D elements
each, and so is an all-reduce of them. Bytes are elements × bytes of one × runs a call. What a ring
of n devices really sends is (n − 1)/n of that, twice for an all-reduce.

**Number format.** The one that the program asked for. The CPU compiler sums bfloat16 in float32 and
marks the sum (``…_promoted``); it moves bfloat16 as float32 between two conversions. Both are seen
in the program's text and undone.

**Origin.** From the name stack that JAX leaves at every operation. A collective of several arrays,
which the compiler makes of several collectives, counts as those.

Needs no devices: the text and the sizes of the mesh are enough.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from glu_lab.sharding.device_groups import device_groups, group_axes
from glu_lab.sharding.hlo import Computation, Instruction, Program, bits, split

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)

FORWARD, BACKWARD, UPDATE = PHASES = ("forward", "backward", "update")

#: For a program that is compiled to be read: no time for machine code, whose optimisation changes
#: nothing of what is communicated, and every rounding left in place, which shows number formats.
COMPILER_OPTIONS: Mapping[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_allow_excess_precision": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One array that devices exchange.

    Attributes:
        kind: of `KINDS`.
        axes: mesh axes over which the devices of a group differ.
        group_size: devices of a group; less than the product of the axes where the compiler split
            one.
        elements: the payload of one run.
        dtype: its number format, ``"float32"``.
        trips: how often a call of the program runs it: the product over the loops around it.
        phase: of `PHASES`.
        module: the modules and scopes in which it arises, ``"encoder/layers/ffn"``.
        operation: what it arises from, ``"...f,fd->...d"`` or ``"psum"``.
        shape: of the operand.
        name: of the instruction.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    elements: int
    dtype: str
    trips: int
    phase: str
    module: str
    operation: str
    shape: tuple[int, ...]
    name: str

    @property
    def total_elements(self) -> int:
        """Elements a call of the program."""
        return self.elements * self.trips

    @property
    def bytes(self) -> int:
        """Bytes a call of the program."""
        return byte_count(self.total_elements, self.dtype)

    @property
    def axis(self) -> str:
        """The axes as one text, ``"data,fsdp"``."""
        return ",".join(self.axes)


def collectives(
    compiled_text: str, mesh: Mesh | AbstractMesh | Mapping[str, int]
) -> list[Collective]:
    """Every collective of a compiled program that moves something.

    Args:
        compiled_text: ``jax.jit(f).lower(…).compile().as_text()``.
        mesh: the mesh that it was compiled for, or the sizes of its axes in order.

    Returns:
        `Collective`s in program order.

    Raises:
        SpecError: for text that is no program or of another number of devices, and for loops whose
            trips depend on data.
    """
    sizes = dict(mesh.shape) if isinstance(mesh, Mesh | AbstractMesh) else dict(mesh)
    program = Program(compiled_text)
    differentiates = re.search(r'op_name="[^"]*transpose\(', compiled_text) is not None
    found: list[Collective] = []
    chains: set[tuple[str, str | None]] = set()
    for computation, instruction, trips, caller in program.executions(_WANTED):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        chain = _CHAIN.search(instruction.text)
        if chain is not None:
            # TPUs run a collective beside other work: it then stands in the fusion that starts it,
            # in those that it accompanies and in the one that ends it.
            part = chain[1], instruction.attribute("channel_id")
            if part in chains:
                continue
            chains.add(part)
        axes, group = _axes(instruction, sizes)
        if not axes:
            continue  # Groups of one device, from mesh axes of size 1.
        if caller is not None and "all-reduce-scatter" in (caller.attribute("calls") or ""):
            kind = "reduce-scatter"  # TPUs fuse an all-reduce and the slice that follows it.
        operands = instruction.operands
        if kind == "ragged-all-to-all":
            operands = operands[:1]  # The others are the result's buffer, offsets and sizes.
        names = _op_names(computation, instruction, len(operands), caller)
        for index, (operand, op_name) in enumerate(zip(operands, names, strict=True)):
            shape = computation.shape(operand)
            assert shape is not None, (instruction.name, operand)
            elements = shape.elements * (group if kind == "all-gather" else 1)
            phase, module, operation = origin(op_name, differentiates)
            found.append(
                Collective(
                    kind=kind,
                    axes=axes,
                    group_size=group,
                    elements=elements,
                    dtype=_jax_name(_source_dtype(program, computation, instruction, index)),
                    trips=trips,
                    phase=phase,
                    module=module,
                    operation=operation,
                    shape=shape.dims,
                    name=instruction.name,
                )
            )
    return found


def bytes_by_axis(found: Iterable[Collective]) -> dict[str, int]:
    """Bytes a call over each mesh axis, ``{"model": …, "data,fsdp": …}``."""
    totals: dict[str, int] = {}
    for collective in found:
        totals[collective.axis] = totals.get(collective.axis, 0) + collective.bytes
    return totals


def byte_count(elements: int, dtype: str) -> int:
    """Bytes of that many elements of a number format named as JAX does."""
    width = 8 if dtype == "bool" else int(re.findall(r"\d+", dtype)[0])
    return -(-elements * width // 8)


_WANTED = re.compile(rf" ({'|'.join(KINDS)})(-start)?\(")
_CHAIN = re.compile(r'chain_id="(\d+)"')


def _axes(instruction: Instruction, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The mesh axes over which the devices of a group differ, and how many are in one."""
    pairs = instruction.attribute("source_target_pairs")
    if pairs is None:
        groups = device_groups(instruction.replica_groups, math.prod(sizes.values()))
    else:
        # Every pair is a group of its own; a device may also keep what it has.
        found = [(int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs)]
        groups = [pair for pair in found if pair[0] != pair[1]]
    return tuple(group_axes(groups, sizes)), len(groups[0]) if len(groups) else 1


# Number formats.

#: What a sum that the compiler widened was asked for in, by what it is computed in. The CPU
#: compiler widens bfloat16, the GPU compiler 16-bit integers.
_WIDENED_FROM = {"f32": "bf16", "s32": "s16", "u32": "u16"}

_FAMILIES = {"s": "int", "u": "uint", "f": "float", "bf": "bfloat", "c": "complex"}


def _jax_name(dtype: str) -> str:
    """``f32`` → ``float32``, ``f8e4m3fn`` → ``float8_e4m3fn``."""
    if dtype == "pred":
        return "bool"
    found = re.fullmatch(r"([a-z]+)(\d+)(\w*)", dtype)
    if found is None or found[1] not in _FAMILIES:
        return dtype
    return _FAMILIES[found[1]] + found[2] + (f"_{found[3]}" if found[3] else "")


def _source_dtype(
    program: Program, computation: Computation, instruction: Instruction, index: int
) -> str:
    """The format that the program asked for, of one operand.

    A sum of one array is widened where it is marked. Of several that were merged, some marked and
    some not, one mark is left or none: there the conversions before and after tell, as they do for
    what only moves values.
    """
    operand = instruction.operands[index]
    shape = computation.shape(operand)
    assert shape is not None
    sums = instruction.attribute("to_apply")
    marked = sums is not None and "_promoted" in sums
    if sums is not None and len(instruction.operands) == 1:
        return _WIDENED_FROM.get(shape.dtype, shape.dtype) if marked else shape.dtype
    after = _converted_to(program, computation, instruction, index)
    if after is None or bits(after) >= bits(shape.dtype):
        return shape.dtype
    narrow = marked or after == _converted_from(program, computation, operand)
    return after if narrow else shape.dtype


#: What passes values on as they are.
_VIEWS = ("bitcast", "copy", "reshape", "transpose", "slice", "dynamic-slice", "get-tuple-element")


def _converted_from(program: Program, computation: Computation, name: str) -> str | None:
    """The narrower format from which a value was just converted; None where it was not."""
    while True:
        instruction = computation.instructions[name]
        inner = program.fused(instruction)
        if inner is not None:
            computation, name = inner, inner.root.name
        elif instruction.opcode in _VIEWS:
            name = instruction.operands[0]
        elif instruction.opcode == "convert":
            before = computation.shape(instruction.operands[0])
            wide = bits(instruction.shapes[0].dtype)
            return before.dtype if before is not None and bits(before.dtype) < wide else None
        else:
            return None


def _converted_to(
    program: Program, computation: Computation, instruction: Instruction, index: int
) -> str | None:
    """The one format to which a collective's result is converted; None where it is used as is."""
    results: list[tuple[Computation, Instruction]] = [(computation, instruction)]
    if len(instruction.shapes) > 1:
        # A part of a tuple, which an asynchronous all-gather or permutation orders in its own way.
        results = [
            (computation, user)
            for user in computation.users.get(instruction.name, [])
            if user.opcode == "get-tuple-element" and user.attribute("index") == str(index)
        ]
    formats: set[str | None] = set()
    while results:
        where, value = results.pop()
        for user in where.users.get(value.name, []):
            inner = program.fused(user)
            if inner is not None:
                places = [i for i, name in enumerate(user.operands) if name == value.name]
                results += [
                    (inner, parameter)
                    for parameter in inner.instructions.values()
                    if parameter.opcode == "parameter" and int(parameter.argument) in places
                ]
            elif user.opcode in _VIEWS or user.opcode.endswith("-done"):
                results.append((where, user))
            else:
                formats.add(user.shapes[0].dtype if user.opcode == "convert" else None)
    return formats.pop() if len(formats) == 1 else None


# Names.


def _op_names(
    computation: Computation, instruction: Instruction, count: int, caller: Instruction | None
) -> list[str]:
    """The name stack of each array of a collective.

    Of merged collectives, each part of the result has kept its own. One that a compiler rewrote may
    have lost its name, which what it works on still has, or the fusion that it became a part of.
    """
    around = caller.op_name if caller is not None else ""
    names = [
        instruction.op_name or computation.instructions[operand].op_name or around
        for operand in instruction.operands[:count]
    ]
    if count > 1:
        for user in computation.users.get(instruction.name, []):
            if user.opcode == "get-tuple-element" and user.op_name:
                names[int(user.attribute("index") or 0)] = user.op_name
    return names


_WRAPPERS = re.compile(
    r"(?:jvp|transpose|vmap|linearize|custom_jvp|custom_vjp|remat|checkpoint)\((.*)\)"
)

#: Parts of a name stack that say how something runs and not where it arises.
_MACHINERY = re.compile(
    r"|p?jit\(.*\)|while|body|cond|eval_jaxpr|branch_\d+_fun|closed_call|core_call|checkpoint|remat\d?"
    r"|rematted_computation|shard_map|custom_[jv][vj]p_call"
)


def origin(op_name: str, differentiates: bool) -> tuple[str, str, str]:
    """Where an operation arises.

    Args:
        op_name: its name stack.
        differentiates: whether the program has a backward pass. Only then is what belongs to no
            pass the update.

    Returns:
        Phase, module path, operation. Recomputation (remat) is part of backward, in which it runs.
    """
    if "transpose(" in op_name:
        phase = BACKWARD
    elif "jvp(" in op_name or not differentiates:
        phase = FORWARD
    else:
        phase = UPDATE
    path = [part for part in _parts(op_name) if not _MACHINERY.fullmatch(part)]
    operation = path.pop() if path else ""
    if path and "->" in path[-1]:
        operation = path.pop()  # The einsum says more than the product that it becomes.
    return phase, "/".join(path), operation


def _parts(op_name: str) -> Iterator[str]:
    """The parts of a name stack, ``a``, ``b``, ``c`` of ``transpose(jvp(a/b))/c``."""
    for part in split(op_name, "/"):
        wrapped = _WRAPPERS.fullmatch(part)
        if wrapped:
            yield from _parts(wrapped[1])
        else:
            yield part

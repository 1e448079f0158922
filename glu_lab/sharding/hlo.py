"""Reading a compiled program's text: which instructions run, and how often.

The text is XLA's own (HLO), as ``compiled.as_text()`` gives it on every backend; it is the program
of one device, run by all. Only what counting needs is understood: shapes, operands, attributes,
which computation calls which, and the trips of loops.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from glu_lab.errors import SpecError

_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?(\S+) = (.*)$")
_SHAPE = re.compile(r"\b(pred|token|opaque|[a-z]+\d+\w*)\[([^\]]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIPS = re.compile(r'known_trip_count\\?"?:\{\\?"n\\?":\\?"(\d+)')
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: XLA's name of its number format, and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of scalars."""
        return math.prod(self.dims)


def bits(dtype: str) -> int:
    """Bits of a scalar, from XLA's name of the format: ``bf16``, ``f8e4m3fn``, ``pred``."""
    if dtype == "pred":
        return 8
    found = re.match(r"[a-z]+(\d+)", dtype)
    return int(found[1]) if found else 0


@dataclasses.dataclass
class Instruction:
    """One line: ``%name = type opcode(operands), attributes``, taken apart when asked for."""

    name: str
    is_root: bool
    text: str

    @functools.cached_property
    def _parts(self) -> tuple[str, str, str, str]:
        end = _end(self.text, " ")
        opening = self.text.index("(", end)
        closing = _end(self.text, ")", opening + 1)
        return (
            self.text[:end],
            self.text[end:opening].strip(),
            self.text[opening + 1 : closing],
            self.text[closing + 1 :],
        )

    @property
    def shapes(self) -> list[Shape]:
        """The result's arrays; several for a tuple."""
        return _shapes(self._parts[0])

    @property
    def opcode(self) -> str:
        """XLA's name of the operation."""
        return self._parts[1]

    @property
    def argument(self) -> str:
        """What stands between the parentheses: operands, or the value of a constant."""
        return self._parts[2]

    @functools.cached_property
    def operands(self) -> list[str]:
        """Names of the operands; some backends print their types before them."""
        listed = split(_COMMENT.sub("", self.argument))
        return [part.split()[-1].lstrip("%") for part in listed if part.strip()]

    def attribute(self, key: str) -> str | None:
        """The text of ``key=value``; None where there is none."""
        found = re.search(rf"[, ]{key}=", self._parts[3])
        if found is None:
            return None
        rest = self._parts[3][found.end() :]
        return rest[: _end(rest, ",")].strip()

    @property
    def replica_groups(self) -> str:
        """The text that `glu_lab.sharding.device_groups` reads; ``{}`` where there is none."""
        groups = self.attribute("replica_groups") or "{}"
        if groups.lstrip("@").startswith("mesh"):
            # Its device numbers and axes follow a comma of their own.
            rest = self._parts[3].partition("replica_groups=")[2]
            groups = rest[: rest.index("{")] + "{" + rest.partition("{")[2].partition("}")[0] + "}"
        return groups

    @property
    def op_name(self) -> str:
        """JAX's name stack of the operation, ``"jit(f)/jvp(Model)/layers/dot_general"``."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""


class Computation:
    """A list of instructions: the entry, a loop's body or condition, what a fusion computes."""

    def __init__(self, name: str):
        self.name = name
        self.instructions: dict[str, Instruction] = {}

    @functools.cached_property
    def root(self) -> Instruction:
        """The result."""
        every = list(self.instructions.values())
        return next((instruction for instruction in every if instruction.is_root), every[-1])

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Name → the instructions that take it."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return found

    def shape(self, operand: str) -> Shape | None:
        """The shape of an instruction with one result."""
        shapes = self.instructions[operand].shapes if operand in self.instructions else []
        return shapes[0] if len(shapes) == 1 else None


class Program:
    """The computations of a module.

    Args:
        text: ``compiled.as_text()``.

    Raises:
        SpecError: for text that is no compiled program.
    """

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        entry = None
        current: Computation | None = None
        for line in text.splitlines():
            if current is not None and line.startswith("}"):
                current = None
            elif current is not None:
                found = _INSTRUCTION.match(line)
                if found:
                    instruction = Instruction(found[2], bool(found[1]), found[3])
                    current.instructions[instruction.name] = instruction
            else:
                found = _COMPUTATION.match(line)
                if found:
                    current = self.computations[found[2]] = Computation(found[2])
                    entry = current if found[1] else entry
        if entry is None:
            raise SpecError("the text holds no compiled program; give compiled.as_text().")
        self.entry = entry
        self._reach: dict[tuple[re.Pattern[str], str], bool] = {}

    def executions(
        self, wanted: re.Pattern[str]
    ) -> Iterator[tuple[Computation, Instruction, int, Instruction | None]]:
        """The instructions whose text matches, with how often one call of the program runs each.

        Branches of a conditional count as if each ran: an upper bound.

        Yields:
            Computation, instruction, number of runs, and the instruction that called the
            computation (None for the entry).

        Raises:
            SpecError: for a loop around such an instruction whose trips the program does not say.
        """
        yield from self._visit(self.entry, wanted, 1, None)

    def _visit(
        self, computation: Computation, wanted: re.Pattern[str], runs: int, caller: Any
    ) -> Iterator[tuple[Computation, Instruction, int, Instruction | None]]:
        for instruction in computation.instructions.values():
            if wanted.search(instruction.text):
                yield computation, instruction, runs, caller
            inner = [c for c in self._called(instruction) if self._contains(c, wanted)]
            if inner:
                times = runs
                if instruction.opcode == "while":
                    times *= self.trips(computation, instruction)
                for called in inner:
                    yield from self._visit(called, wanted, times, instruction)

    def _contains(self, computation: Computation, wanted: re.Pattern[str]) -> bool:
        key = (wanted, computation.name)
        if key not in self._reach:
            self._reach[key] = any(
                wanted.search(instruction.text)
                or any(self._contains(called, wanted) for called in self._called(instruction))
                for instruction in computation.instructions.values()
            )
        return self._reach[key]

    def _called(self, instruction: Instruction) -> list[Computation]:
        """The computations that an instruction runs, but for the sum of two scalars in a reduce."""
        if not _CALLS.search(instruction.text):
            return []
        keys = ["calls", "body", "condition", "true_computation", "false_computation"]
        keys += ["branch_computations", "called_computations"]
        if instruction.opcode == "call":
            keys.append("to_apply")
        names = []
        for key in keys:
            value = instruction.attribute(key)
            names += split(value.strip("{}")) if value else []
        return [
            self.computations[name.strip().lstrip("%")]
            for name in names
            if name.strip().lstrip("%") in self.computations
        ]

    def fused(self, instruction: Instruction) -> Computation | None:
        """What a fusion computes; None for another instruction."""
        if instruction.opcode != "fusion":
            return None
        return self._called(instruction)[0]

    def trips(self, computation: Computation, loop: Instruction) -> int:
        """How often a loop's body runs.

        The compiler writes it beside most loops; otherwise it follows from the counter's start,
        step and limit.

        Raises:
            SpecError: when it depends on data.
        """
        found = _TRIPS.search(loop.text)
        trips = int(found[1]) if found else _counted_trips(self, computation, loop)
        if trips is None:
            raise SpecError(
                f"the loop {loop.name!r} ({loop.op_name}) runs until its data say so, and devices "
                "communicate in it: what that costs cannot be counted. Give the loop a length, as "
                "jax.lax.scan and fori_loop do."
            )
        return trips


_CALLS = re.compile(
    r"(calls|body|to_apply|branch_computations|true_computation|called_computations)="
)


def _end(text: str, stop: str, start: int = 0) -> int:
    """Where `stop` first stands outside of brackets and quotes; the text's length for nowhere."""
    inside: list[str] = []
    position = start
    while position < len(text):
        character = text[position]
        if character == '"':
            position += 1
            while position < len(text) and text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif not inside and character == stop:
            return position
        elif character in _CLOSING:
            inside.append(_CLOSING[character])
        elif inside and character == inside[-1]:
            inside.pop()
        position += 1
    return len(text)


def split(text: str, separator: str = ",") -> list[str]:
    """The parts between separators that are outside of brackets; none of an empty text."""
    parts, start = [], 0
    while start < len(text):
        end = _end(text, separator, start)
        parts.append(text[start:end])
        start = end + 1
    return parts


def _shapes(text: str) -> list[Shape]:
    return [
        Shape(dtype, tuple(int(n.strip(" <=")) for n in dims.split(",") if n.strip()))
        for dtype, dims in _SHAPE.findall(_COMMENT.sub("", text))
    ]


# Trips of a loop, from its counter.

#: An expression: ("constant", n), ("item", i) of the loop's state, ("add", a, b), or others.
_Expression = tuple[Any, ...]
_UNKNOWN: _Expression = ("unknown",)


def _value(
    program: Program,
    computation: Computation,
    name: str,
    arguments: Sequence[Callable[[], _Expression]],
) -> _Expression:
    """What an instruction computes, as far as counters need it."""
    instruction = computation.instructions[name]

    def operand(index: int) -> _Expression:
        return _value(program, computation, instruction.operands[index], arguments)

    match instruction.opcode:
        case "constant":
            text = instruction.argument
            return ("constant", int(text)) if re.fullmatch(r"-?\d+", text) else _UNKNOWN
        case "parameter":
            index = int(instruction.argument)
            return arguments[index]() if arguments else ("state",)
        case "get-tuple-element":
            value, index = operand(0), int(instruction.attribute("index") or 0)
            if value == ("state",):
                return ("item", index)
            return value[1][index]() if value[0] == "tuple" else _UNKNOWN
        case "tuple":
            return (
                "tuple",
                [functools.partial(operand, i) for i in range(len(instruction.operands))],
            )
        case "copy" | "bitcast" | "convert" | "reshape":
            return operand(0)
        case "add":
            a, b = operand(0), operand(1)
            if a[0] == b[0] == "constant":
                return ("constant", a[1] + b[1])
            return ("add", a, b)
        case "compare":
            return ("compare", operand(0), operand(1), instruction.attribute("direction"))
        case "fusion" | "call":
            inner = program._called(instruction)
            if not inner:
                return _UNKNOWN
            given = [functools.partial(operand, i) for i in range(len(instruction.operands))]
            return _value(program, inner[0], inner[0].root.name, given)
    return _UNKNOWN


def _counted_trips(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """Trips of a loop that counts from a constant in constant steps to a constant."""
    body, condition = (
        program.computations[(loop.attribute(key) or "").lstrip("%")]
        for key in ("body", "condition")
    )
    test = _value(program, condition, condition.root.name, ())
    if test[0] != "compare" or test[1][0] != "item" or test[2][0] != "constant":
        return None
    _, (_, index), (_, limit), direction = test
    after = _value(program, body, body.root.name, ())
    before = _value(program, computation, loop.operands[0], ())
    if after[0] != "tuple" or before[0] != "tuple":
        return None
    start, step = before[1][index](), after[1][index]()
    if start[0] != "constant" or step[0] != "add" or ("item", index) not in step[1:]:
        return None
    increments = [part[1] for part in step[1:] if part[0] == "constant"]
    if len(increments) != 1 or increments[0] == 0:
        return None
    stop = {"LT": limit, "LE": limit + 1, "GT": limit, "GE": limit - 1, "NE": limit}[direction]
    return len(range(start[1], stop, increments[0]))

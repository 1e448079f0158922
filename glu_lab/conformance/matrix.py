"""Which cells there are, and the walk through them.

Spec × Execution    in full: float64, many rows, normal values, every gradient
Spec × Layout       in full
all axes            pairwise: every two values of two axes meet in some cell
"""

import dataclasses
import fnmatch
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from glu_lab.conformance import storage
from glu_lab.conformance.cases import DTYPES, MODES, PROBES, SHAPES, SPECS, Build, specs_of
from glu_lab.conformance.cells import Point, Result, Runner
from glu_lab.conformance.executions import BUILT_IN, EXECUTIONS, Execution, check_free
from glu_lab.conformance.pairs import Partial, covering
from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layouts import LAYOUTS, Layout

TIERS: Mapping[str, str] = {
    "quick": "every Spec compiled and in every layout; the other executions, and pairs of values, "
    "on a few Specs",
    "full": "everything",
}

#: The point of the full product Spec × Execution.
_BASE = {"dtype": "float64", "shape": "many_rows", "probe": "normal", "mode": "training"}

#: The Specs of the quick tier's expensive cells: gated with biases, dense, and every term of the
#: formula with learned scalars.
_FEW = ("swiglu+bias", "gelu_erf", "xielu+all")

#: Built-in executions that the quick tier runs on every Spec, and those of its pairs of values.
_EVERY_SPEC = ("jit",)
_PAIRED = ("eager", "jit")


class Stored(NamedTuple):
    """Where a cell of Spec × Layout stands."""

    spec: str
    layout: str
    dtype: str


Place = Point | Stored


@dataclasses.dataclass(frozen=True)
class Axes:
    """The values of every axis.

    Attributes:
        specs, executions, layouts: what each name stands for.
        dtypes, shapes, probes, modes: names.
        without: kinds of cells that a choice has left out, of ``execution`` and ``layout``.
    """

    specs: Mapping[str, Build] = dataclasses.field(default_factory=lambda: dict(SPECS))
    executions: Mapping[str, Execution] = dataclasses.field(
        default_factory=lambda: dict(EXECUTIONS)
    )
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=lambda: dict(LAYOUTS))
    dtypes: tuple[str, ...] = tuple(DTYPES)
    shapes: tuple[str, ...] = tuple(SHAPES)
    probes: tuple[str, ...] = tuple(PROBES)
    modes: tuple[str, ...] = tuple(MODES)
    without: frozenset[str] = frozenset()

    def named(self) -> dict[str, tuple[str, ...]]:
        """Axis → its values, in the order in which patterns are looked up."""
        return {
            "spec": tuple(self.specs),
            "execution": tuple(self.executions),
            "dtype": self.dtypes,
            "shape": self.shapes,
            "probe": self.probes,
            "mode": self.modes,
            "layout": tuple(self.layouts),
        }


#: Axes that the cells of the other kind do not have.
_ONLY_IN = {
    **dict.fromkeys(("execution", "shape", "probe", "mode"), "execution"),
    "layout": "layout",
}


def make_axes(
    variants: Iterable[str] = (),
    executions: Iterable[Execution] = (),
    layouts: Mapping[str, Layout] | None = None,
) -> Axes:
    """The built-in axes, what was registered, and what is given here.

    Args:
        variants: further functions, as names or products.
        executions: further executions.
        layouts: further layouts by name.

    Raises:
        SpecError: for a text that is no variant, or an execution whose name is taken.
    """
    ways = dict(EXECUTIONS)
    for execution in executions:
        check_free(execution, ways)
        ways[execution.name] = execution
    return Axes(
        specs={**SPECS, **specs_of(variants)},
        executions=ways,
        layouts={**LAYOUTS, **(layouts or {})},
    )


def narrow(axes: Axes, patterns: Sequence[str]) -> Axes:
    """The axes with the chosen values alone.

    Args:
        axes: all of them.
        patterns: ``axis=pattern``, or a pattern for the first axis that has a value like it; ``*``
            matches anything, and a whole name itself alone. Several on one axis add up; those on
            different axes restrict each other, so that a choice of layouts leaves no cells of
            executions, and the other way round.

    Raises:
        UnknownNameError: for an axis that does not exist or a pattern that nothing matches, with
            the nearest name.
    """
    table = axes.named()
    chosen: dict[str, dict[str, None]] = {}
    for text in patterns:
        axis, equals, pattern = text.partition("=")
        if equals and axis not in table:
            raise UnknownNameError("axis", axis, table)
        names = table[axis] if equals else [name for values in table.values() for name in values]
        pattern = pattern if equals else text
        found = _matching(names, pattern)
        if not found:
            raise UnknownNameError("name in --only", pattern, dict.fromkeys(names))
        if not equals:
            axis = next(axis for axis, values in table.items() if set(found) & set(values))
            found = [name for name in table[axis] if name in found]
        chosen.setdefault(axis, {}).update(dict.fromkeys(found))
    kept = {axis: [n for n in table[axis] if n in chosen[axis]] for axis in chosen}
    changes: dict[str, Any] = {}
    for axis, names in kept.items():
        value = getattr(axes, f"{axis}s")
        changes[f"{axis}s"] = (
            {name: value[name] for name in names} if isinstance(value, Mapping) else tuple(names)
        )
    other = {"execution": "layout", "layout": "execution"}
    without = {other[_ONLY_IN[axis]] for axis in chosen if axis in _ONLY_IN}
    return dataclasses.replace(axes, **changes, without=axes.without | without)


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    # Names of products have a * of their own.
    return [pattern] if pattern in names else fnmatch.filter(names, pattern)


class Plan(NamedTuple):
    """The cells of a tier.

    Attributes:
        places: what is run, in order.
        left: how many more the full tier has.
    """

    places: tuple[Place, ...]
    left: int


def plan(axes: Axes, tier: str) -> Plan:
    """The cells.

    Raises:
        UnknownNameError: for a tier that does not exist.
        SpecError: for a choice that leaves no cell.
    """
    if tier not in TIERS:
        raise UnknownNameError("tier", tier, TIERS)
    if axes.without == {"execution", "layout"}:
        raise SpecError(
            "--only names layouts and also executions, shapes, probes or modes: no cell has both."
        )
    stored = [] if "layout" in axes.without else _stored(axes)
    quick, full = ([], []) if "execution" in axes.without else _points(axes)
    points = quick if tier == "quick" else full
    points = sorted(points, key=_program_of)
    return Plan((*points, *stored), len(full) - len(points))


def _stored(axes: Axes) -> list[Stored]:
    return [
        # In turns, so that every layout and every Spec meets every dtype.
        Stored(spec, layout, axes.dtypes[(i + j) % len(axes.dtypes)])
        for j, layout in enumerate(axes.layouts)
        for i, spec in enumerate(axes.specs)
    ]


def _points(axes: Axes) -> tuple[list[Point], list[Point]]:
    """The points of the quick tier, and those of the full one with them."""

    def product(specs: Iterable[str], executions: Iterable[str]) -> list[Point]:
        return [Point(spec, way, **_base(axes, way)) for way in executions for spec in specs]

    own = [name for name in axes.specs if name not in SPECS]
    few = [name for name in _FEW if name in axes.specs] + own or list(axes.specs)[: len(_FEW)]
    own_ways = [name for name, e in axes.executions.items() if e not in BUILT_IN]
    ways = list(axes.executions)
    quick = product(axes.specs, [n for n in ways if n in _EVERY_SPEC or n in own_ways])
    quick += product(few, ways)
    paired = [n for n in ways if n in _PAIRED or n in own_ways]
    quick += _pairwise(axes, few, paired or ways)
    full = quick + product(axes.specs, axes.executions)
    full += _pairwise(axes, list(axes.specs), list(axes.executions))
    return list(dict.fromkeys(quick)), list(dict.fromkeys(full))


def _base(axes: Axes, way: str) -> dict[str, str]:
    """The point of the full product, or the nearest that is chosen and that the execution runs."""
    execution, named = axes.executions[way], axes.named()
    runs = {"mode": execution.modes, "dtype": execution.dtypes or axes.dtypes}
    base = {}
    for axis, value in _BASE.items():
        values = [v for v in named[axis] if v in runs.get(axis, named[axis])] or named[axis]
        base[axis] = value if value in values else values[-1]
    return base


def _pairwise(axes: Axes, specs: Sequence[str], executions: Sequence[str]) -> list[Point]:
    named = {**axes.named(), "spec": tuple(specs), "execution": tuple(executions)}
    del named["layout"]

    def allowed(row: Partial) -> bool:
        return cannot(axes, row) is None

    found = covering(named, allowed)
    points = [Point(**row) for row in found.rows]
    # What can never meet is a cell all the same, which says why.
    for pair in found.impossible:
        row = {"spec": next(iter(axes.specs)), "execution": executions[0], **dict(pair)}
        points.append(Point(**{**_base(axes, row["execution"]), **row}))
    return points


def cannot(axes: Axes, row: Partial) -> str | None:
    """Why an execution does not run a point by design; None where it does, or may."""
    if "execution" not in row:
        return None
    execution = axes.executions[row["execution"]]
    mode = row.get("mode", execution.modes[0])
    dtype = row.get("dtype", (*execution.dtypes, *axes.dtypes)[0])
    shape = SHAPES[row.get("shape", "many_rows")]
    build = axes.specs[row["spec"]] if "spec" in row else next(iter(axes.specs.values()))
    size = (shape.batch, shape.positions, shape.d_model)
    try:
        return execution.cannot(build(shape.d_model, shape.d_ff), size, dtype, mode)
    except Exception:
        # The user's code: the cell itself will say so.
        return None


def run(
    axes: Axes,
    planned: Plan,
    *,
    on_cell: Callable[[Place, Result], None] | None = None,
    devices: list[Any] | None = None,
    workers: int = 0,
) -> list[tuple[Place, Result]]:
    """Runs every cell.

    Args:
        axes: what the names stand for.
        planned: the cells.
        on_cell: called after each.
        devices: for meshes; by default all of this process.
        workers: how many threads compile; by default one a core.

    Returns:
        Every cell with its result, in the order of the plan.
    """
    runner = Runner(axes.specs, axes.executions, devices)

    def work(group: list[Place]) -> list[tuple[Place, Result]]:
        if isinstance(group[0], Point):
            results = runner.run([place for place in group if isinstance(place, Point)])
        else:
            results = [_stored_cell(axes, place) for place in group if isinstance(place, Stored)]
        done = list(zip(group, results, strict=True))
        for place, result in done:
            if on_cell is not None:
                on_cell(place, result)
        return done

    groups = [list(group) for _, group in itertools.groupby(planned.places, _program_of)]
    pool = ThreadPoolExecutor(workers or _cores())
    try:
        return [cell for done in pool.map(work, groups) for cell in done]
    finally:
        # After an interrupt: what has not begun does not.
        pool.shutdown(cancel_futures=True)


def _program_of(place: Place) -> tuple[str, ...]:
    """Cells of which this is equal, one after the other, share what is compiled."""
    if isinstance(place, Point):
        return (place.spec, place.execution, place.dtype, place.shape, place.mode)
    return (place.layout,)


def _stored_cell(axes: Axes, place: Stored) -> Result:
    return storage.run(axes.layouts[place.layout], axes.specs[place.spec], place.dtype)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

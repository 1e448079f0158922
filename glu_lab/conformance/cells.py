"""One cell of the matrix: an execution at one point, held against the oracle.

Dimension letters: B batch, S sequence, D d_model.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from glu_lab.conformance.cases import DROPOUT, DTYPES, SHAPES, Build, Case, draw, spec_at
from glu_lab.conformance.executions import Execution
from glu_lab.conformance.measures import Compared, compare
from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import rounding
from glu_lab.oracle.tolerances import FLOOR, LARGEST, precision, tolerance
from glu_lab.sharding.mesh import parameter_specs, shardings
from glu_lab.spec.ffn import FFN
from glu_lab.spec.sharding import MESH_AXES
from glu_lab.spec.variants import variant

#: What a cell can be, and what that says. `PROBLEMS` are faults of the execution.
PROBLEMS: Mapping[str, str] = {
    "failed": "differs from the oracle by more than rounding explains",
    "nonfinite": "NaN or an infinity where the oracle has something else, or the other way round",
    "shape": "a result of another shape",
    "dtype": "a result of another dtype",
    "mutated": "its input is another after the call",
    "nondeterministic": "two runs on one input differ",
    "raised": "an error",
}
NOT_RUN: Mapping[str, str] = {
    "cannot": "by design, for the reason given",
    "range": "the dtype cannot hold an intermediate of the right answer",
    "not_stored": "the layout does not store the Spec, for the reason given",
    "devices": "more devices are needed than there are",
}

_KEY = 3


class Point(NamedTuple):
    """Where a cell stands on the axes, by names."""

    spec: str
    execution: str
    dtype: str
    shape: str
    probe: str
    mode: str


class Result(NamedTuple):
    """What a cell is.

    Attributes:
        status: ``passed``, a key of `PROBLEMS` or of `NOT_RUN`.
        compared: the errors, where results were compared.
        detail: what was seen, or why it was not run.
    """

    status: str
    compared: Compared | None = None
    detail: str = ""


class _Wrong(Exception):
    """A result that cannot be compared."""

    def __init__(self, status: str, detail: str):
        super().__init__(detail)
        self.status, self.detail = status, detail


class _Expected(NamedTuple):
    """What the oracle says of one case, by names such as ``output``, ``d x``, ``d wi``."""

    want: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]
    largest: float


class Runner:
    """Runs cells, and keeps what they share: compiled functions, and the oracle's answers.

    Several threads may run cells at once: compiling is most of the time and goes on beside
    everything else, while no two executions are ever traced or run together.

    Args:
        specs: builders by name.
        executions: by name.
        devices: the devices that meshes are made of; by default all of this process.
    """

    def __init__(
        self,
        specs: Mapping[str, Build],
        executions: Mapping[str, Execution],
        devices: list[Any] | None = None,
    ):
        self.specs, self.executions = specs, executions
        self.devices = jax.devices() if devices is None else devices
        self._expected = functools.lru_cache(maxsize=64)(_expect)
        self._one_at_a_time = threading.Lock()

    def run(self, points: Sequence[Point]) -> list[Result]:
        """Cells that differ in their probe alone, and so share a program.

        Whatever the execution does, it comes back as a status.
        """
        point = points[0]
        execution, shape = self.executions[point.execution], SHAPES[point.shape]
        spec = spec_at(self.specs[point.spec], shape, point.mode)
        size = (shape.batch, shape.positions, shape.d_model)
        try:
            reason = execution.cannot(spec, size, point.dtype, point.mode)
        except Exception as error:
            return [raised(error)] * len(points)
        if reason is not None:
            return [Result("cannot", detail=reason)] * len(points)
        have = len(self.devices)
        if execution.devices > have:
            detail = f"needs {execution.devices} devices, and there {_are(have)}"
            return [Result("devices", detail=detail)] * len(points)
        program = _Program(execution, spec, point, self._one_at_a_time)
        # float64 needs the 64-bit mode, and the others are to be seen without it.
        with jax.enable_x64(point.dtype == "float64"), _entered(execution, self.devices) as mesh:
            return [self._cell(program, point, mesh) for point in points]

    def _cell(self, program: "_Program", point: Point, mesh: Mesh | None) -> Result:
        spec, shape = program.spec, SHAPES[point.shape]
        case = draw(spec, shape, point.dtype, point.probe)
        # The oracle's answer is that of all executions.
        expected = self._expected(spec, point._replace(spec="", execution=""))
        if 1.1 * expected.largest > LARGEST[point.dtype]:
            detail = f"an intermediate of {expected.largest:.3g} leaves {point.dtype}"
            return Result("range", detail=detail)
        try:
            got = program.twice(_placed(program.execution, case, mesh, shape.strided))
        except _Wrong as wrong:
            return Result(wrong.status, detail=wrong.detail)
        except Exception as error:
            return raised(error)
        compared = _compared(got, expected, case, shape.rows, point.dtype)
        return Result(compared.status, compared)


def raised(error: Exception) -> Result:
    """The status of a cell that ended in an error, with the first line of it."""
    line = (str(error).strip().splitlines() or [""])[0]
    return Result("raised", detail=f"{type(error).__name__}: {line}"[:300])


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _expect(spec: FFN, point: Point) -> _Expected:
    """What the oracle says at a point of any execution."""
    case = draw(spec, SHAPES[point.shape], point.dtype, point.probe)
    keep = None
    if point.mode == "dropout":
        keep = _mask(case.x.shape, spec.d_ff, point.dtype == "float64")
    given = (case.params, case.x, spec)
    n = max(spec.d_model, spec.d_ff)
    dtype, accumulate = case.numerics.compute_dtype, case.numerics.accumulation_dtype
    with np.errstate(all="ignore"):
        want = {"output": oracle.forward(*given, keep=keep)}
        spread = {"output": oracle.spread(*given, keep=keep, floor=FLOOR[dtype])}
        near = precision(dtype, accumulate, n)
        scales = rounding.spread_backward(*given, case.upstream, keep=keep, near=near)
        if point.mode != "inference":
            want["d x"], by_params = oracle.backward(*given, case.upstream, keep=keep)
            spread["d x"] = scales.by_x
            for name, gradient in by_params.items():
                want[f"d {name}"] = gradient
                spread[f"d {name}"] = scales.by_params[name]
    return _Expected(want, spread, scales.largest)


@functools.cache
def _mask(shape: tuple[int, ...], d_ff: int, wide: bool) -> np.ndarray:
    """The mask that every execution has to draw; JAX draws another in its 64-bit mode."""
    spec = variant("relu", d_model=shape[-1], d_ff=d_ff, hidden_dropout=DROPOUT)
    return np.asarray(ffn.keep_mask(jax.random.key(_KEY), jnp.zeros(shape), spec))


class _Program:
    """An execution at one Spec, shape, dtype and mode: (params, x, upstream) → results by name."""

    def __init__(self, execution: Execution, spec: FFN, point: Point, lock: threading.Lock):
        self.execution, self.spec = execution, spec
        self._mode, self._compute = point.mode, DTYPES[point.dtype].compute_dtype
        self._numerics = DTYPES[point.dtype]
        self._lock = lock
        self._compiled: Callable[..., dict[str, Any]] | None = None

    def _results(self, params: dict, x: Any, upstream: Any) -> dict[str, Any]:
        key = jax.random.key(_KEY) if self._mode == "dropout" else None

        def forward(params: dict, x: Any) -> Any:
            y = self.execution.apply(params, x, self.spec, numerics=self._numerics, dropout_key=key)
            _check_like("output", y, x.shape, self._compute)
            return y

        if self._mode == "inference":
            return {"output": forward(params, x)}
        y, back = jax.vjp(forward, params, x)
        by_params, by_x = back(upstream)
        grads = {"d x": (by_x, x), **{f"d {n}": (g, params[n]) for n, g in by_params.items()}}
        for name, (gradient, of) in grads.items():
            _check_like(name, gradient, of.shape, of.dtype)
        return {"output": y, **{name: gradient for name, (gradient, _) in grads.items()}}

    def twice(self, given: tuple) -> dict[str, np.ndarray]:
        """The results, of which a second run has to give the same bits.

        Raises:
            _Wrong: when it does not, for a result of another kind, or an input that has changed.
        """
        if self._compiled is None:
            self._compiled = self._results
            if self.execution.compiled:
                with self._lock:
                    lowered = jax.jit(self._results).lower(*_again(given))
                self._compiled = lowered.compile()
        before = jax.tree.map(_bits, given)
        runs = []
        for _ in range(2):
            with self._lock:
                results = self._compiled(*_again(given))
                runs.append({name: np.asarray(value) for name, value in results.items()})
            _check_untouched(given, before)
        first, second = runs
        for name, value in first.items():
            if _bits(value) != _bits(second[name]):
                differ = int(np.sum(~_equal(value, second[name])))
                raise _Wrong("nondeterministic", f"{name}: {differ} of {value.size} elements")
        return first


def _check_like(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise _Wrong("shape", f"{name} is no array but {type(value).__name__}")
    if tuple(value.shape) != tuple(shape):
        raise _Wrong("shape", f"{name} has shape {tuple(value.shape)}, expected {tuple(shape)}")
    if value.dtype != jnp.dtype(dtype):
        raise _Wrong("dtype", f"{name} is {value.dtype}, expected {jnp.dtype(dtype)}")


@contextlib.contextmanager
def _entered(execution: Execution, devices: list[Any]):
    """The execution's mesh, or none."""
    if not execution.parts:
        yield None
        return
    sizes = execution.mesh_sizes
    mesh = jax.make_mesh(
        tuple(sizes.values()),
        MESH_AXES,
        axis_types=(AxisType.Explicit,) * len(MESH_AXES),
        devices=devices[: math.prod(sizes.values())],
    )
    with jax.set_mesh(mesh):
        yield mesh


def _placed(execution: Execution, case: Case, mesh: Mesh | None, as_views: bool) -> tuple:
    """(params, x, upstream) as the execution takes them."""
    given = dict(case.params), case.x, case.upstream
    if mesh is None:
        return given if as_views else jax.tree.map(jnp.asarray, given)
    specs = parameter_specs(ffn.parameters(case.spec), execution.rules)
    x: Any = case.x  # of which the rank alone counts
    layout = Placement(execution.rules).rows(x, None)
    assert layout is not None
    rows = NamedSharding(mesh, layout)
    return jax.device_put(given, (shardings(mesh, specs), rows, rows))


def _again(given: tuple) -> tuple:
    """The same arrays in a dict of their own."""
    params, *rows = given
    return (dict(params), *rows)


def _bits(value: Any) -> tuple:
    array = np.asarray(value)
    return array.shape, str(array.dtype), array.tobytes()


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _check_untouched(given: tuple, before: tuple) -> None:
    """Checks the arrays; a dict is a copy that an execution may change."""
    params, x, upstream = given
    was_params, was_x, was_upstream = before
    named = {"x": (x, was_x), "upstream": (upstream, was_upstream)}
    named.update({name: (value, was_params[name]) for name, value in params.items()})
    for name, (value, was) in named.items():
        if isinstance(value, jax.Array) and value.is_deleted():
            raise _Wrong("mutated", f"{name} was donated")
        if _bits(value) != was:
            raise _Wrong("mutated", f"{name} has other values than before")


def _compared(
    got: dict[str, np.ndarray], expected: _Expected, case: Case, rows: int, dtype: str
) -> Compared:
    """The worst of all results."""
    spec, numerics = case.spec, case.numerics
    worst = None
    for name, want in expected.want.items():
        if name == "output":
            n = max(spec.d_model, spec.d_ff)
        else:
            n = rounding.longest_sum(spec, rows, "" if name == "d x" else name[2:])
        bound = tolerance(numerics.compute_dtype, numerics.accumulation_dtype, n)
        found = compare(name, got[name], want, expected.spread[name], bound, dtype, n)
        worst = found if worst is None else worst.join(found)
    assert worst is not None
    return worst

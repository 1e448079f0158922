"""The ways to run an FFN: a registry that the matrix walks.

An execution never changes the function. It is a function of JAX arrays

    apply(params, x, spec, *, numerics, dropout_key=None) → y

with the arguments of `glu_lab.layers.ffn.apply`; the matrix takes its gradients with `jax.vjp` and
compiles it. One of your own joins by `register`:

    register(Execution(name="fused", summary="my kernel", apply=fused_ffn))
"""

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.sharding import by_hand
from glu_lab.spec.ffn import FFN
from glu_lab.spec.sharding import MESH_AXES, Rules, check_divides

Apply = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """One way to run the function.

    Attributes:
        name: in the report: a letter, then letters, digits, ``_``, ``-`` and ``.``.
        summary: how it is run, for people.
        apply: see the module.
        compiled: whether it runs under `jax.jit`.
        modes: of `glu_lab.conformance.cases.MODES`, those that it can run; ``inference`` alone
            where `jax.vjp` cannot go through it.
        dtypes: those that it can run; empty for all.
        parts: P, the devices that split F; 0 runs without a mesh.
        rules: which mesh axes split what, where there is a mesh.
        refuses: (spec, x's shape) → why it cannot run that, or None.
        why: why modes or dtypes are left out.
    """

    name: str
    summary: str
    apply: Apply
    compiled: bool = True
    modes: tuple[str, ...] = ("inference", "training", "dropout")
    dtypes: tuple[str, ...] = ()
    parts: int = 0
    rules: Rules = Rules()
    refuses: Callable[[FFN, tuple[int, ...]], str | None] = lambda spec, shape: None
    why: str = ""

    def __post_init__(self):
        if not re.fullmatch(r"[A-Za-z][\w.-]*", self.name):
            raise SpecError(
                f"an execution's name is a letter and then letters, digits, '_', '-' and '.', got "
                f"{self.name!r}."
            )
        if not callable(self.apply):
            raise SpecError(f"execution {self.name!r}: apply must be a function.")
        if (len(self.modes) < 3 or self.dtypes) and not self.why:
            raise SpecError(
                f"execution {self.name!r} leaves out modes or dtypes; say why, in the field 'why'."
            )

    @property
    def devices(self) -> int:
        """How many it needs."""
        return max(1, self.parts)

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Of its mesh."""
        return {axis: self.parts if axis == "model" else 1 for axis in MESH_AXES}

    def cannot(self, spec: FFN, shape: tuple[int, ...], dtype: str, mode: str) -> str | None:
        """Why it does not run a point by design; None where it has to."""
        if mode not in self.modes:
            return f"no {mode}: {self.why}"
        if self.dtypes and dtype not in self.dtypes:
            return f"no {dtype}: {self.why}"
        if self.parts:
            try:
                leading = zip(("batch", "seq"), shape[:-1], strict=False)
                check_divides([*leading, ("mlp", spec.d_ff)], self.rules, self.mesh_sizes)
            except SpecError as error:
                return str(error)
        return self.refuses(spec, shape)


def _by_rule(params, x, spec, *, numerics, dropout_key=None):
    place = Placement(Rules())
    used = {name: place.use(params[name], p.axes) for name, p in ffn.parameters(spec).items()}
    return ffn.apply(used, x, spec, numerics=numerics, dropout_key=dropout_key, place=place)


def _by_hand(rules: Rules) -> Apply:
    def apply(params, x, spec, **how):
        return by_hand.apply(params, x, spec, rules=rules, **how)

    return apply


def _remat(params, x, spec, *, numerics, dropout_key=None):
    def run(params, x):
        return ffn.apply(params, x, spec, numerics=numerics, dropout_key=dropout_key)

    return jax.checkpoint(run)(params, x)


def _sequence_parallel(parts: int) -> Execution:
    return Execution(
        name=f"sequence_parallel_{parts}",
        summary=f"by hand over {parts} devices, positions split outside the FFN",
        apply=_by_hand(by_hand.SEQUENCE_PARALLEL),
        parts=parts,
        rules=by_hand.SEQUENCE_PARALLEL,
    )


_DEGREES = (1, 2, 4)

#: The executions of this repository.
BUILT_IN = (
    Execution(
        name="eager",
        summary="the layer, one operation at a time",
        apply=ffn.apply,
        compiled=False,
    ),
    Execution(name="jit", summary="the layer, compiled", apply=ffn.apply),
    Execution(
        name="remat",
        summary="compiled; backward computes everything but parameters and rows again",
        apply=_remat,
    ),
    *(
        Execution(
            name=f"by_rule_{parts}",
            summary=f"channels over {parts} devices, collectives by the compiler",
            apply=_by_rule,
            parts=parts,
        )
        for parts in _DEGREES
    ),
    *(
        Execution(
            name=f"by_hand_{parts}",
            summary=f"channels over {parts} devices, collectives written out",
            apply=_by_hand(Rules()),
            parts=parts,
        )
        for parts in _DEGREES
    ),
    *(_sequence_parallel(parts) for parts in _DEGREES if parts > 1),
)

#: Every execution that the matrix knows, by name.
EXECUTIONS: dict[str, Execution] = {execution.name: execution for execution in BUILT_IN}


def register(execution: Execution) -> Execution:
    """Adds an execution to the matrix.

    Raises:
        SpecError: for a name that is taken.
    """
    check_free(execution, EXECUTIONS)
    EXECUTIONS[execution.name] = execution
    return execution


def check_free(execution: Execution, known: Mapping[str, Execution]) -> None:
    """Checks that no other execution has the name.

    Raises:
        SpecError: when one has.
    """
    if execution.name in known:
        raise SpecError(
            f"an execution named {execution.name!r} exists already; give yours another name."
        )


def load(text: str) -> Execution:
    """The execution that ``module:attribute`` names: an `Execution`, or an ``apply``.

    Raises:
        SpecError: for text of another form, or a module or attribute that cannot be had.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise SpecError(
            f"write an execution as module:function, for example my_ffn:apply; {text!r}."
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # it is the user's code that runs
        raise SpecError(
            f"cannot import {module_name!r} of {text!r}: {type(error).__name__}: {error}."
        ) from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(f"function of {module_name}", attribute, names)
    found = getattr(module, attribute)
    if isinstance(found, Execution):
        return found
    return Execution(name=attribute, summary=f"{text}, compiled", apply=found)

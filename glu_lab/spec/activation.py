"""The names of activations: one table, exact functions only.

A name states one mathematical function. Where the field uses one word for several functions
(``gelu`` is the erf form in torch and the tanh form in JAX) the bare word is refused.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from glu_lab.errors import SpecError, UnknownNameError, folded


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationRow:
    """One row of the table of activations.

    Attributes:
        formula: the function φ(x), as text.
        source: paper or code that defines it.
        constants: names and default values of the function's own constants.
        learned: names and initial values of the scalars it learns, one set per branch and layer.
        exact_zeros: whether φ is exactly zero on an interval.
        pointwise_ops: arithmetic operations for one element, an elementary function counted as one.
    """

    formula: str
    source: str
    pointwise_ops: int
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    learned: Mapping[str, float] = dataclasses.field(default_factory=dict)
    exact_zeros: bool = False


QUICK_GELU_BETA = 1.702

ACTIVATIONS: dict[str, ActivationRow] = {
    "linear": ActivationRow(formula="x", source="identity", pointwise_ops=0),
    "relu": ActivationRow(
        formula="max(0, x)",
        source="Nair & Hinton 2010; derivative at 0 taken as 0",
        pointwise_ops=1,
        exact_zeros=True,
    ),
    "relu2": ActivationRow(
        formula="max(0, x)²",
        source="So et al. 2021, Primer (arXiv 2109.08668)",
        pointwise_ops=2,
        exact_zeros=True,
    ),
    "gelu_erf": ActivationRow(
        formula="x·Φ(x) = x/2·(1 + erf(x/√2))",
        source="Hendrycks & Gimpel 2016 (arXiv 1606.08415), exact form",
        pointwise_ops=5,
    ),
    "gelu_tanh": ActivationRow(
        formula="x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))",
        source="Hendrycks & Gimpel 2016 (arXiv 1606.08415), tanh approximation",
        pointwise_ops=9,
    ),
    "silu": ActivationRow(
        formula="x·σ(x)", source="Elfwing et al. 2017 (arXiv 1702.03118)", pointwise_ops=4
    ),
    "quick_gelu": ActivationRow(
        formula="x·σ(1.702·x)",
        source="Hendrycks & Gimpel 2016 (arXiv 1606.08415), sigmoid approximation",
        pointwise_ops=5,
    ),
    "swish": ActivationRow(
        formula="x·σ(β·x)",
        source="Ramachandran et al. 2017 (arXiv 1710.05941), β constant",
        pointwise_ops=5,
        constants={"beta": 1.0},
    ),
    "sigmoid": ActivationRow(
        formula="σ(x) = 1/(1 + exp(−x))",
        source="Dauphin et al. 2016 (arXiv 1612.08083)",
        pointwise_ops=3,
    ),
    "tanh": ActivationRow(
        formula="tanh(x)", source="Dauphin et al. 2016 (arXiv 1612.08083), GTU", pointwise_ops=1
    ),
    "swish_learned": ActivationRow(
        formula="x·σ(β·x), β learned",
        source="Ramachandran et al. 2017 (arXiv 1710.05941), β trainable",
        pointwise_ops=5,
        learned={"beta": 1.0},
    ),
    "xielu": ActivationRow(
        formula="x > 0: αp·x² + β·x; x ≤ 0: αn·(expm1(min(x, ε)) − x) + β·x",
        source="Huang & Schlag 2025 (arXiv 2411.13010); αp = softplus(p), αn = β + softplus(n)",
        pointwise_ops=6,
        constants={"beta": 0.5, "eps": -1e-6},
        # Raw parameters before softplus: αp = αn = 0.8 at the start.
        learned={"p": math.log(math.expm1(0.8)), "n": math.log(math.expm1(0.3))},
    ),
}

#: Names that the field uses, and the exact functions that each may mean.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "gelu": ("gelu_erf", "gelu_tanh", "quick_gelu"),
    "gelu_new": ("gelu_tanh",),
    "gelu_fast": ("gelu_tanh",),
    "gelu_pytorch_tanh": ("gelu_tanh",),
    "gelu_python": ("gelu_erf",),
    "squared_relu": ("relu2",),
    "relu_squared": ("relu2",),
    "identity": ("linear",),
    "logistic": ("sigmoid",),
}


def refuse_other_name(kind: str, name: str, table: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses a name of the field's that is not ours, however it is spelt, with ours.

    Args:
        kind: what it should name, for the message.
        name: as given.
        table: other names → ours.

    Raises:
        SpecError: where the table has the name.
    """
    choices = {folded(key): names for key, names in table.items()}.get(folded(name))
    if choices is None:
        return
    if len(choices) == 1:
        raise SpecError(f"{kind} {name!r} is called {choices[0]!r} here; write that.")
    raise SpecError(f"{kind} {name!r} names several functions; say which: {', '.join(choices)}.")


_CALL = re.compile(r"^\s*([A-Za-z_][A-Za-z_0-9]*)\s*(?:\(([^()]*)\))?\s*$")


@dataclasses.dataclass(frozen=True)
class Activation:
    """An exact scalar function φ.

    Equal functions compare, hash and print equal: `Activation.parse("swish(1.702)")` is
    `Activation("quick_gelu")`, and `swish(1)` is `silu`.

    Attributes:
        name: a row of `ACTIVATIONS`.
        constants: the values of the row's constants, in the row's order.

    Raises:
        SpecError: for an unknown or ambiguous name, or constants that do not fit.
    """

    name: str
    constants: tuple[float, ...] = ()

    def __post_init__(self):
        if self.name not in ACTIVATIONS:
            refuse_other_name("activation", self.name, OTHER_NAMES)
            raise UnknownNameError("activation", self.name, ACTIVATIONS)
        row = ACTIVATIONS[self.name]
        values = self.constants or tuple(row.constants.values())
        if len(values) != len(row.constants):
            raise SpecError(
                f"activation {self.name!r} takes {len(row.constants)} constants "
                f"({', '.join(row.constants) or 'none'}), got {len(values)}."
            )
        for value in values:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value):
                raise SpecError(f"constants of {self.name!r} must be finite, got {value!r}.")
        name = self.name
        if name == "swish":
            equal = {1.0: "silu", QUICK_GELU_BETA: "quick_gelu"}.get(float(values[0]))
            if equal:
                name, values = equal, ()
        object.__setattr__(self, "name", name)
        # + 0.0 writes −0.0 as the 0.0 that it equals.
        object.__setattr__(self, "constants", tuple(float(v) + 0.0 for v in values))

    @property
    def row(self) -> ActivationRow:
        """The table row that defines this function."""
        return ACTIVATIONS[self.name]

    @classmethod
    def parse(cls, text: str) -> "Activation":
        """Reads ``"silu"`` or ``"swish(1.5)"``.

        Raises:
            SpecError: when the text is not ``name`` or ``name(number, …)``.
        """
        match = _CALL.match(text)
        if not match:
            refuse_other_name("activation", text.strip(), OTHER_NAMES)
            meant = [name for name in ACTIVATIONS if folded(name) == folded(text)]
            raise SpecError(
                f"{text!r} is not an activation; "
                + (f"did you mean {meant[0]!r}? Or " if meant else "")
                + "write a name or a name with constants, for example 'silu' or 'swish(1.5)'."
            )
        name, arguments = match.groups()
        values = ()
        if arguments is not None and arguments.strip():
            try:
                values = tuple(float(part) for part in arguments.split(","))
            except ValueError:
                raise SpecError(f"constants in {text!r} must be numbers.") from None
        return cls(name, values)

    def __str__(self) -> str:
        if self.constants == tuple(self.row.constants.values()):
            return self.name
        return f"{self.name}({', '.join(repr(value) for value in self.constants)})"

"""Parameters, multiply-accumulates and pointwise operations of one FFN, by component.

Dimension letters: D d_model, F d_ff, N branches. Counts are for one layer; operations are for one
token.
"""

import dataclasses
import math

from glu_lab.errors import SpecError
from glu_lab.spec.ffn import FFN


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterItem:
    """One trainable array, or one branch's slice of one.

    Attributes:
        name: as in the parameters of `glu_lab.layers.ffn`; ``wi[:,0]`` is branch 0's part of
            ``wi`` (D, N, F), ``bi_0`` its bias, ``bp`` and ``bo`` the biases of product and output,
            ``phi_0_beta`` a learned scalar of its activation.
        symbols: its shape in letters, ``("D", "F")``; empty for a scalar.
        shape: its shape in numbers.
    """

    name: str
    symbols: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of trainable scalars."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MacItem:
    """One matrix product.

    Attributes:
        name: the two operands.
        symbols: the factors of the count in letters.
        per_token: multiply-accumulates for one token.
    """

    name: str
    symbols: tuple[str, ...]
    per_token: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointwiseItem:
    """One elementwise step.

    Attributes:
        name: what is done, with the branch's index where there is one per branch.
        axis: ``"F"`` or ``"D"``, the axis of the elements.
        per_element: operations for one element.
        per_token: operations for one token.
    """

    name: str
    axis: str
    per_element: int
    per_token: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """The exact cost of one FFN sublayer.

    Attributes:
        spec: the FFN counted.
        parameters: its trainable arrays.
        macs: its matrix products; a multiply-accumulate is two floating-point operations.
        pointwise: its elementwise steps.
    """

    spec: FFN
    parameters: tuple[ParameterItem, ...]
    macs: tuple[MacItem, ...]
    pointwise: tuple[PointwiseItem, ...]

    @property
    def params(self) -> int:
        """Trainable scalars of one layer."""
        return sum(item.count for item in self.parameters)

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of the matrix products for one token: (N + 1)·D·F."""
        return sum(item.per_token for item in self.macs)

    @property
    def pointwise_per_token(self) -> int:
        """Elementwise operations for one token."""
        return sum(item.per_token for item in self.pointwise)


def ledger(spec: FFN) -> Ledger:
    """Counts one FFN.

    Pointwise operations are arithmetic operations on one element, by these rules: an addition, a
    multiplication or one finite bound of a clamp is one operation; φ costs the `pointwise_ops` of
    its row in `glu_lab.spec.activation.ACTIVATIONS`; dropout is two (select and rescale), its
    random bits not counted; a scale of 1 and an offset of 0 cost nothing.

    Args:
        spec: the FFN.

    Returns:
        The ledger; every count is an exact integer.

    Raises:
        SpecError: when `spec` is not an FFN.

    Example:
        >>> from glu_lab.spec import variant
        >>> ledger(variant("swiglu", d_model=4096, d_ff=11008)).params
        135266304
    """
    if not isinstance(spec, FFN):
        raise SpecError(
            f"a ledger counts a glu_lab.spec.FFN, got {type(spec).__name__}; build one with "
            "glu_lab.spec.variant('swiglu', d_model=…, d_ff=…)."
        )
    return Ledger(
        spec=spec, parameters=_parameters(spec), macs=_macs(spec), pointwise=_pointwise(spec)
    )


def _parameters(spec: FFN) -> tuple[ParameterItem, ...]:
    sizes = {"D": spec.d_model, "F": spec.d_ff}

    def item(name: str, *symbols: str) -> ParameterItem:
        return ParameterItem(
            name=name, symbols=symbols, shape=tuple(sizes[letter] for letter in symbols)
        )

    items = [item(f"wi[:,{i}]", "D", "F") for i in range(spec.num_branches)]
    items += [item(f"bi_{i}", "F") for i, branch in enumerate(spec.branches) if branch.bias]
    items += [
        item(f"phi_{i}_{learned}")
        for i, branch in enumerate(spec.branches)
        for learned in branch.activation.row.learned
    ]
    if spec.product_bias:
        items.append(item("bp", "F"))
    items.append(item("wo", "F", "D"))
    if spec.output_bias:
        items.append(item("bo", "D"))
    return tuple(items)


def _macs(spec: FFN) -> tuple[MacItem, ...]:
    one = spec.d_model * spec.d_ff
    up = [
        MacItem(name=f"x·wi[:,{i}]", symbols=("D", "F"), per_token=one)
        for i in range(spec.num_branches)
    ]
    return (*up, MacItem(name="H·wo", symbols=("F", "D"), per_token=one))


def _pointwise(spec: FFN) -> tuple[PointwiseItem, ...]:
    sizes = {"D": spec.d_model, "F": spec.d_ff}
    items: list[PointwiseItem] = []

    def add(name: str, axis: str, per_element: int) -> None:
        if per_element:
            items.append(
                PointwiseItem(
                    name=name,
                    axis=axis,
                    per_element=per_element,
                    per_token=per_element * sizes[axis],
                )
            )

    for i, branch in enumerate(spec.branches):
        add(f"bias[{i}]", "F", int(branch.bias))
        add(f"scale[{i}]", "F", int(branch.scale != 1.0))
        add(f"pre clamp[{i}]", "F", _finite_bounds(branch.pre))
        add(f"{branch.activation}[{i}]", "F", branch.activation.row.pointwise_ops)
        add(f"post clamp[{i}]", "F", _finite_bounds(branch.post))
        add(f"offset[{i}]", "F", int(branch.offset != 0.0))
    add("product", "F", spec.num_branches - 1)
    add("product_bias", "F", int(spec.product_bias))
    add("dropout", "F", 2 if spec.hidden_dropout else 0)
    add("output_bias", "D", int(spec.output_bias))
    add("output_scale", "D", int(spec.output_scale != 1.0))
    return tuple(items)


def _finite_bounds(clamp: tuple[float, float] | None) -> int:
    return 0 if clamp is None else sum(math.isfinite(bound) for bound in clamp)

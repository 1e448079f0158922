"""The feed-forward Spec: a tuple of branches and what is done with their product.

    a_i = pre_i( scale_i · (x W_i + b_i) )
    H   = Π_i ( post_i( φ_i(a_i) ) + offset_i ) + b_product
    Y   = output_scale · ( dropout(H) W_o + b_o )

One branch is the dense FFN, two are the gated family; nothing asks "is it gated".
Dimension letters: D d_model, F d_ff, N branches.
"""

import dataclasses
import math
from typing import Literal

from glu_lab.errors import SpecError
from glu_lab.spec.activation import Activation
from glu_lab.spec.checks import check_choices

Clamp = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initializer:
    """A distribution whose spread follows from the fans of a weight's roles.

    The variance is ``scale / fan``; with ``fan="none"`` it is ``scale²`` (scale is then the
    standard deviation). Fans count the sizes of a weight's input and output axes, whatever its
    rank: a ``(D, N, F)`` stack of branches has fan-in D and fan-out F.

    Attributes:
        distribution: ``normal``; ``truncated_normal`` at ±2 standard deviations, rescaled so that
            its own standard deviation is the stated one; ``uniform``; ``zeros``; ``ones``.
        scale: variance multiplier, or the standard deviation when ``fan="none"``.
        fan: ``in``, ``out``, ``avg`` or ``none``.
    """

    distribution: Literal["normal", "truncated_normal", "uniform", "zeros", "ones"] = "normal"
    scale: float = 1.0
    fan: Literal["in", "out", "avg", "none"] = "in"

    def __post_init__(self):
        check_choices(self)
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise SpecError(f"initializer scale must be finite and ≥ 0, got {self.scale!r}.")

    def stddev(self, fan_in: int, fan_out: int) -> float:
        """Standard deviation for a weight with these fans (0 for ``zeros`` and ``ones``)."""
        if self.distribution in ("zeros", "ones"):
            return 0.0
        if self.fan == "none":
            return self.scale
        fan = {"in": fan_in, "out": fan_out, "avg": (fan_in + fan_out) / 2}[self.fan]
        return math.sqrt(self.scale / fan)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """One projected branch: ``post(φ(pre(scale·(xW + b)))) + offset``.

    Attributes:
        activation: the exact function φ.
        scale: multiplier of the affine map's result.
        bias: whether the branch has a bias of shape ``(F,)``.
        pre: clamp of the argument of φ, as (low, high); infinities leave a side open.
        post: clamp of the value of φ.
        offset: constant added to the clamped value, as in gpt-oss's ``up + 1``.
    """

    activation: Activation
    scale: float = 1.0
    bias: bool = False
    pre: Clamp | None = None
    post: Clamp | None = None
    offset: float = 0.0

    def __post_init__(self):
        for name in ("pre", "post"):
            clamp = getattr(self, name)
            if clamp is None:
                continue
            low, high = (float(bound) for bound in clamp)
            if math.isnan(low) or math.isnan(high) or low >= high:
                raise SpecError(f"{name} clamp must be (low, high) with low < high, got {clamp!r}.")
            open_both_sides = low == -math.inf and high == math.inf
            object.__setattr__(self, name, None if open_both_sides else (low, high))
        for name in ("scale", "offset"):
            if not math.isfinite(getattr(self, name)):
                raise SpecError(f"branch {name} must be finite, got {getattr(self, name)!r}.")


DROPOUT_AXES = ("batch", "position")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FFN:
    """Which function one feed-forward sublayer computes, and how it is initialised.

    Attributes:
        d_model: D, width of the residual stream.
        d_ff: F, number of hidden channels; taken as stated, never rounded.
        branches: N branches whose product is the hidden state.
        product_bias: whether a bias ``(F,)`` is added after the product.
        output_bias: whether a bias ``(D,)`` is added after the down projection.
        output_scale: multiplier of the output.
        hidden_dropout: probability of zeroing an element of the product.
        hidden_dropout_shared: axes along which one mask is shared; T5X shares it over
            ``position``, most others over none.
        wi_init, wo_init: initialisers of the input and output projections; biases start at zero.

    Raises:
        SpecError: when a field is out of its range.
    """

    d_model: int
    d_ff: int
    branches: tuple[Branch, ...]
    product_bias: bool = False
    output_bias: bool = False
    output_scale: float = 1.0
    hidden_dropout: float = 0.0
    hidden_dropout_shared: tuple[str, ...] = ()
    wi_init: Initializer = Initializer()
    wo_init: Initializer = Initializer()

    kind = "ffn"

    def __post_init__(self):
        for name in ("d_model", "d_ff"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name} must be an integer ≥ 1, got {value!r}.")
        if not self.branches:
            raise SpecError("an FFN needs at least one branch.")
        if not 0.0 <= self.hidden_dropout < 1.0:
            raise SpecError(f"hidden_dropout must be in [0, 1), got {self.hidden_dropout!r}.")
        if not math.isfinite(self.output_scale):
            raise SpecError(f"output_scale must be finite, got {self.output_scale!r}.")
        for axis in self.hidden_dropout_shared:
            if axis not in DROPOUT_AXES:
                raise SpecError(
                    f"hidden_dropout_shared names {axis!r}; an FFN mask can be shared over "
                    f"{', '.join(DROPOUT_AXES)}."
                )
        shared = tuple(axis for axis in DROPOUT_AXES if axis in self.hidden_dropout_shared)
        object.__setattr__(self, "hidden_dropout_shared", shared)

    @property
    def num_branches(self) -> int:
        """N, the number of branches."""
        return len(self.branches)

    def replace(self, **changes) -> "FFN":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

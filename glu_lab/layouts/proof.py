"""Proof by rows: known rows through the FFN formula, on tensors as two layouts store them.

A plain NumPy statement of the branch product in float64. It reads the stored tensors block by block
through an inventory and shares nothing with the plan that moved them, so that a plan can be held
against it.

Dimension letters: T rows, D d_model, F d_ff, N branches, P tensor-parallel degree.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from glu_lab.layouts.axes import access
from glu_lab.layouts.copying import contiguous
from glu_lab.layouts.inventory import Block, Inventory
from glu_lab.layouts.layout import PIECE_AXES, LayoutError
from glu_lab.layouts.outputs import Key, Reader
from glu_lab.layouts.reading import ffns_of
from glu_lab.spec.activation import QUICK_GELU_BETA, Activation
from glu_lab.spec.ffn import FFN, Clamp

#: T, how many rows are evaluated.
ROWS = 4

#: Elements of one float64 block, whatever the tensor's size: half a MiB, which stays in the
#: cache. Blocks of 2 MiB and more were seen to take eight times as long on two cores.
_BLOCK = 1 << 16

#: Relative tolerance of outputs that another machine recorded: its BLAS sums in another order and
#: its exp rounds differently, at about 1e-15 a term; a wrong branch is off in the first digits.
RECORDED_TOLERANCE = 1e-9

_GOLDEN = 0.6180339887498949


class Place(NamedTuple):
    """One FFN of a file."""

    stack: str
    layer: int | None
    expert: int | None

    def __str__(self) -> str:
        parts = [self.stack or "FFN"]
        parts += [f"layer {self.layer}"] if self.layer is not None else []
        parts += [f"expert {self.expert}"] if self.expert is not None else []
        return " ".join(parts)


class Evaluated(NamedTuple):
    """Outputs of an FFN.

    Attributes:
        y: the rows.
        magnitude: Σ |h|·|w_o| + |b_o| of each output, what rounding errors are relative to.
    """

    y: Float64[np.ndarray, "T D"]
    magnitude: Float64[np.ndarray, "T D"]


@dataclasses.dataclass(frozen=True)
class RowProof:
    """What two evaluations of the same FFNs gave.

    Attributes:
        places: the FFNs that were evaluated, as the target names them.
        total: how many there are.
        largest: the largest difference of an output.
        magnitude: the largest magnitude of an output.
        first: outputs of the first FFN, as the source's tensors give them.
    """

    places: tuple[Place, ...]
    total: int
    largest: float
    magnitude: float
    first: Evaluated


class ProofError(LayoutError):
    """Tensors that do not compute what they should."""


def known_rows(d_model: int, count: int = ROWS) -> Float64[np.ndarray, "T D"]:
    """Rows that every machine makes alike: x_td = 4·frac((t+1)(d+1)·0.618…) − 2.

    Args:
        d_model: D.
        count: T.
    """
    steps = np.outer(np.arange(1.0, count + 1), np.arange(1.0, d_model + 1))
    return (steps * _GOLDEN) % 1.0 * 4.0 - 2.0


def places_of(stock: Inventory) -> list[Place]:
    """All FFNs of a file."""
    return [Place(*place) for place in ffns_of(stock)]


def ends_of(places: Sequence[Place]) -> list[Place]:
    """The first and the last FFN of each stack."""
    stacks: dict[str, list[Place]] = {}
    for place in places:
        stacks.setdefault(place.stack, []).append(place)
    return [place for own in stacks.values() for place in dict.fromkeys((own[0], own[-1]))]


def prove(
    source: Inventory,
    read_source: Reader,
    target: Inventory,
    read_target: Reader,
    *,
    every: bool = False,
    on_ffn: Callable[[int, int], None] | None = None,
) -> RowProof:
    """Evaluates known rows on both files and compares.

    Operands are cut alike and copied into the same order on both sides, so that equal parameters
    give equal bits.

    Args:
        source, target: what is in each file.
        read_source, read_target: give their tensors.
        every: whether every FFN is evaluated; otherwise the first and the last of each stack.
        on_ffn: called with how many are done, and of how many.

    Raises:
        ProofError: when an output differs by more than the rounding of its sum.
    """
    places = places_of(source)
    counterparts = _counterparts(places, places_of(target))
    chosen = places if every else ends_of(places)
    width = math.gcd(source.sizes["mlp"], target.sizes["mlp"])
    x = known_rows(source.spec.d_model)
    largest = magnitude = 0.0
    first = None
    for done, place in enumerate(chosen, start=1):
        ours = evaluate(source, read_source, place, x, width)
        theirs = evaluate(target, read_target, counterparts[place], x, width)
        what = f"{target.layout.name}, {counterparts[place]}"
        largest = max(largest, compare(ours, theirs.y, source.spec, what))
        magnitude = max(magnitude, float(ours.magnitude.max()))
        first = first or ours
        if on_ffn is not None:
            on_ffn(done, len(chosen))
    assert first is not None
    return RowProof(
        tuple(map(counterparts.__getitem__, chosen)), len(places), largest, magnitude, first
    )


def compare(
    ours: Evaluated,
    theirs: Float64[np.ndarray, "T D"],
    spec: FFN,
    what: str,
    tolerance: float | None = None,
) -> float:
    """The largest difference of two evaluations.

    Args:
        ours: the one with magnitudes.
        theirs: rows; fewer channels than ours stand for the first of them.
        spec: for the number of terms in a sum.
        what: names the second in the error.
        tolerance: relative to the largest magnitude; by default (D + F)·ε, the rounding of sums of
            so many terms.

    Raises:
        ProofError: when it is larger than the tolerance allows, or either is not finite where the
            other is.
    """
    channels = theirs.shape[1]
    y, scale = ours.y[:, :channels], float(ours.magnitude.max())
    with np.errstate(invalid="ignore"):
        difference = np.where((y == theirs) | (np.isnan(y) & np.isnan(theirs)), 0.0, y - theirs)
    largest = float(np.abs(difference).max(initial=0.0))
    relative = (spec.d_model + spec.d_ff) * np.finfo(np.float64).eps
    allowed = (relative if tolerance is None else tolerance) * scale
    if not largest <= allowed:
        raise ProofError(
            f"the row proof failed: {what} gives outputs that differ by {largest:.3g} (allowed: "
            f"{allowed:.3g}) from those of the source's formula. Its layout, branch order or "
            "function is not the one stated."
        )
    return largest


def _counterparts(ours: Sequence[Place], theirs: Sequence[Place]) -> dict[Place, Place]:
    """Each FFN's place in another file, whose stacks may have other names."""
    if len(ours) != len(theirs):
        raise ProofError(f"{len(ours)} FFNs became {len(theirs)}.")
    if set(ours) == set(theirs):
        return {place: place for place in ours}
    pairs = dict(zip(ours, theirs, strict=True))
    for mine, other in pairs.items():
        if (mine.layer or 0, mine.expert or 0) != (other.layer or 0, other.expert or 0):
            raise ProofError(f"{mine} became {other}.")
    return pairs


def evaluate(
    stock: Inventory,
    read: Reader,
    place: Place,
    x: Float64[np.ndarray, "T D"],
    width: int | None = None,
) -> Evaluated:
    """Rows through one FFN as its tensors lie in a file, in float64.

    The formula is that of `glu_lab.spec.ffn`. Hidden channels are taken block by block, so that
    memory stays small for any tensor.

    Args:
        stock: what is in the file.
        read: gives its tensors.
        place: which FFN.
        x: the rows.
        width: a number of channels that no block crosses a multiple of; by default those of a rank.

    Raises:
        LayoutError: when there is no such FFN.
    """
    spec = stock.spec
    if Block(*place, "wo") not in stock.blocks:
        raise LayoutError(f"{stock.layout.name}: there is no {place}.")
    width = width or stock.sizes["mlp"]
    step = min(width, max(1, _BLOCK // spec.d_model))
    y = np.zeros_like(x)
    magnitude = np.zeros_like(x)
    # Large weights may overflow in a product; both sides then do alike.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for segment in range(0, spec.d_ff, width):
            for start in range(segment, segment + width, step):
                channels = start, min(start + step, segment + width)
                h = _hidden(stock, read, place, x, channels)
                wo = _stored(stock, read, Block(*place, "wo"), channels)
                y += h @ wo
                magnitude += np.abs(h) @ np.abs(wo)
        if spec.output_bias:
            bo = _stored(stock, read, Block(*place, "bo"), (0, 0))
            y += bo[None, :]
            magnitude += np.abs(bo)[None, :]
        return Evaluated(spec.output_scale * y, abs(spec.output_scale) * magnitude)


def _hidden(
    stock: Inventory,
    read: Reader,
    place: Place,
    x: Float64[np.ndarray, "T D"],
    channels: tuple[int, int],
) -> Float64[np.ndarray, "T C"]:
    """Π_i ( post_i( φ_i( pre_i( scale_i · (x W_i + b_i) ) ) ) + offset_i ) + b_product."""
    product = np.ones((len(x), channels[1] - channels[0]))
    for i, branch in enumerate(stock.spec.branches):
        a = x @ _stored(stock, read, Block(*place, "wi", i), channels)
        if branch.bias:
            a = a + _stored(stock, read, Block(*place, "bi", i), channels)[None, :]
        learned = {
            name: float(_stored(stock, read, Block(*place, "phi", i, name), (0, 0)))
            for name in branch.activation.row.learned
        }
        value = phi(branch.activation, _clamp(branch.scale * a, branch.pre), learned)
        product = product * (_clamp(value, branch.post) + branch.offset)
    if stock.spec.product_bias:
        product = product + _stored(stock, read, Block(*place, "bp"), channels)[None, :]
    return product


def _stored(
    stock: Inventory, read: Reader, block: Block, channels: tuple[int, int]
) -> Float64[np.ndarray, "..."]:
    """Some hidden channels of a block, copied into canonical order as float64."""
    location = stock.blocks[block]
    axes, sizes = PIECE_AXES[block.piece], location.sizes
    rank, start = divmod(channels[0], stock.sizes["mlp"]) if "mlp" in axes else (0, 0)
    where = access(
        location.dimensions,
        sizes,
        block_axes=axes,
        at=location.at,
        mlp=(start, start + channels[1] - channels[0]),
        interleave=location.named.row.interleave,
    )
    stored = where.read(read(Key(location.named.name, rank)))
    # Converted as it lies and then turned, tile by tile: several times faster than both at once.
    return contiguous(stored.astype(np.float64, order="K"))


def _clamp(a: Float64[np.ndarray, "T C"], clamp: Clamp | None) -> Float64[np.ndarray, "T C"]:
    return a if clamp is None else np.minimum(np.maximum(a, clamp[0]), clamp[1])


def _xielu(
    a: Float64[np.ndarray, "T C"], beta: float, eps: float, learned: Mapping[str, float]
) -> Float64[np.ndarray, "T C"]:
    alpha_p = np.logaddexp(0.0, learned["p"])
    alpha_n = beta + np.logaddexp(0.0, learned["n"])
    positive = alpha_p * a**2 + beta * a
    negative = alpha_n * (np.expm1(np.minimum(a, eps)) - a) + beta * a
    return np.where(a > 0, positive, negative)


def _gelu_tanh(a: Float64[np.ndarray, "T C"]) -> Float64[np.ndarray, "T C"]:
    return a / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


#: Activation → φ(a, constants, learned scalars), by the formulas of `glu_lab.spec.activation`.
_PHI: dict[str, Callable[..., np.ndarray]] = {
    "linear": lambda a, constants, learned: a,
    "relu": lambda a, constants, learned: np.maximum(a, 0.0),
    "relu2": lambda a, constants, learned: np.maximum(a, 0.0) ** 2,
    "gelu_erf": lambda a, constants, learned: a / 2 * (1 + special.erf(a / math.sqrt(2))),
    "gelu_tanh": lambda a, constants, learned: _gelu_tanh(a),
    "silu": lambda a, constants, learned: a * special.expit(a),
    "quick_gelu": lambda a, constants, learned: a * special.expit(QUICK_GELU_BETA * a),
    "swish": lambda a, constants, learned: a * special.expit(constants[0] * a),
    "sigmoid": lambda a, constants, learned: special.expit(a),
    "tanh": lambda a, constants, learned: np.tanh(a),
    "swish_learned": lambda a, constants, learned: a * special.expit(learned["beta"] * a),
    "xielu": lambda a, constants, learned: _xielu(a, constants[0], constants[1], learned),
}


def phi(
    activation: Activation, a: Float64[np.ndarray, "T C"], learned: Mapping[str, float]
) -> Float64[np.ndarray, "T C"]:
    """φ(a) in float64.

    Args:
        activation: which function.
        a: its argument.
        learned: the values of its learned scalars.
    """
    return _PHI[activation.name](a, activation.constants, learned)

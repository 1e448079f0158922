"""Two states, gradients or losses of one run held against each other, with the bounds that apply.

Dimension letters: D d_model, F d_ff, V vocabulary, L layers.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.errors import SpecError
from glu_lab.oracle.tolerances import UNIT_ROUNDOFF
from glu_lab.spec.experiment import Experiment

#: Matrix products that a number goes through in a layer, forward and backward.
_PRODUCTS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison.

    Attributes:
        way: what was done differently.
        what: which numbers are compared.
        largest: the largest difference, in the unit of `tolerance`; infinite where numbers of
            another kind, shape or finiteness stand.
        tolerance: 0 for bit for bit.
        where: the array in which it is largest; empty where there is no difference.
        reason: why the tolerance is that.
    """

    way: str
    what: str
    largest: float
    tolerance: float
    where: str
    reason: str

    @property
    def passed(self) -> bool:
        """Whether it is within the tolerance."""
        return self.largest <= self.tolerance


BITS = "bit for bit: the same program on the same numbers"
MOVED = "bit for bit: a checkpoint holds numbers, wherever they lie"


class Bounds(NamedTuple):
    """What rounding may do.

    Attributes:
        rounding: of a gradient, as a share of its array's largest element.
        drift: of parameters, as a share of how far they moved.
        reasons: of `rounding` and `drift`.
    """

    rounding: float
    drift: float
    reasons: tuple[str, str]


def bounds(experiment: Experiment, batch: Mapping[str, Sequence[int]]) -> Bounds:
    """How far sums in another order may lie apart.

    Args:
        experiment: sizes and number formats.
        batch: shapes of a batch's arrays.
    """
    model, numerics = experiment.model, experiment.numerics
    layers = model.num_layers + model.num_encoder_layers
    rows = max(math.prod(shape) for shape in batch.values())
    n = max(rows, model.vocab_size, model.ffn.d_ff, model.d_model)
    products = _PRODUCTS * (layers + 1)
    unit = math.sqrt(n) * UNIT_ROUNDOFF[numerics.accumulation_dtype]
    if numerics.compute_dtype != numerics.accumulation_dtype:
        unit += UNIT_ROUNDOFF[numerics.compute_dtype]
    tau = 5 * math.sqrt(products) * unit
    return Bounds(
        tau,
        4 * math.sqrt(tau),
        (
            f"{tau:.1e} = 5·√{products}·{unit:.1e}: five deviations of {products} products in a "
            f"row, each with sums of up to n = {n} terms in another order (√n·u), of the array's "
            "largest element",
            f"{4 * math.sqrt(tau):.1e} = 4·√τ, τ = {tau:.1e}: an adaptive rule divides a gradient "
            "by its size, so that the share τ of elements whose gradients are rounding step "
            "anywhere; root mean square, of the way that the parameters went",
        ),
    )


def snapshot(tree: Any) -> Any:
    """A copy on the host; random keys as their words. The arrays may be given away after it."""

    def copied(x: Any) -> np.ndarray:
        if jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.array(x)

    return jax.tree.map(copied, tree)


def host(tree: Any) -> dict[str, np.ndarray]:
    """A tree of arrays by path, on the host."""
    leaves = jax.tree_util.tree_leaves_with_path(snapshot(tree))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def same(way: str, what: str, got: Any, want: Any, reason: str) -> Comparison:
    """Bit for bit."""
    got, want = host(got), host(want)
    worst, where = 0.0, ""
    if got.keys() != want.keys():
        worst, where = math.inf, "names: " + ", ".join(sorted(got.keys() ^ want.keys())[:3])
    for path in got.keys() & want.keys():
        one, two = got[path], want[path]
        if one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes():
            continue
        size = _difference(one, two) or math.inf  # equal numbers of other bits: −0, another NaN
        if size >= worst:
            worst, where = size, path
    return Comparison(way=way, what=what, largest=worst, tolerance=0.0, where=where, reason=reason)


def _difference(one: np.ndarray, two: np.ndarray) -> float:
    if one.shape != two.shape or one.dtype.kind not in "biufc" or two.dtype.kind not in "biufc":
        return math.inf
    with np.errstate(invalid="ignore"):
        size = np.abs(one.astype(np.float64) - two.astype(np.float64)).max(initial=0.0)
    return float(size) if math.isfinite(size) else math.inf


def near(
    way: str, got: Any, want: Any, bound: Bounds, what: str = "gradients of the next step"
) -> Comparison:
    """Every array within `Bounds.rounding` of its largest element.

    An array that is zero but for rounding (the bias of attention keys, say) is measured by the root
    mean square of all.
    """
    got, want = host(got), host(want)
    squares = sum(float(np.sum(np.square(x, dtype=np.float64))) for x in want.values())
    typical = math.sqrt(squares / sum(x.size for x in want.values()))
    worst, where = 0.0, ""
    for path, x in want.items():
        scale = max(float(np.abs(x).max(initial=0.0)), typical)
        size = _difference(got[path], x) / scale if scale else 0.0
        if size > worst:
            worst, where = size, path
    return Comparison(
        way=way, what=what, largest=worst, tolerance=bound.rounding, where=where,
        reason=bound.reasons[0],
    )  # fmt: skip


def distance(got: Any, want: Any) -> float:
    """The Euclidean distance of two trees of arrays."""
    got, want = host(got), host(want)
    return math.sqrt(
        sum(float(np.sum(np.square(got[p] - x, dtype=np.float64))) for p, x in want.items())
    )


def moved_alike(way: str, got: Any, want: Any, start: Any, bound: Bounds) -> Comparison:
    """Parameters within `Bounds.drift` of the way that they went from `start`.

    Raises:
        SpecError: when they went nowhere.
    """
    gone = distance(start, want)
    if not gone:
        raise SpecError(
            "the parameters did not move in these steps, so that nothing can be compared; take "
            "more steps, or a schedule whose rate is not zero."
        )
    share = distance(got, want) / gone
    return Comparison(
        way=way, what="parameters at the end", largest=share if math.isfinite(share) else math.inf,
        tolerance=bound.drift, where="all of them" if share else "", reason=bound.reasons[1],
    )  # fmt: skip


def losses_alike(
    way: str, got: list[Any], want: list[Any], bound: Bounds, gone: float
) -> Comparison:
    """Losses of the steps, per token, within what their parameters' drift explains.

    Args:
        way: what was done differently.
        got, want: the metrics of every step.
        bound: what rounding may do.
        gone: how far the parameters went.
    """
    worst, where = 0.0, ""
    for i, (one, two) in enumerate(zip(got, want, strict=True)):
        tokens = float(two["sums"]["tokens"])
        loss, other = float(two["sums"]["nats"]) / tokens, float(one["sums"]["nats"]) / tokens
        allowed = bound.rounding * loss
        if i:  # at the first step the parameters are the same
            allowed += bound.drift * float(two["gradient_norm"]) * gone
        size = abs(other - loss) / allowed
        if not size <= worst:
            worst, where = size, f"step {i} after the checkpoint"
    return Comparison(
        way=way, what="losses", largest=worst if math.isfinite(worst) else math.inf, tolerance=1.0,
        where=where if worst else "",
        reason="share of what is allowed: τ of the loss, and after the first step |gradient| times "
        "the drift of the parameters (Cauchy–Schwarz, first order)",
    )  # fmt: skip


def equal(way: str, what: str, got: Any, want: Any) -> Comparison:
    """Plain data."""
    largest = 0.0 if got == want else math.inf
    where = "" if got == want else f"{got} instead of {want}"[:200]
    return Comparison(
        way=way, what=what, largest=largest, tolerance=0.0, where=where, reason="the same place"
    )

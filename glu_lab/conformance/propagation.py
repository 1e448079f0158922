"""How large the numbers inside an FFN are at the start, by theory, in float64.

Weights are independent of one another and of the rows, with mean 0 and standard deviations σ_i (of
branch i) and σ_o. Given a row x, the pre-activations of all channels and branches are then
independent of each other: sums of D terms, normal to good approximation (exactly, for normal
weights), with

    Var(z_i | x) = |x|²·σ_i² + mean b_i²         = D·σ_i²·v_x for a row of mean square v_x
    E[H^k | x]   = Π_i E[ f_i(z_i)^k ]           f_i = post(φ(pre(scale_i · z_i))) + offset_i
    E[Y² | x]    = output_scale² · ( F·σ_o²·E[H²] / (1 − p) + mean b_o² )

with the probability p of dropping a hidden element. The factorisation needs no more than that the
branches' weights are independent: branches that read the same row are so *given* the row. It fails
where rows and weights depend on each other, as they do after training. Means over rows of different
lengths |x| are taken last.

Expectations under the normal density are Gauss–Legendre sums over short panels, which a kink of φ
does not hurt; the error of one Gauss–Hermite rule over the whole line would fall as 1/n there.
Source of the argument: He et al. 2015 (arXiv 1502.01852), here for a product of branches.

Dimension letters: D d_model, F d_ff, N branches, T rows.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from glu_lab.layers.params import Parameter
from glu_lab.oracle import functions
from glu_lab.spec.ffn import FFN, Branch, Clamp

#: The normal density beyond ±12 standard deviations is below 10⁻³².
_REACH = 12.0
_PANELS, _NODES = 96, 24

#: T beyond which lengths of rows are represented by as many of their quantiles.
_LENGTHS = 33


@functools.cache
def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of ∫ g(u)·n(u) du for the standard normal density n."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    edges = np.linspace(-_REACH, _REACH, _PANELS + 1)  # 0 is an edge: the kink of ReLU
    half = (edges[1:] - edges[:-1])[:, None] / 2
    u = ((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel()
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    return u, (half * weights).ravel() * density


def expectation(values: Float[np.ndarray, " Q"]) -> float:
    """E[g(u)] of a standard normal u, from the values g takes at `nodes`."""
    return float(values @ _rule()[1])


def nodes() -> Float[np.ndarray, " Q"]:
    """Where `expectation` wants values."""
    return _rule()[0]


class Moments(NamedTuple):
    """Of one branch at a normal pre-activation.

    Attributes:
        argument: E[a²] of the clamped argument of φ.
        first, second: E[f] and E[f²] of the branch's factor.
    """

    argument: float
    first: float
    second: float


def _clamped(x: np.ndarray, bounds: Clamp | None) -> np.ndarray:
    return x if bounds is None else np.clip(x, *bounds)


def branch_moments(branch: Branch, std: float, learned: Mapping[str, Any] | None = None) -> Moments:
    """Moments of a branch whose affine result, before `scale`, is normal with mean 0.

    Args:
        branch: which function.
        std: standard deviation of xW + b.
        learned: the scalars of a learned activation; by default their initial values.
    """
    scalars = dict(branch.activation.row.learned) if learned is None else learned
    a = _clamped(branch.scale * std * nodes(), branch.pre)
    factor = _clamped(functions.value(branch.activation, a, scalars), branch.post) + branch.offset
    return Moments(expectation(a**2), expectation(factor), expectation(factor**2))


class Weights(NamedTuple):
    """What the theory needs of an FFN's parameters.

    Attributes:
        branches: σ_i of every branch.
        output: σ_o.
        biases: mean square of every branch's bias, 0 where there is none.
        product_bias: mean and mean square of the product's bias.
        output_bias: mean square of the output's bias.
        learned: by branch, the scalars of its activation; None for their initial values.
    """

    branches: tuple[float, ...]
    output: float
    biases: tuple[float, ...] = ()
    product_bias: tuple[float, float] = (0.0, 0.0)
    output_bias: float = 0.0
    learned: Sequence[Mapping[str, Any]] | None = None


def stated_weights(spec: FFN, table: Mapping[str, Parameter]) -> Weights:
    """The spreads that one layer's initialisers state; biases start at zero."""

    def stddev(p: Parameter) -> float:
        return p.init.stddev(p.size(p.inputs), p.size(p.outputs))

    return Weights((stddev(table["wi"]),) * spec.num_branches, stddev(table["wo"]))


def held_weights(spec: FFN, params: Mapping[str, Any], layer: int) -> Weights:
    """The spreads of one layer's weights as they are.

    Args:
        spec: which function.
        params: of the stack's FFNs, stacked along L.
        layer: which of them.
    """
    own = {name: np.asarray(value[layer], np.float64) for name, value in params.items()}

    def square(name: str) -> float:
        return float(np.mean(own[name] ** 2)) if name in own else 0.0

    return Weights(
        branches=tuple(np.sqrt(np.mean(own["wi"] ** 2, axis=(0, 2))).tolist()),
        output=math.sqrt(square("wo")),
        biases=tuple(square(f"bi_{i}") for i in range(spec.num_branches)),
        product_bias=(float(np.mean(own["bp"])) if "bp" in own else 0.0, square("bp")),
        output_bias=square("bo"),
        learned=[
            {name: own[f"phi_{i}_{name}"] for name in branch.activation.row.learned}
            for i, branch in enumerate(spec.branches)
        ],
    )


class Propagation(NamedTuple):
    """Second moments, over rows and channels.

    Attributes:
        arguments: of every branch's clamped argument of φ.
        factors: of every branch's factor.
        product: of H, before dropout.
        output: of Y.
    """

    arguments: tuple[float, ...]
    factors: tuple[float, ...]
    product: float
    output: float


def propagate(
    spec: FFN, weights: Weights, squared_lengths: Any, dropped: float = 0.0
) -> Propagation:
    """The second moments that the theory predicts.

    Args:
        spec: which function.
        weights: their spreads.
        squared_lengths: |x|² of every row, T of them.
        dropped: p, the probability with which hidden elements are dropped.
    """
    lengths, shares = _represented(np.asarray(squared_lengths, np.float64).ravel())
    biases = weights.biases or (0.0,) * spec.num_branches
    rows = []
    for squared in lengths:
        moments = [
            branch_moments(
                branch,
                math.sqrt(squared * sigma**2 + bias),
                None if weights.learned is None else weights.learned[i],
            )
            for i, (branch, sigma, bias) in enumerate(
                zip(spec.branches, weights.branches, biases, strict=True)
            )
        ]
        mean, square = weights.product_bias
        first = math.prod(m.first for m in moments)
        product = math.prod(m.second for m in moments) + 2 * first * mean + square
        summed = spec.d_ff * weights.output**2 * product / (1 - dropped) + weights.output_bias
        rows.append(
            (
                *(m.argument for m in moments),
                *(m.second for m in moments),
                product,
                spec.output_scale**2 * summed,
            )
        )
    *branches, product, output = np.average(rows, axis=0, weights=shares).tolist()
    n = spec.num_branches
    return Propagation(tuple(branches[:n]), tuple(branches[n:]), product, output)


def _represented(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Few values, and how many each stands for, over which a smooth function has its mean."""
    if np.ptp(values) <= 1e-9 * values.max():
        return values[:1], np.ones(1)
    # Means of equal parts of the sorted values: the mean of all of them stays exact.
    parts = np.array_split(np.sort(values), min(_LENGTHS, values.size))
    return np.array([part.mean() for part in parts]), np.array([part.size for part in parts])

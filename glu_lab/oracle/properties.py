"""What is true of every position-wise product of branches, whoever computes it.

A property is a theorem about the formula: an implementation that mixes positions, exchanges
branches or forgets a path breaks one whatever else it gets right. Each is measured on a `Subject`
in float64 and gives its error as a share of what rounding explains; at most 1 holds.

Dimension letters: T rows, D d_model, F d_ff, N branches.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from glu_lab.errors import UnknownNameError
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle.tolerances import UNIT_ROUNDOFF, share, tolerance
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN

Arrays = Mapping[str, np.ndarray]
Rows = Float[np.ndarray, "T D"]


class Subject(NamedTuple):
    """An implementation under test, in float64.

    Attributes:
        forward: (params, x, spec) → Y.
        backward: (params, x, spec, upstream) → gradients by x and by each parameter.
    """

    forward: Callable[[Arrays, Rows, FFN], Any]
    backward: Callable[[Arrays, Rows, FFN, Rows], tuple[Any, Mapping[str, Any]]]


ORACLE = Subject(oracle.forward, oracle.backward)


class Property(NamedTuple):
    """One property.

    Attributes:
        statement: what holds.
        applies: whether it says something of a Spec.
        measure: (subject, params, x, spec) → the error as a share of what rounding explains.
    """

    statement: str
    applies: Callable[[FFN], bool]
    measure: Callable[[Subject, Arrays, Rows, FFN], float]


def _longest(spec: FFN) -> int:
    return max(spec.d_model, spec.d_ff)


def _outputs(got: Any, want: Any, params: Arrays, x: Rows, spec: FFN) -> float:
    """Outputs against one another: both carry the errors of an FFN."""
    bound = tolerance("float64", "float64", _longest(spec))
    return share(got, want, oracle.spread(params, x, spec), bound) / 2


def _share(got: Any, want: Any, spec: FFN, terms: int = 0) -> float:
    """Gradients and differences of outputs, by the worst case of three sums in a row.

    Three products of matrices, each with n·u of the largest element for either side, and as much
    again for the pointwise part: 8·n·u.
    """
    n = max(_longest(spec), terms)
    allowed = 8 * n * UNIT_ROUNDOFF["float64"] * max(float(np.max(np.abs(want))), 1.0)
    return float(np.max(np.abs(np.asarray(got) - want))) / allowed


def _permutation(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    order = np.roll(np.arange(len(x)), 1)
    moved = subject.forward(params, x[order], spec)
    return _outputs(
        moved, np.asarray(subject.forward(params, x, spec))[order], params, x[order], spec
    )


def _jacobian(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> np.ndarray:
    """∂Y/∂x of a subject, (T, D, T, D): [input row, input, output row, output]."""
    out = np.zeros((*x.shape, *x.shape))
    for t, d in np.ndindex(*x.shape):
        upstream = np.zeros(x.shape)
        upstream[t, d] = 1.0
        out[:, :, t, d] = np.asarray(subject.backward(params, x, spec, upstream)[0])
    return out


def _block_diagonal(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    full = _jacobian(subject, params, x, spec)
    between = ~np.eye(len(x), dtype=bool)
    # Rows that do not meet leave exact zeros: not even rounding can couple them.
    if np.any(full.transpose(0, 2, 1, 3)[between]):
        return math.inf
    blocks = np.stack([full[t, :, t, :] for t in range(len(x))])
    return _share(blocks, oracle.jacobian(params, x, spec), spec)


def convolution(
    x: Float[np.ndarray, "T D"], kernel: Float[np.ndarray, "K D F"]
) -> Float[np.ndarray, "T F"]:
    """A convolution over positions as neural networks write it: odd width K, padded with zeros."""
    reach = len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(kernel), axis=0)
    return np.einsum("tdk,kdf->tf", windows, kernel)


def _kernel_one(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    results = []
    for i, branch in enumerate(spec.branches):
        bias = params[f"bi_{i}"] if branch.bias else 0.0
        results.append(convolution(x, params["wi"][None, :, i, :]) + bias)
    summed = convolution(oracle.hidden(params, results, spec), params["wo"][None])
    y = spec.output_scale * (summed + (params["bo"] if spec.output_bias else 0.0))
    return _outputs(subject.forward(params, x, spec), y, params, x, spec)


#: φ that are polynomials on each side of 0, and their degree.
_DEGREE = {"linear": 1, "relu": 1, "relu2": 2}


def degree(spec: FFN) -> int | None:
    """The degree of Y as a polynomial of x in a region without kinks; None where it is none."""
    degrees = [_DEGREE.get(branch.activation.name) for branch in spec.branches]
    clamped = any(branch.pre or branch.post for branch in spec.branches)
    return None if clamped or None in degrees else sum(d for d in degrees if d is not None)


def differences(
    subject: Subject, params: Arrays, x: Rows, step: Rows, spec: FFN, order: int
) -> tuple[np.ndarray, float]:
    """The difference of Y of an order at x, x + step, …, and the most that rounding makes of it.

    Zero for a polynomial of lower degree.
    """
    points = [x + k * step for k in range(order + 1)]
    signs = [(-1) ** (order - k) * math.comb(order, k) for k in range(order + 1)]
    values = [np.asarray(subject.forward(params, point, spec)) for point in points]
    largest = max(float(np.max(np.abs(oracle.spread(params, point, spec)))) for point in points)
    # The errors of the values add with the weights of the difference; a point's own rounding
    # counts as one more intermediate.
    bound = 2 * tolerance("float64", "float64", _longest(spec)).atol * largest
    return np.asarray(sum(s * v for s, v in zip(signs, values, strict=True))), bound * 2**order


def _polynomial(subject: Subject, params: Arrays, x: Rows, step: Rows, spec: FFN) -> float:
    """Y along a line is a polynomial of the Spec's degree: not of more, and not of less."""
    exact = degree(spec)
    assert exact is not None
    beyond, bound = differences(subject, params, x, step, spec, exact + 1)
    within, least = differences(subject, params, x, step, spec, exact)
    # Where every ReLU is off, even the right Y is a constant.
    alive = np.max(np.abs(differences(ORACLE, params, x, step, spec, exact)[0])) > 2 * least
    if alive and np.max(np.abs(within)) <= least:
        return math.inf
    return float(np.max(np.abs(beyond))) / bound


def without_phi(spec: FFN) -> FFN:
    """The Spec with every φ removed, and every clamp with it."""
    bare = [
        dataclasses.replace(branch, activation=Activation("linear"), pre=None, post=None)
        for branch in spec.branches
    ]
    return spec.replace(branches=tuple(bare))


def _line(x: Rows) -> Rows:
    """A direction for every row, the same in every run."""
    return np.random.default_rng(7).normal(size=x.shape)


def _collapse(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    bare = without_phi(spec)
    kept = {name: params[name] for name in oracle.shapes(bare)}
    worst = _polynomial(subject, kept, x, _line(x), bare)
    branch, *gates = bare.branches
    if gates:
        return worst
    matrix = _jacobian(subject, kept, x, bare)[0, :, 0, :]
    # The bound on the rank is that of this product.
    product = bare.output_scale * branch.scale * kept["wi"][:, 0, :] @ kept["wo"]
    affine = x @ product + np.asarray(subject.forward(kept, np.zeros_like(x), bare))
    return max(
        worst,
        _share(matrix, product, bare),
        _outputs(subject.forward(kept, x, bare), affine, kept, x, bare),
    )


def within_region(params: Arrays, x: Rows, spec: FFN, points: int) -> Rows:
    """A step that keeps every pre-activation of every row on its side of 0 for some points."""
    step = _line(x)
    origin = oracle.affine(params, np.zeros_like(x), spec)
    nearest = math.inf
    for z, moved, start in zip(
        oracle.affine(params, x, spec), oracle.affine(params, step, spec), origin, strict=True
    ):
        nearest = min(nearest, float(np.min(np.abs(z) / np.abs(moved - start))))
    return step * (0.9 * nearest / points)


def _region(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    exact = degree(spec)
    assert exact is not None
    return _polynomial(subject, params, x, within_region(params, x, spec, exact + 1), spec)


def _outer_products(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    upstream = _line(x)
    _, together = subject.backward(params, x, spec, upstream)
    results = oracle.affine(params, x, spec)
    kept = oracle.hidden(params, results, spec)
    sums = {name: np.zeros(np.shape(params[name])) for name in ("wi", "wo")}
    worst = 0.0
    for t in range(len(x)):
        alone = np.zeros_like(upstream)
        alone[t] = upstream[t]
        _, grads = subject.backward(params, x, spec, alone)
        by_row = {name: np.asarray(grads[name]) for name in sums}
        # The second factor is read from the gradient itself where the first is largest.
        lead = int(np.argmax(np.abs(x[t])))
        second = by_row["wi"][lead] / x[t, lead]
        worst = max(
            worst,
            _share(by_row["wi"], x[t][:, None, None] * second, spec),
            _share(by_row["wo"], np.outer(kept[t], spec.output_scale * upstream[t]), spec),
        )
        sums = {name: sums[name] + by_row[name] for name in sums}
    return max(worst, *(_share(together[name], sums[name], spec, len(x)) for name in sums))


def exchanged(params: Arrays, spec: FFN, order: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Parameters with the branches' weights and biases in another order; the Spec stays.

    Scalars of learned activations belong to their φ and stay with it; a bias that comes to a branch
    without one is lost.
    """
    out = dict(params)
    out["wi"] = params["wi"][:, list(order), :]
    zero = np.zeros(spec.d_ff)
    for i, branch in enumerate(spec.branches):
        if branch.bias:
            out[f"bi_{i}"] = params.get(f"bi_{order[i]}", zero)
    return out


def _exchange(subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float:
    worst = 0.0
    y, right = (np.asarray(each.forward(params, x, spec)) for each in (subject, ORACLE))
    for i, j in itertools.combinations(range(len(spec.branches)), 2):
        order = list(range(len(spec.branches)))
        order[i], order[j] = j, i
        swapped = exchanged(params, spec, tuple(order))
        moved = _outputs(subject.forward(swapped, x, spec), y, params, x, spec)
        if _alike(params, spec, i, j):
            worst = max(worst, moved)
        elif moved <= 1 < _outputs(ORACLE.forward(swapped, x, spec), right, params, x, spec) / 2:
            # Branches that differ as functions may still meet: where every ReLU is off.
            return math.inf
    return worst


def _alike(params: Arrays, spec: FFN, i: int, j: int) -> bool:
    """Whether two branches are one function of their weights and biases."""
    first, second = spec.branches[i], spec.branches[j]
    learned = first.activation.row.learned
    return first == second and all(
        np.array_equal(params[f"phi_{i}_{name}"], params[f"phi_{j}_{name}"]) for name in learned
    )


def _always(spec: FFN) -> bool:
    return True


PROPERTIES: Mapping[str, Property] = {
    "permutation": Property(
        "permuted rows give permuted outputs",
        _always,
        _permutation,
    ),
    "jacobian": Property(
        "the Jacobian is block diagonal over rows, and a block is Σ_i W_i diag(∂H/∂z_i) W_o; of a "
        "gated pair [W_g diag(U ⊙ φ′(G)) + W_u diag(φ(G))] W_o",
        _always,
        _block_diagonal,
    ),
    "kernel_one_convolution": Property(
        "both projections are convolutions over positions of width one",
        _always,
        _kernel_one,
    ),
    "collapse": Property(
        "without φ, Y is a polynomial of degree N in x; with one branch an affine map with the "
        "matrix W_1 W_o, of rank min(d_model, d_ff) at most",
        _always,
        _collapse,
    ),
    "region": Property(
        "where no ReLU changes side, Y is a polynomial in x; a dense ReLU's is affine",
        lambda spec: degree(spec) is not None,
        _region,
    ),
    "outer_products": Property(
        "a row adds an outer product to each weight's gradient, x_t ⊗ g_t and h_t ⊗ g_t, and the "
        "gradient of all rows is their sum",
        _always,
        _outer_products,
    ),
    "branch_exchange": Property(
        "exchanging the weights of two branches leaves Y as it is when their φ, scales, clamps and "
        "offsets are equal and both have a bias or neither, and changes it otherwise",
        lambda spec: len(spec.branches) > 1,
        _exchange,
    ),
}


def measure(name: str, subject: Subject, params: Arrays, x: Rows, spec: FFN) -> float | None:
    """The error of one property as a share of what rounding explains; None where it says nothing.

    Args:
        name: a row of `PROPERTIES`.
        subject: the implementation.
        params: float64 parameters by canonical name, in general position (no zeros, no equals).
        x: rows, in general position.
        spec: without dropout.

    Raises:
        UnknownNameError: for a property that is in no row.
    """
    if name not in PROPERTIES:
        raise UnknownNameError("property", name, PROPERTIES)
    row = PROPERTIES[name]
    return row.measure(subject, params, x, spec) if row.applies(spec) else None

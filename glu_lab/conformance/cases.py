"""The axes of the matrix but executions and layouts, and the arrays of one point on them.

Dimension letters: B batch, S sequence, T = B·S rows, D d_model, F d_ff, N branches.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from glu_lab.oracle import ffn as oracle
from glu_lab.spec.activation import ACTIVATIONS
from glu_lab.spec.ffn import FFN
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.variants import VARIANTS, branches_of, variant

#: Builds a Spec of one function at any widths.
Build = Callable[[int, int], FFN]


def _plain(text: str, d_model: int, d_ff: int) -> FFN:
    return variant(text, d_model=d_model, d_ff=d_ff, bias=False)


def _biased(text: str, d_model: int, d_ff: int) -> FFN:
    return variant(text, d_model=d_model, d_ff=d_ff, bias=True)


def _product_biased(text: str, d_model: int, d_ff: int) -> FFN:
    """One bias after the product and one at the end, as TransformerLens has them."""
    return _plain(text, d_model, d_ff).replace(product_bias=True, output_bias=True)


def _everything(text: str, d_model: int, d_ff: int) -> FFN:
    """Every term of the formula; the first branch's clamps, where it has none, in normal reach."""
    spec = _biased(text, d_model, d_ff).replace(product_bias=True, output_scale=0.7)
    first, *others = spec.branches
    first = dataclasses.replace(
        first,
        scale=1.3,
        pre=first.pre or (-1.5, 2.0),
        post=(-0.2, 1.4),
        offset=first.offset or 0.25,
    )
    return spec.replace(branches=(first, *others))


#: What is added to a bare product, by the ending of the Spec's name.
_FORMS: Mapping[str, Callable[[str, int, int], FFN]] = {
    "": _plain,
    "+bias": _biased,
    "+all": _everything,
}

#: Beside the named variants: the activations that none of them has, equal branches, and three.
PRODUCTS = ("tanh", "swish(1.5)*linear", "swish_learned*linear", "xielu", "silu*tanh*linear")


def specs_of(texts: Iterable[str]) -> dict[str, Build]:
    """Three Specs of each variant: bare, with biases, and with every term of the formula.

    Args:
        texts: names or products, as `glu_lab.spec.variants.variant` reads them.

    Raises:
        SpecError: for a text that is no variant.
    """
    table = {}
    for text in texts:
        branches_of(text)
        for ending, form in _FORMS.items():
            table[f"{text}{ending}"] = functools.partial(form, text)
    return table


SPECS: Mapping[str, Build] = {
    **specs_of((*VARIANTS, *PRODUCTS)),
    "swiglu+product_bias": functools.partial(_product_biased, "swiglu"),
}


class Shape(NamedTuple):
    """Sizes of one case.

    Attributes:
        batch, positions: B and S.
        d_model, d_ff: D and F.
        strided: whether rows and weights are handed over as views that are not contiguous.
    """

    batch: int
    positions: int
    d_model: int
    d_ff: int
    strided: bool = False

    @property
    def rows(self) -> int:
        """T."""
        return self.batch * self.positions


SHAPES: Mapping[str, Shape] = {
    "many_rows": Shape(4, 8, 8, 16),
    "one_row": Shape(1, 1, 8, 16),
    "odd_rows": Shape(3, 5, 8, 16),
    "odd_widths": Shape(2, 4, 7, 13),
    "below_128": Shape(1, 4, 127, 255),
    "at_128": Shape(1, 4, 128, 256),
    "above_128": Shape(1, 4, 129, 257),
    "strided": Shape(2, 4, 8, 16, strided=True),
}

DTYPES: Mapping[str, Numerics] = {
    "float64": Numerics.uniform("float64"),
    "float32": Numerics(),
    "bfloat16": Numerics(compute_dtype="bfloat16"),
    "float16": Numerics(compute_dtype="float16"),
}

MODES: Mapping[str, str] = {
    "inference": "the output alone",
    "training": "output, and the gradients by the rows and every weight",
    "dropout": "the same with a dropped hidden state, whose mask backward needs again",
}

DROPOUT = 0.3

# Probes: rows (T, D) in float64, from a generator and the dtype that they will be rounded to.

#: Beyond these |x| every φ is saturated, and products of three still fit the dtype.
_TAIL = {"float64": 800.0, "float32": 110.0, "bfloat16": 110.0, "float16": 12.0}
#: Products of two of these are normal numbers, but in float16.
_NEAR = {"float64": 2.0**-100, "float32": 2.0**-50, "bfloat16": 2.0**-50, "float16": 2.0**-10}


def _normal(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    return rng.normal(size=(rows, width))


def _near_zero(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    return _NEAR[dtype] * rng.normal(size=(rows, width))


def _zeros(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    return np.where(rng.random((rows, width)) < 0.5, 0.0, -0.0)


def _tails(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    return _TAIL[dtype] * rng.normal(size=(rows, width))


def _nonfinite(rng: np.random.Generator, rows: int, width: int, dtype: str) -> np.ndarray:
    x = rng.normal(size=(rows, width))
    # In rows of their own, and other rows between them.
    for row, value in ((0, np.inf), (2, np.nan), (3, -np.inf)):
        if row < rows:
            x[row, row % width] = value
    return x


PROBES: Mapping[str, Callable[[np.random.Generator, int, int, str], np.ndarray]] = {
    "normal": _normal,
    "near_zero": _near_zero,
    "zeros": _zeros,
    "tails": _tails,
    "nonfinite": _nonfinite,
}


class Case(NamedTuple):
    """The arrays of one point, already rounded to their dtypes.

    Attributes:
        spec: with the widths of the shape.
        numerics: of the dtype.
        params: by canonical name, in ``numerics.parameter_dtype``.
        x, upstream: rows and the gradient by the output, (B, S, D) in ``numerics.compute_dtype``.
    """

    spec: FFN
    numerics: Numerics
    params: dict[str, np.ndarray]
    x: np.ndarray
    upstream: np.ndarray


def spec_at(build: Build, shape: Shape, mode: str) -> FFN:
    """A Spec at the widths of a shape, with dropout where the mode drops."""
    spec = build(shape.d_model, shape.d_ff)
    return spec.replace(hidden_dropout=DROPOUT) if mode == "dropout" else spec


def rounded(values: Any, compute: str, store: str) -> np.ndarray:
    """Values of a narrow dtype, in a dtype that holds them exactly."""
    # NumPy knows bfloat16 by the registration of ml_dtypes.
    import ml_dtypes

    narrow = np.dtype(getattr(ml_dtypes, compute, compute))
    wide = np.dtype(getattr(ml_dtypes, store, store))
    return np.asarray(values).astype(narrow).astype(wide)


def strided(array: np.ndarray) -> np.ndarray:
    """The same values as a view of every second element, backwards along the last axis."""
    if not array.ndim:
        return array
    held = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = held[..., ::-2]
    view[...] = array
    return view


def draw(spec: FFN, shape: Shape, dtype: str, probe: str, seed: int = 0) -> Case:
    """The arrays of a case; the same in every run.

    Args:
        spec: at the widths of the shape.
        shape: a row of `SHAPES`.
        dtype: a row of `DTYPES`.
        probe: a row of `PROBES`.
        seed: of another draw.
    """
    numerics = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    scales = {"wi": 1 / math.sqrt(spec.d_model), "wo": 1 / math.sqrt(spec.d_ff)}
    params = {}
    for name, size in oracle.shapes(spec).items():
        values = scales.get(name, 0.5) * rng.normal(size=size)
        if name.startswith("phi_"):
            _, branch, scalar = name.split("_", 2)
            row = ACTIVATIONS[spec.branches[int(branch)].activation.name]
            values = row.learned[scalar] + values
        params[name] = rounded(values, numerics.compute_dtype, numerics.parameter_dtype)
    x = PROBES[probe](rng, shape.rows, spec.d_model, dtype)
    upstream = rng.normal(size=x.shape)
    size = (shape.batch, shape.positions, spec.d_model)
    x, upstream = (
        rounded(values.reshape(size), numerics.compute_dtype, numerics.compute_dtype)
        for values in (x, upstream)
    )
    if shape.strided:
        params = {name: strided(value) for name, value in params.items()}
        x, upstream = strided(x), strided(upstream)
    return Case(spec, numerics, params, x, upstream)

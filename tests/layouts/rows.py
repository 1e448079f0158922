"""Specs and parameters for the tests of any row of the table."""

import dataclasses

import ml_dtypes
import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layers import ffn
from glu_lab.layouts import LAYOUTS, variants_of
from glu_lab.layouts.biases import check_biases, with_required_biases
from glu_lab.spec import variant
from glu_lab.spec.ffn import FFN

#: Sizes of leading axes.
SIZES = {"layer": 3, "expert": 2}

#: Functions for layouts that store any: one, two and three branches, learned scalars.
ANY = ("xielu", "swiglu", "silu*swish_learned*linear")


def width(layout):
    """What F must be a multiple of."""
    return max(row.interleave for row in layout.tensors)


def functions(layout):
    """Variants of each number of branches that a layout can store."""
    texts = variants_of(layout)
    if not texts:
        return ANY
    if layout.function.each_branch:
        return ("relu", "silu*linear", "gelu_tanh*silu*linear")
    counts = {}
    for text in texts:
        counts.setdefault(variant(text, d_model=1, d_ff=1).num_branches, text)
    return tuple(counts.values())


def specs(layout, d_model, d_ff):
    """Specs of a layout, with as few and with as many biases as it can store."""
    made = []
    for text in functions(layout):
        least = with_required_biases(layout, variant(text, d_model=d_model, d_ff=d_ff, bias=False))
        made.append(least)
        for output in (True, False):
            biased = tuple(dataclasses.replace(b, bias=True) for b in least.branches)
            most = least.replace(branches=biased, output_bias=output)
            for product in (True, False):
                candidate = most.replace(product_bias=product)
                try:
                    check_biases(layout, candidate)
                except LayoutError:
                    continue
                if candidate not in made:
                    made.append(candidate)
    return made


def leadings(layout):
    """The combinations of leading axes that a layout can store."""
    rows = layout.tensors
    named = any("{expert}" in row.name for row in rows)
    axes = {axis for row in rows for axis in row.axes.replace("(", " ").replace(")", " ").split()}
    experts = [("expert",)] if named or "expert" in axes else [()]
    layers = [("layer",)] if "layer" in axes else [(), ("layer",)]
    if "expert?" in axes:
        experts = [(), ("expert",)]
    return [layer + expert for layer in layers for expert in experts]


def random_params(spec: FFN, leading=(), dtype="float32", seed=0):
    """Parameters of random bits, NaNs and infinities among them: what is moved must not change."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    sizes = tuple(SIZES[axis] for axis in leading)
    made = {}
    for name, parameter in ffn.parameters(spec).items():
        shape = (*sizes, *parameter.shape)
        count = int(np.prod(shape, dtype=int)) * dtype.itemsize
        made[name] = np.frombuffer(rng.bytes(count), dtype).reshape(shape)
    return made


def normal_params(spec: FFN, leading=(), seed=0):
    """Parameters that a function can be evaluated with."""
    rng = np.random.default_rng(seed)
    sizes = tuple(SIZES[axis] for axis in leading)
    return {
        name: rng.normal(size=(*sizes, *parameter.shape))
        for name, parameter in ffn.parameters(spec).items()
    }


def bits(array):
    """An array's shape, dtype and bytes."""
    array = np.asarray(array)
    return array.shape, array.dtype, np.ascontiguousarray(array).tobytes()


def assert_same(got, want):
    """Two mappings of arrays, bit for bit."""
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert bits(got[name]) == bits(array), name


DTYPES = (
    "float64",
    "float32",
    "float16",
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)

NAMES = tuple(LAYOUTS)

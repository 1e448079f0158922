"""Specs and arrays that the oracle is measured on."""

import dataclasses

import numpy as np

from glu_lab.oracle import ffn as oracle
from glu_lab.spec import VARIANTS, Activation, Branch, variant

D, F = 4, 6

#: Every named variant, and what has learned scalars, equal branches, constants or three branches.
TEXTS = (
    *VARIANTS,
    "silu*silu",
    "swish(1.5)*linear",
    "swish_learned*linear",
    "xielu",
    "xielu*swish_learned*tanh",
)


def plain(text):
    return variant(text, d_model=D, d_ff=F)


def everything(text):
    """A Spec with every term of the formula switched on."""
    spec = variant(
        text,
        d_model=D,
        d_ff=F,
        bias=True,
        product_bias=True,
        output_scale=0.7,
        hidden_dropout=0.3,
    )
    first = dataclasses.replace(
        spec.branches[0], scale=1.3, pre=(-1.5, 2.0), post=(-0.2, 1.4), offset=0.25
    )
    return spec.replace(branches=(first, *spec.branches[1:]))


SPECS = {
    **{text: plain(text) for text in TEXTS},
    **{f"{text}, everything": everything(text) for text in TEXTS},
    "one bias of two": plain("swiglu").replace(
        branches=(
            Branch(activation=Activation("silu"), bias=True),
            Branch(activation=Activation("linear")),
        )
    ),
}


def random_params(spec, seed=0, scale=0.8):
    rng = np.random.default_rng(seed)
    return {name: scale * rng.normal(size=shape) for name, shape in oracle.shapes(spec).items()}


def random_rows(*shape, seed=99):
    return np.random.default_rng(seed).normal(size=shape)


def random_mask(spec, rows, seed=3):
    return np.random.default_rng(seed).random((rows, spec.d_ff)) > spec.hidden_dropout

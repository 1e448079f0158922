"""Failures 1 to 5: axes and shapes.

Dimension letters: T rows (S positions), D d_model, F d_ff.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Array

from glu_lab.conformance.failures.functions import Params, draw, layer, numerics_of, sublayer
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.stored import Checkpoint, conversion, stored
from glu_lab.layers import ffn
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant

#: As many positions as channels, so that no shape tells them apart.
SQUARE = variant("swiglu", d_model=4, d_ff=6)


def unchecked(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer without its check of names and shapes, as most code has it."""
    numerics = numerics_of(x.dtype)
    return ffn.down(params, ffn.product(params, x, spec, numerics), numerics)


def across_positions(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer over the positions of each channel."""
    return layer(params, x.T, spec).T


def over_the_sequence(folder: Path) -> list[Planted]:
    """1: rows and channels exchanged."""
    return [
        Planted(
            name="the projections run over the sequence axis, S = D",
            check="permutation",
            fault=sublayer(across_positions, SQUARE),
            clean=sublayer(layer, SQUARE),
        )
    ]


def transposed_rows(folder: Path) -> list[Planted]:
    """2: (D, S) where (S, D) belongs."""
    x = draw(SQUARE, 5)[1]
    return [
        Planted(
            name="rows handed over as (D, S), S ≠ D",
            check="parameters",
            fault=sublayer(unchecked, SQUARE, x=x.T),
            clean=sublayer(unchecked, SQUARE, x=x),
        ),
        Planted(
            name="rows handed over as (D, S), S = D",
            check="jacobian",
            fault=sublayer(across_positions, SQUARE),
            clean=sublayer(layer, SQUARE),
        ),
    ]


def wrong_output_width(folder: Path) -> list[Planted]:
    """3: an output projection that does not return D."""
    params, x = draw(SQUARE, 4)

    def returning(width: int) -> Planted:
        wide = np.tile(params["wo"], 2)[:, :width]
        return Planted(
            name=f"an output projection of width {width} where D = {SQUARE.d_model}",
            check="parameters",
            fault=sublayer(unchecked, SQUARE, params={**params, "wo": wide}, x=x),
            clean=sublayer(unchecked, SQUARE, params=params, x=x),
        )

    # One channel is added to all D of the residual stream without a word.
    return [returning(3), returning(1)]


def four_times_d_model(folder: Path) -> list[Planted]:
    """4: a width by rule of thumb."""
    spec = variant("swiglu", d_model=6, d_ff=11)
    tensors = stored("hf-llama", spec)

    def read_as(d_ff: int, why: str) -> Planted:
        return Planted(
            name=f"{why}: d_ff {d_ff} for a checkpoint of width {spec.d_ff}",
            check="reconciliation",
            fault=Checkpoint(layout="hf-llama", tensors=tensors, spec=spec.replace(d_ff=d_ff)),
            clean=Checkpoint(layout="hf-llama", tensors=tensors, spec=spec),
        )

    return [
        read_as(4 * spec.d_model, "4·d_model taken for a law"),
        read_as(2 * spec.d_ff // 3, "a stated width cut to two thirds"),
    ]


def wrong_orientation(folder: Path) -> list[Planted]:
    """5: (out, in) taken for (in, out)."""
    right = conversion("hf-llama", "t5x", variant("swiglu", d_model=6, d_ff=6))
    (tensors,) = right.target

    def turned(name: str) -> Planted:
        wrong = {**tensors, name: np.ascontiguousarray(tensors[name].T)}
        return Planted(
            name=f"{name} kept as (out, in) in a layout of (in, out), D = F",
            check="row proof",
            fault=right.with_target([wrong]),
            clean=right,
        )

    return [turned(name) for name in tensors if name.startswith(("wi_0", "wo"))]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=1,
        title="The FFN runs across the sequence",
        symptom="Nothing, where S = D: the output has the right shape. Training still converges.",
        cause="The last axis of a transposed array is the position, and each weight now mixes "
        "positions.",
        detector="Permuted rows no longer give permuted outputs.",
        fix="Contract the last axis, d_model, and leave all others alone: '...d,dnf->...nf'.",
        build=over_the_sequence,
    ),
    Failure(
        id=2,
        title="Rows transposed to (batch, d_model, S)",
        symptom="A shape error, unless S = D; then nothing.",
        cause="A convolution's channel order (channels before positions) handed to a linear layer.",
        detector="The last dimension of x must be d_model. Where S = D, the Jacobian between rows "
        "is not zero.",
        fix="Keep d_model last; a kernel-one convolution is the same map with axes moved.",
        build=transposed_rows,
    ),
    Failure(
        id=3,
        title="The output projection does not return d_model",
        symptom="The residual addition fails; with a width of 1 it broadcasts and does not.",
        cause="The second projection built with a width of its own, or its axes exchanged.",
        detector="wo has the shape (d_ff, d_model) of the Spec's table, before anything runs.",
        fix="Take both shapes from one Spec.",
        build=wrong_output_width,
    ),
    Failure(
        id=4,
        title="d_ff = 4·d_model taken for a law",
        symptom="A model of another size that trains; a load fails, or pads and cuts silently.",
        cause="A rule of thumb of two-matrix FFNs in the place of the checkpoint's own width.",
        detector="Every tensor's shape is held against the Spec before it is loaded.",
        fix="Read the width off the config; state it, and build what is stated.",
        build=four_times_d_model,
    ),
    Failure(
        id=5,
        title="Algebraic and nn.Linear orientation confused",
        symptom="Nothing where D = F; the names fit, and the layer computes with Wᵀ.",
        cause="y = xW stores (in, out), nn.Linear (out, in).",
        detector="Known rows through source and target tensors differ.",
        fix="Let the layout state the orientation of every tensor.",
        build=wrong_orientation,
    ),
)

"""Failures 23, 26 and 27: training and runtime.

Dimension letters: T rows, D d_model, F d_ff, B blocks of C channels.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from glu_lab import activations
from glu_lab.conformance.failures.functions import (
    Function,
    FusedGate,
    Params,
    branches,
    layer,
    numerics_of,
    sublayer,
)
from glu_lab.conformance.failures.fused import Kernel, from_parts, gated
from glu_lab.conformance.failures.proposed import Comparison, small_experiment
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.rows.activation import keyed, mask
from glu_lab.layers import ffn
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant
from glu_lab.studies.axes import coupled, variants_matched
from glu_lab.studies.study import Study

_SPEC = variant("swiglu", d_model=4, d_ff=8)
_SILU = Activation("silu")


# 23: what backward is given.


def _silu_gate(gate: Array, up: Array) -> Array:
    return activations.value(_SILU, gate) * up


def _silu_pull_back(gate: Array, up: Array, upstream: Array) -> tuple[Array, Array]:
    by_gate = upstream * up * activations.derivative(_SILU, gate)
    return by_gate, upstream * activations.value(_SILU, gate)


def _from_both(kept: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    return _silu_pull_back(kept[0], kept[1], upstream)


def _from_product_alone(hidden: Array, upstream: Array) -> tuple[Array, Array]:
    """H kept, and taken for φ of a gate beside an up of 1."""
    return _silu_pull_back(hidden, jnp.ones_like(hidden), upstream)


def _slots_exchanged(kept: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    by_gate, by_up = _from_both(kept, upstream)
    return by_up, by_gate


def with_kernel(kernel: Kernel) -> Function:
    """The sublayer with a fused gate between its projections."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        return kernel(*branches(params, x, spec)) @ params["wo"]

    return run


def recomputed(seed_forward: int, seed_backward: int) -> Function:
    """The sublayer with dropout, recomputed for backward by a key that may be another one."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        @jax.custom_vjp
        def sublayer_of(params: Params, x: Array) -> Array:
            return layer(params, x, spec, keyed(seed_forward))

        def backward(kept: Any, upstream: Array) -> Any:
            again = functools.partial(layer, spec=spec, dropout_key=keyed(seed_backward))
            return jax.vjp(again, *kept)[1](upstream)

        sublayer_of.defvjp(lambda p, rows: (sublayer_of(p, rows), (p, rows)), backward)
        return sublayer_of(dict(params), x)

    return run


def lost_branches(folder: Path) -> list[Planted]:
    """23: too little kept, or something else recomputed."""
    right = from_parts(_silu_gate, _from_both)
    product_alone = from_parts(_silu_gate, _from_product_alone, keep=lambda gate, up, h: h)
    dropping = _SPEC.replace(hidden_dropout=0.5)
    keep = mask(dropping, 4, 7)
    return [
        *(
            Planted(
                name=name,
                check="gradients",
                fault=sublayer(with_kernel(kernel), _SPEC),
                clean=sublayer(with_kernel(right), _SPEC),
            )
            for name, kernel in (
                ("only the product is kept for backward", product_alone),
                (
                    "backward returns the two gradients in each other's slot",
                    from_parts(_silu_gate, _slots_exchanged),
                ),
            )
        ),
        Planted(
            name="backward recomputes with another dropout mask",
            check="gradients",
            fault=sublayer(recomputed(7, 8), dropping, keep=keep),
            clean=sublayer(recomputed(7, 7), dropping, keep=keep),
        ),
    ]


# 26: fused kernels.

_GEGLU = variant("geglu_erf", d_model=2, d_ff=1)
_SWIGLU = variant("swiglu", d_model=2, d_ff=1)
_CLAMPED = variant("gpt_oss", d_model=2, d_ff=1, bias=False)

#: Long enough for the roundings of a sum to show.
_LONG = variant("swiglu", d_model=8, d_ff=4096)


def summed_narrowly(blocks: int) -> Function:
    """The output projection in blocks of channels, added up in the dtype of the rows."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        hidden = ffn.product(params, x, spec, numerics_of(x.dtype))
        h_TxBxC = hidden.reshape(len(x), blocks, -1)
        wo_BxCxD = params["wo"].reshape(blocks, -1, spec.d_model)
        parts = jnp.einsum("tbc,bcd->btd", h_TxBxC, wo_BxCxD)

        def add(total: Array, part: Array) -> tuple[Array, None]:
            return total + part, None

        return jax.lax.scan(add, jnp.zeros_like(parts[0]), parts)[0]

    return run


def fused_differently(folder: Path) -> list[Planted]:
    """26: another approximation, clamp, rounding or accumulator than eager mode has."""
    tanh = variant("gelu_tanh", d_model=2, d_ff=1).branches[0].activation
    as_tanh = gated(
        _GEGLU,
        value=lambda x: activations.value(tanh, x),
        slope=lambda x: activations.derivative(tanh, x),
    )
    rounded_first = gated(_SWIGLU, rounded_first=True)
    long = {"dtype": "bfloat16", "accumulate": "float32", "rows": 64}
    return [
        Planted(
            name="tanh-GELU fused where erf-GELU is stated",
            check="fused values",
            fault=FusedGate(function=as_tanh, spec=_GEGLU),
            clean=FusedGate(function=gated(_GEGLU), spec=_GEGLU),
        ),
        Planted(
            name="the clamp at ±7 on the gate alone",
            check="fused values",
            fault=FusedGate(function=gated(_CLAMPED, clamped=(0,)), spec=_CLAMPED),
            clean=FusedGate(function=gated(_CLAMPED), spec=_CLAMPED),
        ),
        *(
            Planted(
                name=f"φ rounded {when} the product, stated as rounding by {stated}",
                check="rounding point",
                fault=FusedGate(function=wrong, spec=_SWIGLU, rounding_point=stated),
                clean=FusedGate(function=right, spec=_SWIGLU, rounding_point=stated),
            )
            for when, stated, wrong, right in (
                ("before", "product", rounded_first, gated(_SWIGLU)),
                ("after", "branch", gated(_SWIGLU), rounded_first),
            )
        ),
        Planted(
            name="the output projection summed in bfloat16, stated as float32",
            check="oracle",
            fault=sublayer(summed_narrowly(512), _LONG, **long),
            clean=sublayer(layer, _LONG, **long),
        ),
    ]


# 27: budgets.


def same_width(folder: Path) -> list[Planted]:
    """27: equal d_ff, or another model around it, called matched."""
    base = small_experiment("relu")
    matched = variants_matched(["relu", "swiglu"], base, round_to=4)

    def proposed(axes: Any, tolerance: float = 0.0) -> Comparison:
        study = Study(
            name="matched",
            question="Is the gate better?",
            base=base,
            axes=axes,
            baseline="relu",
            seeds=(0,),
            tolerance=tolerance,
        )
        return Comparison(study)

    relu, swiglu = matched
    equal = {**swiglu.overlay, "model.ffn.d_ff": base.model.ffn.d_ff}
    deeper = {**swiglu.overlay, "model.num_layers": base.model.num_layers + 1}
    return [
        Planted(
            name=name,
            check="matched budget",
            fault=proposed(coupled({"relu": relu.overlay, "swiglu": overlay}), tolerance),
            clean=proposed(matched, tolerance),
        )
        for name, overlay, tolerance in (
            (f"two and three matrices at d_ff {base.model.ffn.d_ff}", equal, 0.0),
            ("the same, within a tolerance of a tenth", equal, 0.1),
            ("FFNs matched, and a layer more", deeper, 0.0),
        )
    ]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=23,
        title="Backward given the product alone, or another forward",
        symptom="The forward pass is right to the bit; the loss still falls, and stops too high.",
        cause="Many pairs (gate, up) have one product H: it fixes neither, nor their gradients. "
        "Recomputing with another key is another function.",
        detector="The gradient by each weight, by name, is held against the oracle's.",
        fix="Keep both pre-activations, or recompute them from x with the same key.",
        build=lost_branches,
    ),
    Failure(
        id=26,
        title="A fused activation that is not the eager one",
        symptom="Agrees to two digits; drifts over layers, or at the edges of the range.",
        cause="Another GELU, a clamp on one path of two, an earlier rounding, a narrow sum.",
        detector="Values at probes far out and beyond the finite, the share of elements that round "
        "elsewhere, sums within the tolerance of the stated accumulator.",
        fix="State approximation, rounding point and accumulator, and hold the kernel to them.",
        build=fused_differently,
    ),
    Failure(
        id=27,
        title="Equal d_ff called a matched budget",
        symptom="The gated model wins a comparison that it paid for.",
        cause="At equal width three matrices hold half as much again as two.",
        detector="A study expands only when every point is at the promised budget, the rest of "
        "the model included.",
        fix="Match parameters or MACs, print the difference, and call equal width by its name.",
        build=same_width,
    ),
)

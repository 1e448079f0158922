"""Failures 6 to 10: activation and dropout.

Dimension letters: T rows, D d_model, F d_ff.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab import activations
from glu_lab.conformance.failures.functions import (
    Function,
    Params,
    Sublayer,
    branches,
    draw,
    layer,
    sublayer,
)
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.stored import Conversion, released, request, write_llama
from glu_lab.layers import ffn
from glu_lab.layers.dropout import dropout
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant

_DENSE = variant("relu", d_model=4, d_ff=6)
_GATED = variant("swiglu", d_model=4, d_ff=6)
_DROPPING = _GATED.replace(hidden_dropout=0.5)


def activation_last(params: Params, x: Array, spec: FFN) -> Array:
    """Linear, linear, φ."""
    (a,) = branches(params, x, spec)
    return activations.value(spec.branches[0].activation, a @ params["wo"])


def without_activation(params: Params, x: Array, spec: FFN) -> Array:
    """The product of the projections alone."""
    hidden, *gates = branches(params, x, spec)
    for gate in gates:
        hidden = hidden * gate
    return hidden @ params["wo"]


def as_variant(text: str) -> Function:
    """The sublayer of another variant, with the weights that it is given."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        return layer(params, x, variant(text, d_model=spec.d_model, d_ff=spec.d_ff))

    return run


def after_both(folder: Path) -> list[Planted]:
    """6: φ at the end."""
    return [
        Planted(
            name="linear, linear, ReLU",
            check="oracle",
            fault=sublayer(activation_last, _DENSE),
            clean=sublayer(layer, _DENSE),
        )
    ]


def left_out(folder: Path) -> list[Planted]:
    """7: no φ."""
    return [
        Planted(
            name=f"{name} FFN without its activation",
            check="bends",
            fault=sublayer(without_activation, spec),
            clean=sublayer(layer, spec),
        )
        for name, spec in (("a dense", _DENSE), ("a gated", _GATED))
    ]


def another_function(folder: Path) -> list[Planted]:
    """8: the same weights under another activation."""
    planted = []
    for trained, served in (("geglu_erf", "geglu_tanh"), ("quick_gelu*linear", "geglu_tanh")):
        spec = variant(trained, d_model=4, d_ff=6)
        planted.append(
            Planted(
                name=f"trained as {trained}, served as {served}",
                check="oracle",
                fault=sublayer(as_variant(served), spec, dtype="float32", accumulate="float32"),
                clean=sublayer(layer, spec, dtype="float32", accumulate="float32"),
            )
        )
    relu = released(folder / "relu", variant="reglu")
    configured = write_llama(folder / "configured", {"model_type": "llama", "hidden_act": "gelu"})
    by_manifest = dict(source_layout=None, target_layout="hf-llama")
    return [
        *planted,
        Planted(
            name="a ReGLU checkpoint with its manifest, loaded as SwiGLU",
            check="conversion",
            fault=Conversion(
                request=request(relu, folder / "a", **by_manifest, variant="swiglu"),
                layout="hf-phi3",
            ),
            clean=Conversion(
                request=request(relu, folder / "b", **by_manifest, variant="reglu"),
                layout="hf-phi3",
            ),
        ),
        Planted(
            name="a config that says gelu, loaded as SwiGLU",
            check="conversion",
            fault=Conversion(request=request(configured, folder / "c", target_layout="hf-phi3")),
            clean=Conversion(request=request(configured, folder / "d", variant="geglu_erf")),
        ),
    ]


def keyed(seed: int) -> Array:
    """A dropout key."""
    return jax.random.key(seed)


def mask(spec: FFN, rows: int, seed: int) -> np.ndarray:
    """The mask that a key means for the hidden product of rows in float64."""
    with jax.enable_x64(True):
        x = jnp.asarray(draw(spec, rows)[1])
        return np.asarray(ffn.keep_mask(keyed(seed), x, spec))


def dropped(place: str, seed: int) -> Function:
    """The sublayer with the Spec's dropout at another place: ``input``, ``hidden``, ``output``."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        key, rate = keyed(seed), spec.hidden_dropout
        if place == "hidden":
            return layer(params, x, spec, key)
        if place == "input":
            return layer(params, dropout(x, rate, key), spec)
        return dropout(layer(params, x, spec), rate, key)

    return run


def _with_dropout(function: Function, seed: int | None) -> Sublayer:
    """A function that should drop by a key, or not at all."""
    keep = None if seed is None else mask(_DROPPING, 4, seed)
    return sublayer(function, _DROPPING, keep=keep)


def misplaced_dropout(folder: Path) -> list[Planted]:
    """9: another place, or one mask for ever."""
    right = functools.partial(_with_dropout, dropped("hidden", 7), 7)
    return [
        *(
            Planted(
                name=f"dropout on the {place}, trained on the hidden product",
                check="oracle",
                fault=_with_dropout(dropped(place, 7), 7),
                clean=right(),
            )
            for place in ("output", "input")
        ),
        Planted(
            name="a mask that was fixed when the function was compiled, under another key",
            check="oracle",
            fault=_with_dropout(dropped("hidden", 8), 7),
            clean=right(),
        ),
    ]


def scaled_at_evaluation(params: Params, x: Array, spec: FFN) -> Array:
    """Inverted dropout, scaled down once more as if training had not scaled up."""
    return layer(params, x, spec) * (1 - spec.hidden_dropout)


def dropout_at_evaluation(folder: Path) -> list[Planted]:
    """10: evaluation that drops, or scales."""
    return [
        Planted(
            name=name,
            check="oracle",
            fault=_with_dropout(function, None),
            clean=_with_dropout(layer, None),
        )
        for name, function in (
            ("evaluation draws a mask", dropped("hidden", 7)),
            ("evaluation scales by 1 − p what training scaled by 1/(1 − p)", scaled_at_evaluation),
        )
    ]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=6,
        title="Activation after the second projection",
        symptom="None by shape: φ keeps it. The hidden width adds no capacity.",
        cause="The order linear, φ, dropout, linear read off a diagram from the wrong end.",
        detector="Outputs are held against the float64 oracle.",
        fix="Compute φ on the hidden channels, before wo.",
        build=after_both,
    ),
    Failure(
        id=7,
        title="Activation removed, depth believed to stay",
        symptom="The loss still falls: two projections are one linear map, of rank d_ff at most.",
        cause="An identity configured, or a wrapper that dropped φ when it fused two layers.",
        detector="Differences along a line vanish at the order of the polynomial left without φ: "
        "2 for a dense FFN, 3 for a gated one.",
        fix="State the activation in the Spec; `linear` is a name of its own.",
        build=left_out,
    ),
    Failure(
        id=8,
        title="A checkpoint served under another activation",
        symptom="Weights load, since no shape depends on φ; losses drift, by a third of a percent "
        "for the two GELUs.",
        cause="The function lay in a config's default or a tag, and not beside the weights.",
        detector="Manifest, config and what the user asks for must agree; outputs are held "
        "against the oracle of the stated function.",
        fix="Ship the exact name: gelu_erf, gelu_tanh, quick_gelu; never a bare gelu.",
        build=another_function,
    ),
    Failure(
        id=9,
        title="Dropout at another place than in training",
        symptom="Shapes, means and the share of zeros look right.",
        cause="Hidden, output and attention dropout share one rate in many configs; a key closed "
        "over by a compiled function.",
        detector="With the mask that the key means, outputs are the oracle's under that mask.",
        fix="The Spec says what is dropped; hand keys over as arguments.",
        build=misplaced_dropout,
    ),
    Failure(
        id=10,
        title="Dropout active in evaluation",
        symptom="Losses differ from call to call, a little too high; or by a constant factor.",
        cause="Training mode left on, or inverted dropout scaled a second time.",
        detector="Without a key, outputs are the oracle's without a mask.",
        fix="No key is the inference mode: there is no flag to forget.",
        build=dropout_at_evaluation,
    ),
)

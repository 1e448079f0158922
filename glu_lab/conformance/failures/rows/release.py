"""Failures 40 to 42: release and rollback."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab.conformance.failures.functions import FusedGate
from glu_lab.conformance.failures.fused import (
    Kernel,
    Pointwise,
    from_parts,
    gated,
    phi,
    phi_slope,
    wide,
)
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.stored import (
    Conversion,
    Folder,
    edit_manifest,
    read_tensors,
    released,
    request,
    write_llama,
    write_tensors,
)
from glu_lab.spec.activation import Activation
from glu_lab.spec.variants import variant

_SWIGLU = variant("swiglu", d_model=2, d_ff=1)
_SILU = Activation("silu")


# 40: manifests.


def without_manifest(folder: Path) -> list[Planted]:
    """40: tensors alone, or beside a manifest of others."""
    whole, bare = released(folder / "whole"), released(folder / "bare")
    (bare / "manifest.json").unlink()
    other = released(folder / "other", seed=9)
    (other / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    restated = released(folder / "restated")
    edit_manifest(
        restated, lambda m: m["architecture"]["ffn"]["branches"][0].update(activation="gelu_tanh")
    )
    unstated = write_llama(folder / "unstated")
    return [
        *(
            Planted(name=name, check="manifest", fault=Folder(path=path), clean=Folder(path=whole))
            for name, path in (
                ("tensors without a manifest", bare),
                ("tensors beside the manifest of another checkpoint", other),
                ("a manifest that states another activation", restated),
            )
        ),
        Planted(
            name="a function that neither manifest nor config states, quick_gelu for example",
            check="conversion",
            fault=Conversion(request=request(unstated, folder / "a", variant=None)),
            clean=Conversion(
                request=request(
                    whole,
                    folder / "b",
                    source_layout=None,
                    target_layout="hf-llama",
                    variant=None,
                ),
                layout="hf-phi3",
            ),
        ),
    ]


# 41: kernels.


def by_difference(x: Array) -> Array:
    """SiLU as x·(1 − σ(−x)), in the dtype of x: at −8 in bfloat16, σ(8) is 1."""
    sigmoid = (1 / (1 + jnp.exp(wide(x)))).astype(x.dtype)
    return x * (jnp.ones_like(sigmoid) - sigmoid)


def overflowing_slope(x: Array) -> Array:
    """The slope of SiLU with exp(−x) over its square: ∞/∞ from −89 on."""
    e = jnp.exp(-x)
    return 1 / (1 + e) + x * e / ((1 + e) * (1 + e))


def vanishing_slope(x: Array) -> Array:
    """The slope of SiLU as if it were 0 left of −10."""
    return jnp.where(x < -10, jnp.zeros_like(x), phi_slope(_SILU)(x))


def silent(x: Array) -> Array:
    """SiLU that takes NaN for 0, as a maximum or a select with the arguments turned does."""
    return jnp.where(x > -100, phi(_SILU)(x), jnp.zeros_like(x))


def with_narrow_path(value: Pointwise) -> Kernel:
    """A fused SwiGLU with a path of its own for numbers narrower than float32."""
    right = gated(_SWIGLU)

    def forward(gate: Array, up: Array) -> Array:
        return right(gate, up) if gate.dtype == jnp.float32 else value(gate) * up

    return from_parts(forward, lambda kept, upstream: jax.vjp(right, *kept)[1](upstream))


def eager_float32_alone(folder: Path) -> list[Planted]:
    """41: kernels that pass an eager float32 test on numbers of order 1."""
    right = FusedGate(function=gated(_SWIGLU), spec=_SWIGLU)

    def planted(name: str, check: str, function: Kernel) -> Planted:
        fault = FusedGate(function=function, spec=_SWIGLU)
        return Planted(name=name, check=check, fault=fault, clean=right)

    return [
        planted("SiLU by 1 − σ in bfloat16", "fused values", with_narrow_path(by_difference)),
        planted("NaN turned into 0", "fused values", gated(_SWIGLU, value=silent)),
        planted(
            "a slope that overflows to NaN far left",
            "fused gradients",
            gated(_SWIGLU, slope=overflowing_slope),
        ),
        planted(
            "a slope cut off to 0 left of −10",
            "fused gradients",
            gated(_SWIGLU, slope=vanishing_slope),
        ),
    ]


# 42: the way back.


def convert_in_place(path: Path) -> None:
    """A converter that turns gate and up round in the file that it read them from."""
    packed = {
        name: np.concatenate(np.split(array, 2)[::-1]) if "gate_up" in name else array
        for name, array in read_tensors(path).items()
    }
    write_tensors(path, packed)


def overwritten(folder: Path) -> list[Planted]:
    """42: a target that is somebody's last checkpoint."""
    kept, rewritten = released(folder / "kept"), released(folder / "rewritten")
    convert_in_place(rewritten)
    back = {"source_layout": None, "target_layout": "hf-llama", "variant": None}

    def to(target: Path) -> Conversion:
        return Conversion(request=request(kept, target, **back), layout="hf-phi3")

    return [
        *(
            Planted(
                name=f"a conversion written {where}",
                check="conversion",
                fault=to(target),
                clean=to(folder / f"new-{number}"),
            )
            for number, (where, target) in enumerate(
                (
                    ("over its own source", kept),
                    ("into its own source", kept / "converted"),
                    ("over an earlier checkpoint", folder / "kept" / "source"),
                )
            )
        ),
        Planted(
            name="a converter that worked in place",
            check="manifest",
            fault=Folder(path=rewritten),
            clean=Folder(path=kept),
        ),
    ]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=40,
        title="A checkpoint shipped without its manifest",
        symptom="It opens, and every shape can be explained: in several ways.",
        cause="Activation, packing, branch order and biases cannot be read off tensors.",
        detector="Verification needs a manifest and holds all of it against the tensors; a "
        "function that nobody states is refused, not guessed.",
        fix="Write the manifest with the tensors, in one step.",
        build=without_manifest,
    ),
    Failure(
        id=41,
        title="A fused kernel promoted on eager float32 alone",
        symptom="The float32 test passes; in bfloat16 a tail is 0, far out a gradient is NaN.",
        cause="Formulas that cancel or overflow only in the shipped dtype, or only far out.",
        detector="Values, gradients and the non-finite in every dtype that ships.",
        fix="Test what ships: its dtype, its backward, its edges.",
        build=eager_float32_alone,
    ),
    Failure(
        id=42,
        title="The last compatible checkpoint overwritten",
        symptom="The conversion succeeds; there is nothing to go back to.",
        cause="A converter that writes where it reads, or over an earlier result.",
        detector="A target that exists, or lies in or around its source, is refused; the source's "
        "bytes are the same afterwards, and its manifest still holds.",
        fix="Write beside, prove, then name; keep the old until the new has passed.",
        build=overwritten,
    ),
)

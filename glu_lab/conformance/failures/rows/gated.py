"""Failures 11 to 17: what is special to SwiGLU and its family.

Dimension letters: T rows, D d_model, F d_ff.
"""

from pathlib import Path

from jaxtyping import Array

from glu_lab import activations
from glu_lab.conformance.failures.functions import (
    Params,
    branches,
    draw,
    layer,
    sublayer,
)
from glu_lab.conformance.failures.proposed import Comparison, small_experiment
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.rows.activation import as_variant
from glu_lab.conformance.failures.stored import Checkpoint, conversion, stored
from glu_lab.spec.activation import Activation
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant
from glu_lab.studies.axes import coupled, variants_matched
from glu_lab.studies.study import Study

_SPEC = variant("swiglu", d_model=4, d_ff=6)
_BIASED = variant("swiglu", d_model=4, d_ff=6, bias=True)
_SILU = Activation("silu")


def dense_silu(params: Params, x: Array, spec: FFN) -> Array:
    """SiLU of the first projection, and no second one."""
    return activations.value(_SILU, x @ params["wi"][:, 0, :]) @ params["wo"]


def summed(params: Params, x: Array, spec: FFN) -> Array:
    """The two branches added."""
    gate, up = branches(params, x, spec)
    return (activations.value(_SILU, gate) + up) @ params["wo"]


def activated_product(params: Params, x: Array, spec: FFN) -> Array:
    """φ of gate·up: at gate = up = −1 it gives 0.73 for 0.27."""
    gate, up = branches(params, x, spec)
    return activations.value(_SILU, gate * up) @ params["wo"]


def without_biases(params: Params, x: Array, spec: FFN) -> Array:
    """The sublayer as if no branch and no output had a bias."""
    kept = {name: params[name] for name in ("wi", "wo")}
    plain = variant("swiglu", d_model=spec.d_model, d_ff=spec.d_ff, bias=False)
    return layer(kept, x, plain)


def two_matrices(folder: Path) -> list[Planted]:
    """11: SiLU alone."""
    params, x = draw(_SPEC, 4)
    tensors = stored("hf-llama", _SPEC)
    without_up = {name: value for name, value in tensors.items() if "up_proj" not in name}
    return [
        Planted(
            name="a model with one input projection, called SwiGLU",
            check="parameters",
            fault=sublayer(dense_silu, _SPEC, params={**params, "wi": params["wi"][:, :1]}, x=x),
            clean=sublayer(layer, _SPEC, params=params, x=x),
        ),
        Planted(
            name="a checkpoint with gate and down alone",
            check="reconciliation",
            fault=Checkpoint(layout="hf-llama", tensors=without_up, spec=_SPEC),
            clean=Checkpoint(layout="hf-llama", tensors=tensors, spec=_SPEC),
        ),
        Planted(
            name="three matrices loaded, the second never used",
            check="oracle",
            fault=sublayer(dense_silu, _SPEC),
            clean=sublayer(layer, _SPEC),
        ),
    ]


def added(folder: Path) -> list[Planted]:
    """12: a sum for a product."""
    return [
        Planted(
            name="silu(gate) + up",
            check="oracle",
            fault=sublayer(summed, _SPEC),
            clean=sublayer(layer, _SPEC),
        )
    ]


def activated_twice(folder: Path) -> list[Planted]:
    """13: φ where there is none."""
    return [
        *(
            Planted(
                name=f"{text} for silu*linear",
                check="oracle",
                fault=sublayer(as_variant(text), _SPEC),
                clean=sublayer(layer, _SPEC),
            )
            for text in ("silu*sigmoid", "silu*silu")
        ),
        Planted(
            name="silu(gate · up), in which the branches could change places",
            check="branch exchange",
            fault=sublayer(activated_product, _SPEC),
            clean=sublayer(layer, _SPEC),
        ),
    ]


def unequal_widths(folder: Path) -> list[Planted]:
    """14: gate and up of two widths."""
    tensors = stored("hf-llama", _SPEC)

    def narrowed(width: int) -> Planted:
        cut = {**tensors, "up_proj.weight": tensors["up_proj.weight"][:width].copy()}
        return Planted(
            name=f"up_proj of width {width} beside gate_proj of {_SPEC.d_ff}",
            check="reconciliation",
            fault=Checkpoint(layout="hf-llama", tensors=cut, spec=_SPEC),
            clean=Checkpoint(layout="hf-llama", tensors=tensors, spec=_SPEC),
        )

    # A width of one is spread over all channels without a word.
    return [narrowed(4), narrowed(1)]


def unaudited_third_matrix(folder: Path) -> list[Planted]:
    """15: the dense FFN's width kept."""
    base = small_experiment("relu")
    width = base.model.ffn.d_ff

    def proposed(budget: str, axes: object) -> Comparison:
        fields = {"base": base, "axes": axes, "baseline": "relu", "budget": budget}
        return Comparison(Study(name="gate", question="Does a gate help?", seeds=(0,), **fields))

    kept = coupled(
        {name: {"model.ffn.variant": name, "model.ffn.d_ff": width} for name in ("relu", "swiglu")}
    )
    return [
        Planted(
            name=f"SwiGLU at the dense FFN's d_ff {width}, promised at equal {what}",
            check="matched budget",
            fault=proposed(budget, kept),
            clean=proposed(
                budget, variants_matched(["relu", "swiglu"], base, match=budget, round_to=4)
            ),
        )
        for budget, what in (("macs", "compute"), ("params", "parameters"))
    ]


def swapped_on_conversion(folder: Path) -> list[Planted]:
    """16: gate under the name of up."""
    planted = []
    for target, gate, up in (
        ("llama-pth", "w1.weight", "w3.weight"),
        ("hf-llama", "gate_proj.weight", "up_proj.weight"),
    ):
        right = conversion("hf-phi3", target, _SPEC)
        (tensors,) = right.target
        swapped = {**tensors, gate: tensors[up], up: tensors[gate]}
        planted.append(
            Planted(
                name=f"{gate} and {up} of {target} exchanged",
                check="row proof",
                fault=right.with_target([swapped]),
                clean=right,
            )
        )
    return planted


def assumed_biases(folder: Path) -> list[Planted]:
    """17: biases by habit."""
    biased, plain = stored("hf-llama", _BIASED), stored("hf-llama", _SPEC)
    return [
        Planted(
            name="biases in the checkpoint, none in the Spec",
            check="reconciliation",
            fault=Checkpoint(layout="hf-llama", tensors=biased, spec=_SPEC),
            clean=Checkpoint(layout="hf-llama", tensors=biased, spec=_BIASED),
        ),
        Planted(
            name="biases in the Spec, none in the checkpoint",
            check="reconciliation",
            fault=Checkpoint(layout="hf-llama", tensors=plain, spec=_BIASED),
            clean=Checkpoint(layout="hf-llama", tensors=plain, spec=_SPEC),
        ),
        Planted(
            name="biases loaded and never added",
            check="oracle",
            fault=sublayer(without_biases, _BIASED),
            clean=sublayer(layer, _BIASED),
        ),
    ]


ROWS: tuple[Failure, ...] = (
    Failure(
        id=11,
        title="SiLU for ReLU, and still two matrices",
        symptom="It trains, has the right output shape, and is called SwiGLU.",
        cause="The activation was exchanged and the second input projection forgotten.",
        detector="wi has one slot a branch; a checkpoint lacks up_proj; outputs differ from the "
        "oracle's.",
        fix="A gated FFN is two branches and three matrices: count its parameters.",
        build=two_matrices,
    ),
    Failure(
        id=12,
        title="Gate and up added",
        symptom="None by shape; the loss is that of a dense FFN with a linear bypass.",
        cause="A residual-like sum where the formula has an elementwise product.",
        detector="Outputs are held against the oracle.",
        fix="Multiply: H = φ(gate) ⊙ up.",
        build=added,
    ),
    Failure(
        id=13,
        title="φ applied to more than the gate",
        symptom="None by shape; the sign of up is lost.",
        cause="A sigmoid taken over from the GLU paper, or φ called on the finished product.",
        detector="Outputs are held against the oracle; exchanging the branches must change them.",
        fix="The second branch of SwiGLU is linear; the Spec names φ branch by branch.",
        build=activated_twice,
    ),
    Failure(
        id=14,
        title="Gate and up of two widths",
        symptom="A shape error in the product; a width of one broadcasts and gives none.",
        cause="One of two projections cut, pruned or padded.",
        detector="Both tensors solve for one d_ff before they are loaded.",
        fix="Keep both branches on one axis pair, as `wi (D, N, F)` does.",
        build=unequal_widths,
    ),
    Failure(
        id=15,
        title="The dense FFN's d_ff kept for three matrices",
        symptom="A gated model that wins, with half as many FFN parameters and operations again.",
        cause="Width is equal, budgets are not: 3·D·F against 2·D·F.",
        detector="A study that promises equal compute or parameters refuses the pair.",
        fix="Derive the width: two thirds, rounded and said; `glu-lab budget --match` shows it.",
        build=unaudited_third_matrix,
    ),
    Failure(
        id=16,
        title="Gate and up exchanged on conversion",
        symptom="Names, shapes and types fit; the model writes noise, or just a little worse.",
        cause="w1, w2, w3 and fc1_g, fc1_x are numbered differently from project to project.",
        detector="Known rows through source and target differ.",
        fix="State the branch of every tensor in the layout, and prove a conversion by rows.",
        build=swapped_on_conversion,
    ),
    Failure(
        id=17,
        title="Biases assumed, or assumed away",
        symptom="A load that ignores what it does not know runs on.",
        cause="The paper's GLU has none, checkpoints may.",
        detector="Every tensor is a parameter of the Spec and the other way round.",
        fix="Read the bias policy off the checkpoint; create zeros only when asked to.",
        build=assumed_biases,
    ),
)

"""The checks that find the planted faults: each is the product's own, and knows of no fault.

A check takes an artefact and says whether it passes; the same one judges the fault and its clean
twin. `CHECKS` is the one place where the lab looks them up.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from glu_lab.conformance.failures import numerical, shipped
from glu_lab.conformance.failures.row import Finding


class Check(NamedTuple):
    """One check.

    Attributes:
        statement: what it holds an artefact to.
        by: the parts of the product that do it.
        run: artefact → finding.
    """

    statement: str
    by: str
    run: Callable[[Any], Finding]


def _property(name: str, statement: str) -> Check:
    return Check(statement, "oracle.properties.measure", numerical.holds(name))


CHECKS: dict[str, Check] = {
    "oracle": Check(
        "outputs are those of the float64 oracle, within the tolerance of the number formats",
        "oracle.ffn.forward, oracle.tolerances",
        numerical.against_oracle,
    ),
    "gradients": Check(
        "the gradient by the rows and by each parameter is the oracle's",
        "oracle.ffn.backward, oracle.rounding",
        numerical.gradients,
    ),
    "permutation": _property("permutation", "permuted rows give permuted outputs"),
    "jacobian": _property("jacobian", "no row's output depends on another row"),
    "branch exchange": _property(
        "branch_exchange",
        "exchanging the weights of two branches that differ as functions changes the output",
    ),
    "bends": Check(
        "along a line the output is more than the polynomial that is left without φ",
        "oracle.properties.differences",
        numerical.bends,
    ),
    "parameters": Check(
        "rows and parameters have the names and shapes of the Spec",
        "layers.ffn.check",
        numerical.parameters,
    ),
    "fused values": Check(
        "a fused gate gives the oracle's values in float32 and in the dtype that ships, far out, "
        "at infinities and NaN",
        "oracle.ffn.hidden, oracle.tolerances",
        numerical.fused_values,
    ),
    "fused gradients": Check(
        "a fused gate gives the oracle's gradients in float32 and in the dtype that ships",
        "oracle.ffn.backward, oracle.rounding",
        numerical.fused_slopes,
    ),
    "rounding point": Check(
        "a fused gate rounds where it says that it does",
        "oracle.functions.value, spec.numerics.Numerics.rounding_point",
        numerical.fused_rounding,
    ),
    "reconciliation": Check(
        "tensors have the names, shapes, widths and biases of the Spec in their layout",
        "layouts.transform.to_canonical",
        shipped.reconciled,
    ),
    "row proof": Check(
        "known rows through source and target, each read as its layout says, come out equal",
        "layouts.proof.prove",
        shipped.proven,
    ),
    "conversion": Check(
        "layout and function are stated and not contradicted, the target is new, the source stays",
        "layouts.convert.convert",
        shipped.converts,
    ),
    "manifest": Check(
        "a manifest is there, and all that it states holds of the tensors",
        "layouts.verify.verify",
        shipped.verified,
    ),
    "matched budget": Check(
        "a study's points have the budget that it promises",
        "studies.study.expand",
        shipped.matched,
    ),
    "sharding rules": Check(
        "every array can be laid out: one mesh axis splits one of its dimensions",
        "spec.sharding.Rules.splits",
        shipped.laid_out,
    ),
    "loss before and after": Check(
        "when weights are read anew, the validation loss moves by at most "
        f"{shipped.ALLOWED:g} nats per token",
        "training.evaluation.evaluate",
        shipped.continuous,
    ),
    "wording": Check(
        "a report claims nothing that the lab may not, and its numbers say what they count",
        "conformance.failures.wording.scan",
        shipped.worded,
    ),
}

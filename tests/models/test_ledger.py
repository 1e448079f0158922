"""The ledger of whole models against the arrays themselves and the operations of the program."""

from typing import Any

import jax
import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.layers.params import count
from glu_lab.models import Transformer, init_params, parameters
from glu_lab.models.ledger import MAC_KINDS, model_ledger
from tests.models import small

MODELS = {
    "decoder": (small.decoder(), small.lm_batch(), {"input_length": 9}),
    "t5": (small.t5(), small.pair_batch(), {"input_length": 11, "target_length": 7}),
    "original": (small.original(), small.pair_batch(), {"input_length": 11, "target_length": 7}),
    "t5 tied, learned": (
        small.t5("swish_learned*linear", tie_embeddings=True),
        small.pair_batch(),
        {"input_length": 11, "target_length": 7},
    ),
}
KINDS = pytest.mark.parametrize("kind", MODELS)


@KINDS
def test_components_add_up_to_the_arrays(kind):
    model, _, lengths = MODELS[kind]
    costs = model_ledger(model, **lengths)
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    assert costs.total_params == sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert costs.total_params == count(parameters(model))
    for name, params in costs.components.items():
        stack, _, part = name.partition(".")
        tree = shapes[stack]
        if part == "norms":
            tree = {**tree.get("final_norm", {}), **tree["layers"]}
            tree = {
                k: v
                for k, v in tree.items()
                if ("attention" != k and "norm" in k) or k in ("scale", "bias")
            }
        elif part == "relative":
            tree = tree["relative"]
        elif part:
            tree = tree["layers"][part]
        assert params == sum(leaf.size for leaf in jax.tree.leaves(tree)), name
    assert ("logits" in costs.components) == (not model.tie_embeddings)


def dot_macs(jaxpr, times=1):
    """Multiply-accumulates of every matrix product of a program, loops counted out."""
    total = 0
    for equation in jaxpr.eqns:
        inner = times * (equation.params["length"] if equation.primitive.name == "scan" else 1)
        if equation.primitive.name == "dot_general":
            contract = equation.params["dimension_numbers"][0][0]
            shape = equation.invars[0].aval.shape
            contracted = int(np.prod([shape[axis] for axis in contract]))
            total += times * contracted * int(np.prod(equation.outvars[0].aval.shape))
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                total += dot_macs(value.jaxpr, inner)
    return total


@KINDS
def test_macs_are_those_of_the_traced_program(kind):
    model, batch, lengths = MODELS[kind]
    costs = model_ledger(model, **lengths)
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    traced = jax.make_jaxpr(lambda p: Transformer(model).apply({"params": p}, batch))(shapes)
    rows = next(iter(batch.values())).shape[0]
    assert dot_macs(traced.jaxpr) == rows * costs.macs_per_example
    assert {kind for kinds in costs.macs.values() for kind in kinds} == MAC_KINDS.keys()


@pytest.mark.slow
def test_standard_deviations_are_those_of_the_drawn_weights():
    model, _, lengths = MODELS["t5"]
    params = init_params(model, jax.random.key(0))
    for weight in model_ledger(model, **lengths).weights:
        value: Any = params
        for key in weight.path.split("/"):
            value = value[key]
        if weight.start is not None:
            np.testing.assert_array_equal(value, np.float32(weight.start))
        else:
            # 5σ of the standard deviation of n draws.
            spread = 5 / np.sqrt(2 * value.size)
            assert float(value.std()) == pytest.approx(weight.stddev, rel=spread), weight.path


@pytest.mark.parametrize(
    ("model", "lengths", "message"),
    [
        (small.decoder(), {"input_length": 9, "target_length": 7}, "has none"),
        (small.t5(), {"input_length": 9}, "needs one"),
        (small.t5(), {"input_length": 9, "target_length": 0}, "decoder rows must hold"),
    ],
)
def test_lengths_that_do_not_fit_the_model_are_refused(model, lengths, message):
    with pytest.raises(SpecError, match=message):
        model_ledger(model, **lengths)

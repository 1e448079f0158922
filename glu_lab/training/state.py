"""What a training state holds, and whether a mesh can hold it.

A state is a dict: ``params``, ``optimizer``, ``step`` (int32), ``rng`` (the run's root key),
``finite`` (False from the first non-finite step on, which keeps every later step from changing
anything).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from glu_lab.errors import SpecError
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import map_table
from glu_lab.models import parameters
from glu_lab.sharding import mesh as mesh_lib
from glu_lab.spec.experiment import Optimizer
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import Rules
from glu_lab.training import optimizers

#: Logical axes that the programs of a whole model keep on one device, and why.
_WHOLE = {
    "seq": "attention reads all positions of a row; only the FFN by hand "
    "(glu_lab.sharding.by_hand) takes split ones",
    "branch": "the factors of a gated FFN's product would lie on different devices",
    "head": "queries and keys are multiplied along it",
    "buckets": "every device looks up all distances",
    "layers": "they run one after another",
}


def check_layout(model: Model, rules: Rules, mesh: Mesh | AbstractMesh) -> None:
    """Checks that a model can be laid out on a mesh, before any data are prepared.

    Raises:
        SpecError: for sizes that do not divide, and for rules that no program here follows.
    """
    for axis, reason in _WHOLE.items():
        if split := getattr(rules, axis):
            raise SpecError(
                f"the rule {axis}={split} fits no model here: {reason}. Set execution.rules."
                f"{axis}=()."
            )
    if rules.heads != rules.kv:
        raise SpecError(
            f"the rules heads={rules.heads} and kv={rules.kv} differ; the query heads of a group "
            "lie with their key head, so both need the same rule."
        )
    mesh_lib.check_table(parameters(model), rules, mesh.shape)


def state_shapes(model: Model, numerics: Numerics, optimizer: Optimizer) -> dict[str, Any]:
    """Shapes and dtypes of a training state, wherever it lies."""
    table = parameters(model)
    dtype = resolve(numerics.parameter_dtype)
    params = map_table(lambda _, p: jax.ShapeDtypeStruct(p.shape, dtype), table)
    rule = optimizers.build(optimizer, table, numerics)
    return {
        "params": params,
        "optimizer": jax.eval_shape(rule.init, params),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
        "rng": jax.eval_shape(lambda: jax.random.key(0)),
        "finite": jax.ShapeDtypeStruct((), jnp.bool_),
    }

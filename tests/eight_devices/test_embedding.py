"""Rows of an embedding whose vocabulary is split over devices are those of the whole table."""

import jax
import numpy as np
import pytest
from jax.sharding import reshard

from glu_lab.layers import embedding
from glu_lab.layers.placement import Placement
from glu_lab.sharding.mesh import make_mesh
from glu_lab.spec.sharding import Rules

V, D, B, S = 24, 4, 4, 6
PLACE = Placement(Rules())


@pytest.mark.parametrize("mesh", ["data=2,model=4", "model=8", "fsdp=4,model=2"])
def test_every_token_gets_its_own_row_and_every_row_its_gradient(mesh):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(V, D)).astype(np.float32)
    # Every token at least once or not at all, ends of pieces among them.
    tokens = rng.permutation(np.arange(B * S) % V).reshape(B, S).astype(np.int32)
    tokens[0, 0] = tokens[0, 1]
    upstream = rng.integers(-3, 4, (B, S, D)).astype(np.float32)

    def lookup(table, tokens):
        return embedding.lookup(PLACE.use(table, ("vocab", "embed")), tokens, PLACE)

    with jax.set_mesh(make_mesh(mesh)):
        rows, back = jax.vjp(
            lambda table: lookup(table, reshard(tokens, PLACE.spec("batch", "seq"))),
            reshard(table, PLACE.spec("vocab", "embed")),
        )
        (gradient,) = back(reshard(upstream, PLACE.spec("batch", "seq", None)))
    # One term of each sum is not zero, and whole numbers add without rounding.
    np.testing.assert_array_equal(rows, table[tokens])
    expected = np.zeros_like(table)
    np.add.at(expected, tokens, upstream)
    np.testing.assert_array_equal(gradient, expected)

"""A model split over devices writes what one device writes, from a cache that is split with it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from glu_lab.errors import SpecError
from glu_lab.layers.params import map_table
from glu_lab.layers.placement import Placement
from glu_lab.models import Transformer, parameters
from glu_lab.models.generate import Generator
from glu_lab.models.sampling import Sampling
from glu_lab.sharding.mesh import parameter_specs, shardings
from glu_lab.spec.sharding import MESH_AXES, Rules
from tests.eight_devices.test_model_equality import F64, MODELS, V

PROMPTS = [[5, 9, 2], [7], [3, 3, 8, 1], [8, 9]]
SOURCES = [[4, 5, 6, 7], [9], [8, 2], [3, 3, 3]]
TOKENS, SLOTS = 8, 12


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def weights(kind):
    rng = np.random.default_rng(0)

    def draw(_, parameter):
        offset = float(parameter.init.distribution == "ones")
        return offset + 0.5 * rng.normal(size=parameter.shape)

    return map_table(draw, parameters(MODELS[kind]))


def write(kind, generator, params):
    """(Logits after the prompts, cache, rows that end where the likeliest id is 3, drawn rows)."""
    source = SOURCES if kind == "t5" else None
    logits, cache = generator.prefill(params, PROMPTS, source=source, slots=SLOTS)
    greedy = generator.decode(params, logits, cache, tokens=TOKENS, stop=3)
    sampling = Sampling(temperature=1.5, top_k=20, top_p=0.9)
    drawn = generator.decode(
        params, logits, cache, tokens=TOKENS, sampling=sampling, seed=3, stop=3, limit=V - 5
    )
    return logits, cache, greedy, drawn


def mesh_of(sizes):
    devices = jax.devices()[: np.prod(sizes)]
    types = (AxisType.Explicit,) * len(MESH_AXES)
    return jax.make_mesh(sizes, MESH_AXES, axis_types=types, devices=devices)


@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 2, 4)], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_tokens_are_those_of_one_device(kind, sizes):
    model = MODELS[kind]
    params = jax.tree.map(jnp.asarray, weights(kind))
    want = write(kind, Generator(Transformer(model, F64)), params)
    mesh = mesh_of(sizes)
    with jax.set_mesh(mesh):
        layouts = shardings(mesh, parameter_specs(parameters(model), Rules()))
        split = Generator(Transformer(model, F64, place=Placement(Rules())))
        got = write(kind, split, jax.device_put(params, layouts))
    # Sums in another order: a few ulp, 2e-16, of the largest.
    logits = np.asarray(want[0])
    assert np.abs(np.asarray(got[0]) - logits).max() <= 1e-13 * np.abs(logits).max()
    assert got[2:] == want[2:]
    assert max(map(len, got[3])) > 1
    # Rows over the batch's axes, heads over `model`: no device holds another's keys.
    parts = sizes[0] * sizes[1] * sizes[2]
    for kept in jax.tree.leaves(got[1].layers):
        assert {shard.data.nbytes * parts for shard in kept.addressable_shards} == {kept.nbytes}


def test_rows_that_do_not_divide_are_refused():
    with jax.set_mesh(mesh_of((2, 2, 2))):
        generator = Generator(Transformer(MODELS["decoder"], F64, place=Placement(Rules())))
        with pytest.raises(SpecError, match="prompts = 3 does not divide over data=2 × fsdp=2"):
            generator.generate({}, PROMPTS[:3], tokens=2)

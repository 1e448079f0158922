"""Plans against what eight devices hold and run."""

import dataclasses
import math
import re

import jax
import pytest

from glu_lab.data.shapes import UnpreparedDataset
from glu_lab.sharding import targets
from glu_lab.sharding.collectives import collectives
from glu_lab.sharding.hlo import Program
from glu_lab.training import plan as plan_module
from glu_lab.training.plan import plan
from glu_lab.training.programs import Programs, program_key
from tests.sharding import plan_models as small


@pytest.fixture(scope="module")
def compiled():
    """Fields of the experiment → plan and the compiled program's text."""
    made = {}

    def get(**fields):
        key = tuple(fields.items())
        if key not in made:
            seen = []

            def spy(text, mesh):
                seen.append(text)
                return collectives(text, mesh)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plan_module, "collectives", spy)
                made[key] = plan(small.experiment(**fields)), seen[0]
        return made[key]

    return get


#: Compiled once each.
SPLIT = {"mesh": "data=2,fsdp=2,model=2"}
LOOPED = {"mesh": "data=4,model=2", "remat": "block", "microbatches": 2}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("encoder_decoder", {**SPLIT, "optimizer": "adafactor"}),
        ("decoder", {"mesh": "fsdp=4,model=2", "optimizer": "muon"}),
    ],
)
def test_bytes_are_those_that_every_device_holds(kind, fields):
    experiment = small.experiment(kind, **fields)
    programs = Programs(program_key(experiment, UnpreparedDataset(experiment.data)))
    state = programs.init(programs.put_key(0))
    planned = plan(experiment, "cuda")
    for part, expected in (
        ("params", planned.params_bytes),
        ("optimizer", planned.optimizer_bytes),
    ):
        held = dict.fromkeys(jax.devices(), 0)
        for array in jax.tree.leaves(state[part]):
            for shard in array.addressable_shards:
                held[shard.device] += shard.data.nbytes
        assert set(held.values()) == {expected}, part


def test_the_compiled_arguments_are_state_batch_and_rate(compiled):
    planned, _ = compiled(**SPLIT)
    made = planned.compiled
    rows = small.BATCH // 4
    batch = 4 * 5 * rows * small.LENGTH
    # Step (int32), finite (bool), the root key (2 × uint32) and the learning rate.
    scalars = 4 + 1 + 8 + 4
    assert made.argument_bytes == planned.params_bytes + planned.optimizer_bytes + batch + scalars
    # The new state takes the old one's place, but for the key, which no step changes.
    assert made.alias_bytes <= made.argument_bytes - batch
    assert made.temp_bytes > planned.gradient_bytes
    assert planned.needed_bytes == made.peak_bytes > made.argument_bytes + made.temp_bytes


@pytest.mark.parametrize("fields", [SPLIT, LOOPED], ids=str)
def test_operations_are_the_matrix_products_of_the_compiled_program(compiled, fields):
    planned, text = compiled(**fields)
    total = 0
    for computation, product, runs, _ in Program(text).executions(re.compile(r" dot\(")):
        left = computation.shape(product.operands[0])
        contracted = re.findall(r"\d+", product.attribute("lhs_contracting_dims"))
        inner = math.prod(left.dims[int(axis)] for axis in contracted)
        total += 2 * product.shapes[0].elements * inner * runs
    assert planned.flops.per_device == total
    assert planned.flops.compiler_placed == 0


def test_a_smaller_data_axis_stands_in_for_a_large_one(compiled, monkeypatch):
    planned, _ = compiled(**LOOPED)
    assert planned.compiled.mesh == planned.mesh
    monkeypatch.setattr(targets, "MAX_VIRTUAL_DEVICES", 4)
    stood_in = plan(small.experiment(**LOOPED))
    assert stood_in.compiled.mesh == {"data": 2, "fsdp": 1, "model": 2}
    same = {"compiler", "argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"}
    for name in same | {"collective_bytes"}:
        assert getattr(stood_in.compiled, name) == getattr(planned.compiled, name), name
    for field in dataclasses.fields(planned):
        if field.name not in ("compiled", "lower_seconds", "module_bytes"):
            assert getattr(stood_in, field.name) == getattr(planned, field.name), field.name


def test_gradients_are_summed_over_the_axes_of_the_batch(compiled):
    planned, _ = compiled(**LOOPED)
    moved = planned.compiled.collective_bytes
    assert set(moved) >= {"data", "fsdp", "model"}
    assert moved["fsdp"] == 0
    # Every weight's gradient crosses 'data', once for each micro-batch.
    assert moved["data"] >= 2 * planned.gradient_bytes
    # Forward and backward of two sublayers a layer send a micro-batch's rows over 'model'.
    rows = small.BATCH * small.LENGTH * small.D * 4 // 4
    assert moved["model"] >= 4 * small.LAYERS * rows

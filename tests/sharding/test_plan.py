"""Plans that nothing is compiled for: bytes, operations and refusals, on one device."""

import dataclasses
import functools

import pytest

from glu_lab.errors import SpecError
from glu_lab.models.ledger import model_ledger
from glu_lab.sharding import targets
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import Rules
from glu_lab.training.plan import plan
from tests.sharding import plan_models as small


@functools.cache
def cached(kind="decoder", **fields):
    """A plan that is lowered only; tests share it."""
    return plan(small.experiment(kind, **fields), "cuda")


def with_rules(experiment, rules):
    execution = dataclasses.replace(experiment.execution, rules=rules)
    return dataclasses.replace(experiment, execution=execution)


def test_operations_are_6_for_each_parameter_and_token_and_those_of_the_scores():
    """Kaplan et al. 2020 (arXiv 2001.08361), appendix B, without embeddings looked up."""
    planned = cached(mesh="model=8")
    matrices = small.LAYERS * (
        small.D * small.H * small.K * 4 + (small.N + 1) * small.D * small.F
    ) + (small.D * small.V)
    tokens = small.BATCH * small.LENGTH
    scores = small.LAYERS * 2 * small.H * small.K * small.LENGTH
    assert planned.flops.per_device == 6 * tokens * (matrices + scores) // 8
    assert planned.useful_fraction == 1.0


def test_operations_are_those_of_the_ledger_on_a_mesh_of_any_size():
    rows = 512
    planned = cached("encoder_decoder", mesh="data=64,fsdp=8,model=8", batch_size=rows)
    costs = model_ledger(
        small.experiment("encoder_decoder").model,
        input_length=small.LENGTH,
        target_length=small.TARGETS,
    )
    assert planned.devices == 4096
    assert planned.flops.per_device * 4096 == 6 * rows * costs.macs_per_example
    assert planned.model_flops == 6 * rows * costs.macs_per_example


def test_recomputation_is_counted_as_executed():
    def flops(remat):
        fields = {} if remat == "none" else {"remat": remat}
        return cached(mesh="model=8", **fields).flops.per_device

    # Once more: every product of a layer but the last, whose result backward does not need.
    tokens = small.BATCH * small.LENGTH
    projections = 4 * small.D * small.H * small.K + small.N * small.D * small.F
    scores = 2 * small.H * small.K * small.LENGTH
    again = 2 * tokens * small.LAYERS * (projections + scores) // 8
    assert flops("block") == flops("none") + again
    assert flops("none") < flops("dots") < flops("block")


def test_micro_batches_change_no_operations_and_the_width_of_the_gradients():
    one = cached(mesh="data=4")
    wide = dataclasses.replace(
        small.experiment(mesh="data=4", microbatches=2),
        numerics=Numerics(parameter_dtype="bfloat16", gradient_accumulation_dtype="float32"),
    )
    two = plan(wide, "cuda")
    assert two.flops == one.flops
    assert one.gradient_bytes == one.params_bytes == two.gradient_bytes == 2 * two.params_bytes


def test_muons_own_products_are_an_upper_bound_and_named():
    planned = cached(mesh="model=8", optimizer="muon")
    without = cached(mesh="model=8")
    assert planned.flops.compiler_placed > 0
    assert planned.flops.per_device - planned.flops.compiler_placed == without.flops.per_device


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("data=2,model=16", r"heads = 8 does not divide over model=16.*together admit model = 1"),
        ("data=3", r"training.batch_size / training.microbatches = 16 .* data=3 × fsdp=1"),
        ("data=8,fsdp=4", r"16 does not divide over data=8 × fsdp=4; .* is 32"),
        ("data=-1", "states every size"),
        ("data=2,modle=2", "did you mean 'model'"),
    ],
)
def test_what_does_not_divide_is_refused(mesh, message):
    with pytest.raises(SpecError, match=message):
        plan(small.experiment(mesh=mesh), "cuda")


def test_a_mesh_without_stand_in_is_planned_and_not_compiled(monkeypatch):
    monkeypatch.setattr(targets, "MAX_VIRTUAL_DEVICES", 4)
    # Parameters are stored in pieces over 'data': they would be larger on a smaller axis.
    experiment = with_rules(small.experiment(mesh="data=8"), Rules(embed=("data",)))
    planned = plan(experiment, "cpu")
    assert planned.compiled is None and planned.refusal is None
    assert 8 * planned.params_bytes == cached(mesh="data=4").params_bytes
    assert planned.fits(2**50) is None and planned.fits(1) is False

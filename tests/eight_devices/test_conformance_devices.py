"""Cells of executions over several devices, and a fault that only they can have."""

import jax
import pytest

from glu_lab.conformance.cases import SPECS
from glu_lab.conformance.cells import Point, Runner
from glu_lab.conformance.executions import EXECUTIONS, Execution
from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.spec.sharding import Rules

BASE = dict(dtype="float64", shape="many_rows", probe="normal", mode="training")
SEVERAL = [name for name, execution in EXECUTIONS.items() if execution.devices > 1]


def run(execution, spec, executions=EXECUTIONS, **where):
    point = Point(**{"spec": spec, "execution": execution, **BASE, **where})
    (result,) = Runner(SPECS, executions).run([point])
    return result


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ("swiglu+bias", {}),
        ("gpt_oss+all", {"mode": "dropout", "dtype": "bfloat16"}),
    ],
)
def test_executions_over_several_devices_are_the_oracle(name, spec, where):
    result = run(name, spec, **where)
    assert result.status == "passed", result
    assert result.compared.share > 0


def summed_by(collective):
    """The FFN by hand, finished on every device before the sum over devices."""

    def apply(params, x, spec, *, numerics, dropout_key=None):
        def local(params, x):
            x = jax.lax.pcast(x, ("model",), to="varying")
            y = ffn.down(params, ffn.product(params, x, spec, numerics), numerics)
            return collective(ffn.finish(params, y, spec, numerics), "model")

        return jax.shard_map(local, out_specs=Placement(Rules()).rows(x, None))(params, x)

    return apply


@pytest.mark.parametrize("parts", [2, 4])
def test_an_output_bias_that_every_device_adds_fails(parts):
    planted = Execution(
        name="planted", summary="planted", apply=summed_by(jax.lax.psum), parts=parts
    )
    executions = {"planted": planted}
    result = run("planted", "swiglu+bias", executions)
    assert result.status == "failed", result
    # Without a bias there is nothing to add twice.
    assert run("planted", "swiglu", executions).status == "passed"


def test_a_mean_over_devices_in_the_place_of_the_sum_fails():
    mean = summed_by(jax.lax.pmean)
    planted = Execution(name="planted", summary="planted", apply=mean, parts=2)
    assert run("planted", "swiglu", {"planted": planted}).status == "failed"


def test_meshes_take_the_devices_that_they_are_given():
    runner = Runner(SPECS, EXECUTIONS, devices=jax.devices()[:2])
    (result,) = runner.run([Point("swiglu", "by_hand_4", **BASE)])
    assert result.status == "devices"
    (result,) = runner.run([Point("swiglu", "by_hand_2", **BASE)])
    assert result.status == "passed"

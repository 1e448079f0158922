"""Cells of executions: right ones pass, planted faults fail, bad ones are named by what they do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.conformance import matrix, report
from glu_lab.conformance.cases import SPECS
from glu_lab.conformance.cells import NOT_RUN, PROBLEMS, Point, Runner
from glu_lab.conformance.executions import EXECUTIONS, Execution
from glu_lab.layers import ffn
from glu_lab.spec.activation import Activation

BASE = dict(dtype="float64", shape="many_rows", probe="normal", mode="training")
GATED, DENSE = "swiglu+bias", "gelu_erf"


def cell(apply, spec, compiled=True, modes=None, refuses=None, **where):
    """The result of an execution at one point."""
    fields = {} if modes is None else {"modes": modes, "why": "a test"}
    fields |= {} if refuses is None else {"refuses": refuses}
    execution = Execution(
        name="planted", summary="planted", apply=apply, compiled=compiled, **fields
    )
    point = Point(**{"spec": spec, "execution": "planted", **BASE, **where})
    (result,) = Runner(SPECS, {"planted": execution}).run([point])
    return result


# Faults. Each is the layer with one thing wrong.


def tanh_for_erf(params, x, spec, **how):
    branches = tuple(
        dataclasses.replace(b, activation=Activation("gelu_tanh"))
        if b.activation.name == "gelu_erf"
        else b
        for b in spec.branches
    )
    return ffn.apply(params, x, spec.replace(branches=branches), **how)


def branches_swapped(params, x, spec, **how):
    return ffn.apply({**params, "wi": params["wi"][:, ::-1]}, x, spec, **how)


def bias_per_rank(params, x, spec, **how):
    """Two ranks' outputs summed, each with the output bias."""
    half = spec.d_ff // 2
    total = 0.0
    for mine in (slice(None, half), slice(half, None)):
        held = {
            n: v if n == "bo" else v[mine] if n == "wo" else v[..., mine] for n, v in params.items()
        }
        total = total + ffn.apply(held, x, spec.replace(d_ff=half), **how)
    return total


def narrow_sums(params, x, spec, *, numerics, dropout_key=None):
    narrow = dataclasses.replace(numerics, accumulation_dtype="bfloat16")
    return ffn.apply(params, x, spec, numerics=narrow, dropout_key=dropout_key)


def one_by_one_in_bfloat16(params, x, spec, *, numerics, dropout_key=None):
    """Every partial sum of the down projection rounded, as an accumulator of the inputs' dtype."""
    hidden = ffn.product(params, x, spec, numerics)

    def add(total, term):
        h, row = term
        return (total + (h[..., None] * row[None, None]).astype(jnp.bfloat16)), None

    rows = params["wo"].astype(jnp.bfloat16)
    y, _ = jax.lax.scan(add, jnp.zeros_like(x), (jnp.moveaxis(hidden, -1, 0), rows))
    return ffn.finish(params, y.astype(jnp.float32), spec, numerics)


def clamp_dropped(params, x, spec, **how):
    branches = tuple(dataclasses.replace(b, pre=None) for b in spec.branches)
    return ffn.apply(params, x, spec.replace(branches=branches), **how)


def activation_of_the_product(params, x, spec, **how):
    gate, up = (x @ params["wi"][:, i] + params[f"bi_{i}"][None, None] for i in (0, 1))
    return jax.nn.silu(gate * up) @ params["wo"] + params["bo"][None, None]


def no_dropout(params, x, spec, *, numerics, dropout_key=None):
    return ffn.apply(params, x, spec, numerics=numerics)


@jax.custom_vjp
def _another_mask_backward(h, kept, other):
    return jnp.where(kept, h / 0.7, 0.0)


_another_mask_backward.defvjp(
    lambda h, kept, other: (_another_mask_backward(h, kept, other), other),
    lambda other, g: (jnp.where(other, g / 0.7, 0.0), None, None),
)


def another_mask_when_recomputed(params, x, spec, *, numerics, dropout_key=None):
    hidden = ffn.product(params, x, spec, numerics)
    masks = [
        ffn.keep_mask(key, x, spec) for key in (dropout_key, jax.random.fold_in(dropout_key, 1))
    ]
    hidden = _another_mask_backward(hidden, *masks)
    return ffn.finish(params, ffn.down(params, hidden, numerics), spec, numerics)


FAULTS = {
    "tanh for erf": (tanh_for_erf, DENSE, {}),
    "tanh for erf in float32": (tanh_for_erf, DENSE, {"dtype": "float32"}),
    "branches swapped": (branches_swapped, GATED, {"dtype": "bfloat16"}),
    "bias per rank": (bias_per_rank, GATED, {}),
    "sums in bfloat16": (narrow_sums, GATED, {"dtype": "float32"}),
    "sums in bfloat16, one by one": (
        one_by_one_in_bfloat16, GATED, {"dtype": "bfloat16", "shape": "at_128"},
    ),
    "clamp dropped": (clamp_dropped, "gpt_oss", {"probe": "tails", "dtype": "float32"}),
    "activation of the product": (activation_of_the_product, GATED, {}),
    "no dropout": (no_dropout, GATED, {"mode": "dropout"}),
    "another mask in backward": (another_mask_when_recomputed, GATED, {"mode": "dropout"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails(fault):
    apply, spec, where = FAULTS[fault]
    result = cell(apply, spec, **where)
    assert result.status == "failed", result
    assert result.compared.share > 1


@pytest.mark.parametrize("where", [{}, {"mode": "dropout", "dtype": "float32"}], ids=str)
def test_the_layer_itself_passes_where_the_faults_do_not(where):
    result = cell(ffn.apply, GATED, **where)
    assert result.status == "passed" and 0 < result.compared.share <= 1
    # d_ff, or for a weight's gradient the rows.
    assert result.compared.contraction in (16, 32)
    assert result.compared.reason.startswith(f"n = {result.compared.contraction}; ")


def test_another_mask_in_backward_is_seen_in_the_gradients_alone():
    apply, spec, _ = FAULTS["another mask in backward"]
    # Forward with the right mask is right.
    forward_only = cell(
        lambda p, x, s, **how: jax.lax.stop_gradient(apply(p, x, s, **how)), spec, mode="dropout"
    )
    assert forward_only.status == "failed" and forward_only.compared.array != "output"


# What an execution may do that leaves nothing to compare.


def three_channels(params, x, spec, **how):
    return ffn.apply(params, x, spec, **how)[..., :3]


def always_float32(params, x, spec, **how):
    return ffn.apply(params, x, spec, **how).astype(jnp.float32)


def a_tuple(params, x, spec, **how):
    return ffn.apply(params, x, spec, **how), {}


def not_in_bfloat16(params, x, spec, *, numerics, **how):
    if numerics.compute_dtype == "bfloat16":
        raise NotImplementedError("no bfloat16 kernel\nand more lines")
    return ffn.apply(params, x, spec, numerics=numerics, **how)


_donating = jax.jit(lambda x: 1.0 * x, donate_argnums=0)


def donates(params, x, spec, **how):
    return ffn.apply(params, _donating(x), spec, **how)


def in_place(params, x, spec, **how):
    y = ffn.apply(params, x, spec, **how)
    x *= 2
    return y


_draws = np.random.default_rng(0)


def dithered(params, x, spec, **how):
    y = ffn.apply(params, x, spec, **how)
    noise = jax.pure_callback(
        lambda: _draws.normal(size=y.shape).astype(y.dtype),
        jax.ShapeDtypeStruct(y.shape, y.dtype),
    )
    return y + 1e-14 * noise


INFERENCE = dict(modes=("inference",), mode="inference")
BAD = {
    "shape": (three_channels, {}, "output has shape (4, 8, 3), expected (4, 8, 8)"),
    "no array": (a_tuple, {}, "output is no array but tuple"),
    "dtype": (always_float32, {}, "output is float32, expected float64"),
    "raised": (
        not_in_bfloat16, {"dtype": "bfloat16"}, "NotImplementedError: no bfloat16 kernel",
    ),
    "donated": (donates, {"compiled": False, **INFERENCE}, "x was donated"),
    "in place": (
        in_place,
        {"compiled": False, "shape": "strided", **INFERENCE},
        "x has other values than before",
    ),
    "nondeterministic": (dithered, {}, "elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_execution_is_reported_as_what_it_is(name):
    apply, where, detail = BAD[name]
    result = cell(apply, GATED, **where)
    status = {"no array": "shape", "donated": "mutated", "in place": "mutated"}.get(name, name)
    assert result.status == status, result
    assert status in PROBLEMS and detail in result.detail and "\n" not in result.detail


@pytest.mark.slow
def test_the_rest_of_the_matrix_still_runs_beside_a_bad_execution():
    bad = Execution(name="no_bf16", summary="planted", apply=not_in_bfloat16)
    axes = matrix.narrow(
        matrix.make_axes(executions=[bad]),
        [
            "spec=swiglu",
            "no_bf16",
            "eager",
            "bfloat16",
            "float32",
            "many_rows",
            "normal",
            "training",
        ],
    )
    planned = matrix.plan(axes, "full")
    done = dict(matrix.run(axes, planned))
    statuses = {
        (place.execution, place.dtype): result.status
        for place, result in done.items()
        if isinstance(place, Point)
    }
    assert statuses == {
        ("eager", "float32"): "passed",
        ("eager", "bfloat16"): "passed",
        ("no_bf16", "float32"): "passed",
        ("no_bf16", "bfloat16"): "raised",
    }
    found = report.document(done.items(), planned, {"executions": {}})
    assert (found["cells"], found["passed"], found["failed"]) == (4, 3, 1)


def test_what_is_infinite_at_another_place_is_no_rounding():
    def overflows(params, x, spec, **how):
        y = ffn.apply(params, x, spec, **how)
        return jnp.where(y > 1, jnp.inf, y)

    result = cell(overflows, GATED, mode="inference")
    assert result.status == "nonfinite" and result.compared.disagreements > 0

    def swallows(params, x, spec, **how):
        return jnp.nan_to_num(ffn.apply(params, x, spec, **how))

    result = cell(swallows, GATED, mode="inference", probe="nonfinite")
    assert result.status == "nonfinite"
    assert cell(ffn.apply, GATED, mode="inference", probe="nonfinite").status == "passed"


def test_a_mesh_of_more_devices_than_there_are_is_not_run_and_never_passed():
    names = [name for name, execution in EXECUTIONS.items() if execution.devices > 1]
    assert {EXECUTIONS[name].devices for name in names} == {2, 4}
    runner = Runner(SPECS, EXECUTIONS, devices=jax.devices()[:1])
    for name in names:
        (result,) = runner.run([Point(GATED, name, **BASE)])
        assert result.status == "devices" in NOT_RUN and result.compared is None
        assert result.detail == f"needs {EXECUTIONS[name].devices} devices, and there is 1"
    for name in ("by_rule_1", "by_hand_1"):
        (result,) = runner.run([Point(GATED, name, **BASE)])
        assert result.status == "passed"


def test_what_an_execution_cannot_do_by_design_has_its_reason():
    runner = Runner(SPECS, EXECUTIONS)
    (result,) = runner.run([Point(GATED, "by_rule_2", **{**BASE, "shape": "odd_widths"})])
    assert result.status == "cannot" and "mlp = 13 does not divide over model=2" in result.detail
    (result,) = runner.run([Point(GATED, "sequence_parallel_2", **{**BASE, "shape": "one_row"})])
    assert result.status == "cannot" and "seq = 1 does not divide" in result.detail
    result = cell(ffn.apply, GATED, modes=("inference",))
    assert result.status == "cannot" and result.detail == "no training: a test"
    result = cell(ffn.apply, GATED, refuses=lambda spec, shape: f"not {shape}")
    assert result.status == "cannot" and result.detail == "not (4, 8, 8)"
    result = cell(ffn.apply, GATED, refuses=lambda spec, shape: 1 / 0)
    assert result.status == "raised" and "ZeroDivisionError" in result.detail


def test_a_right_answer_that_the_dtype_cannot_hold_is_not_held_against_anyone():
    specs = matrix.specs_of(["relu2*relu2*relu2"])
    point = Point("relu2*relu2*relu2", "eager", "float16", "many_rows", "tails", "inference")
    (result,) = Runner(specs, EXECUTIONS).run([point])
    assert result.status == "range" and "leaves float16" in result.detail


def test_probes_are_what_they_say():
    from glu_lab.conformance.cases import PROBES, SHAPES, draw

    shape = SHAPES["many_rows"]
    spec = SPECS[GATED](shape.d_model, shape.d_ff)
    x = {name: np.asarray(draw(spec, shape, "float32", name).x, np.float64) for name in PROBES}
    assert not np.any(x["zeros"]) and 0 < np.signbit(x["zeros"]).sum() < x["zeros"].size
    assert np.isnan(x["nonfinite"]).any()
    assert {np.inf, -np.inf} <= set(x["nonfinite"].ravel()) and np.isfinite(x["nonfinite"][1]).all()
    assert 0 < np.abs(x["near_zero"]).max() < 1e-13 and np.abs(x["tails"]).max() > 200
    strided = SHAPES["strided"]
    case = draw(SPECS[GATED](strided.d_model, strided.d_ff), strided, "bfloat16", "normal")
    views = [case.x, case.upstream, *case.params.values()]
    assert not any(view.flags.c_contiguous or view.flags.f_contiguous for view in views)

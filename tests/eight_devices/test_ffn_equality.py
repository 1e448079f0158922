"""The FFN split over devices is the FFN on one: every variant, every mesh, by rule and by hand."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from glu_lab.layers import ffn
from glu_lab.layers.params import leaves
from glu_lab.layers.placement import Placement
from glu_lab.sharding import by_hand
from glu_lab.sharding.mesh import parameter_specs, shardings
from glu_lab.spec import variant
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import MESH_AXES, Rules
from glu_lab.spec.variants import ABLATION_VARIANTS
from tests.layers import oracle

F64 = Numerics.uniform("float64")
B, S, D, F = 8, 8, 6, 16


def with_everything(spec):
    """Every term of the formula that a named variant leaves out."""
    first, *others = spec.branches
    first = dataclasses.replace(first, scale=1.3, pre=(-1.5, 2.0), post=(-0.2, 1.4), offset=0.25)
    return spec.replace(branches=(first, *others), output_scale=0.7)


PRODUCTS = {
    **{name: variant(name, d_model=D, d_ff=F, bias=False) for name in ABLATION_VARIANTS},
    "gpt_oss": variant("gpt_oss", d_model=D, d_ff=F, bias=False),
    "clamped": with_everything(variant("swiglu", d_model=D, d_ff=F)),
    "three branches": variant("silu*tanh*linear", d_model=D, d_ff=F),
}


def biased(spec):
    """The same product with every bias that there is."""
    branches = tuple(dataclasses.replace(branch, bias=True) for branch in spec.branches)
    return spec.replace(branches=branches, product_bias=True, output_bias=True)


SPECS = {
    **PRODUCTS,
    **{f"{name}, biases": biased(spec) for name, spec in PRODUCTS.items()},
}

#: Compilation is nearly all the time of these tests.
QUICK = {"xla_backend_optimization_level": 0}

#: data × model, every one of at most eight devices; and weights stored in pieces.
MESHES = [
    *((d, 1, m) for d in (1, 2, 4, 8) for m in (1, 2, 4, 8) if d * m <= 8),
    (2, 2, 2),
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def mesh_of(sizes):
    devices = jax.devices()[: math.prod(sizes)]
    kinds = (AxisType.Explicit,) * len(MESH_AXES)
    return jax.make_mesh(sizes, MESH_AXES, axis_types=kinds, devices=devices)


def random_params(spec):
    """Float64 values of order 1, biases and learned scalars too."""
    rng = np.random.default_rng(0)
    return {
        name: np.asarray(rng.normal(size=parameter.shape) * 0.8)
        for name, parameter in leaves(ffn.parameters(spec))
    }


X, UPSTREAM = np.random.default_rng(1).normal(size=(2, B, S, D))


def by_rule(rules):
    place = Placement(rules)

    def call(params, x, spec, **how):
        used = {n: place.use(params[n], p.axes) for n, p in ffn.parameters(spec).items()}
        return ffn.apply(used, x, spec, place=place, **how)

    return call


def hand(rules):
    return lambda params, x, spec, **how: by_hand.apply(params, x, spec, rules=rules, **how)


WAYS = {
    "by rule": (by_rule, Rules()),
    "by hand": (hand, Rules()),
    "by hand, sequence parallel": (hand, by_hand.SEQUENCE_PARALLEL),
}


def program(call, specs, **how):
    """Output, input gradient and every weight's gradient of every Spec, as one program."""

    def run(params, x, upstream):
        out = {}
        for name, spec in specs.items():

            def loss(p, x, spec=spec):
                y = call(p, x, spec, **how)
                return jnp.sum(y * upstream.astype(y.dtype)), y

            (_, y), (dp, dx) = jax.value_and_grad(loss, (0, 1), has_aux=True)(params[name], x)
            out[name] = {"output": y, "d x": dx, **{f"d {n}": g for n, g in dp.items()}}
        return out

    return jax.jit(run, compiler_options=QUICK)


def placed(way, sizes, specs, params, x=X, upstream=UPSTREAM, **how):
    """What `program` gives on a mesh, as NumPy arrays."""
    make, rules = WAYS[way]
    mesh = mesh_of(sizes)
    split = NamedSharding(mesh, Placement(rules).rows(x, None))
    stored = {
        name: jax.device_put(
            params[name], shardings(mesh, parameter_specs(ffn.parameters(spec), rules))
        )
        for name, spec in specs.items()
    }
    with jax.set_mesh(mesh):
        rows = jax.device_put((x, upstream), split)
        out = program(make(rules), specs, **how)(stored, *rows)
    for name, arrays in out.items():
        assert arrays["d x"].sharding == split
        for n, value in stored[name].items():
            assert arrays[f"d {n}"].sharding == value.sharding, (name, n)
    return jax.tree.map(np.asarray, out)


@pytest.fixture(scope="module")
def parameters():
    with jax.enable_x64(True):
        return {name: random_params(spec) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def single(parameters):
    """On one device, without a mesh."""
    with jax.enable_x64(True):
        out = program(ffn.apply, SPECS, numerics=F64)(parameters, X, UPSTREAM)
        return jax.tree.map(np.asarray, out)


def assert_close(got, want, bound):
    for name, arrays in want.items():
        assert got[name].keys() == arrays.keys()
        for what, value in arrays.items():
            error = np.asarray(got[name][what], np.float64) - value
            worst = np.max(np.abs(error)) / np.max(np.abs(value))
            assert worst <= bound, (name, what, worst)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_values_and_gradients_are_those_of_one_device(way, sizes, parameters, single):
    # Every Spec on every mesh and in every way, but not in all ways on one mesh: in turns.
    turn = MESHES.index(sizes) + list(WAYS).index(way)
    specs = {name: spec for i, (name, spec) in enumerate(SPECS.items()) if (i + turn) % 3 == 0}
    got = placed(way, sizes, specs, parameters, numerics=F64)
    # Sums in another order: a few ulp, 2e-16, of the largest element.
    assert_close(got, {name: single[name] for name in specs}, 1e-12)


def swiglu_by_formula(params, x, upstream):
    """Y of SwiGLU with every bias, and the gradients of Σ Y·upstream, in NumPy."""
    p = {name: np.asarray(value) for name, value in params.items()}
    gate, up = (x @ p["wi"][:, i] + p[f"bi_{i}"] for i in range(2))
    sigmoid = 1 / (1 + np.exp(-gate))
    hidden = gate * sigmoid * up + p["bp"]
    by_hidden = upstream @ p["wo"].T
    by_gate = by_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
    by_up = by_hidden * gate * sigmoid
    rows = (0, 1)
    return {
        "output": hidden @ p["wo"] + p["bo"],
        "d x": by_gate @ p["wi"][:, 0].T + by_up @ p["wi"][:, 1].T,
        "d wi": np.stack([np.einsum("bsd,bsf->df", x, g) for g in (by_gate, by_up)], axis=1),
        "d wo": np.einsum("bsf,bsd->fd", hidden, upstream),
        "d bi_0": by_gate.sum(rows),
        "d bi_1": by_up.sum(rows),
        "d bp": by_hidden.sum(rows),
        "d bo": upstream.sum(rows),
    }


@pytest.mark.parametrize("way", WAYS)
def test_swiglu_is_its_formula_in_numpy(way, parameters):
    name = "swiglu, biases"
    got = placed(way, (2, 1, 4), {name: SPECS[name]}, parameters, numerics=F64)
    want = swiglu_by_formula(parameters[name], X, UPSTREAM)
    assert_close(got, {name: want}, 1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_clamps_scales_and_learned_scalars_are_the_oracles(way):
    specs = {n: SPECS[f"{n}, biases"] for n in ("gpt_oss", "clamped", "three branches")}
    specs["learned"] = biased(variant("swish_learned*xielu", d_model=D, d_ff=F))
    params = {name: random_params(spec) for name, spec in specs.items()}
    got = placed(way, (1, 1, 8), specs, params, numerics=F64)
    for name, spec in specs.items():
        want = oracle.ffn(params[name], X, spec)
        assert_close({"y": {"y": got[name]["output"]}}, {"y": {"y": want}}, 1e-12)
    # Scalars that all devices share. Central difference: truncation h² and rounding 1e-16/h of a
    # loss of order 100, both near 1e-9.
    for scalar in ("phi_0_beta", "phi_1_p", "phi_1_n"):
        losses = [
            np.sum(oracle.ffn({**params["learned"], scalar: value}, X, specs["learned"]) * UPSTREAM)
            for value in params["learned"][scalar] + np.array([-1e-5, 1e-5])
        ]
        difference = (losses[1] - losses[0]) / 2e-5
        assert got["learned"][f"d {scalar}"] == pytest.approx(difference, rel=1e-7), scalar


def test_dropout_masks_are_the_same_too(parameters):
    """A mask of another draw would move outputs by their own size."""
    name = "swiglu, biases"
    specs = {
        shared: SPECS[name].replace(hidden_dropout=0.3, hidden_dropout_shared=shared)
        for shared in ((), ("position",), ("batch",))
    }
    params = dict.fromkeys(specs, parameters[name])
    how = dict(numerics=F64, dropout_key=jax.random.key(3))
    want = program(ffn.apply, specs, **how)(params, X, UPSTREAM)
    for sizes, way in itertools.product(((2, 1, 4), (1, 1, 8)), WAYS):
        got = placed(way, sizes, specs, params, **how)
        assert_close(got, jax.tree.map(np.asarray, want), 1e-12)


# Of an output or gradient's largest element. Sums have at most B·S = 64 terms (N·F = 32 for the
# input's gradient) and differ by that many roundings where their order does.
ROUNDINGS = B * S
NARROW = {
    "float32": (Numerics(), lambda parts: ROUNDINGS * 2.0**-24),
    # Sums within a device are taken in float32. By hand, gradients that are summed over devices are
    # rounded to bfloat16 before it, one for each device, and once after it.
    "bfloat16": (
        Numerics(compute_dtype="bfloat16"),
        lambda parts: ROUNDINGS * 2.0**-24 + (parts + 1) * 2.0**-8,
    ),
}


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_formats_differ_by_the_rounding_of_their_sums(dtype, parameters):
    numerics, bound = NARROW[dtype]
    specs = {n: SPECS[n] for n in ("swiglu, biases", "clamped, biases")}
    sizes = (2, 1, 4)
    narrow, x, upstream = jax.tree.map(
        lambda value: value.astype(np.float32),
        ({name: parameters[name] for name in specs}, X, UPSTREAM),
    )
    want = program(ffn.apply, specs, numerics=numerics)(narrow, x, upstream)
    want = jax.tree.map(lambda value: np.asarray(value, np.float64), want)
    for way in WAYS:
        got = placed(way, sizes, specs, narrow, x, upstream, numerics=numerics)
        assert_close(got, want, bound(max(sizes)))

"""Tensor parallelism by hand: its collectives, its masks, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec, reshard

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.sharding import by_hand
from glu_lab.sharding.collectives import COMPILER_OPTIONS, collectives
from glu_lab.sharding.mesh import make_mesh
from glu_lab.spec import variant
from glu_lab.spec.sharding import MESH_AXES, Rules

B, S, D, F = 4, 8, 6, 16
SPEC = variant("swiglu", d_model=D, d_ff=F, bias=True, product_bias=True)
PLAIN, SEQUENCE = Rules(), by_hand.SEQUENCE_PARALLEL
WHOLE_ROWS = PartitionSpec(("data", "fsdp"), None, None)


def ones(spec):
    return {name: jnp.ones(p.shape) for name, p in ffn.parameters(spec).items()}


def run(params, x, spec, rules=PLAIN, key=None):
    """On the mesh entered, compiled."""

    def call(params, x):
        return by_hand.apply(params, x, spec, rules=rules, dropout_key=key)

    return jax.jit(call)(params, reshard(x, Placement(rules).rows(x, None)))


def placed_rows(rules=PLAIN, shape=(B, S, D)):
    x = jnp.ones(shape)
    return reshard(x, Placement(rules).rows(x, None))


# Collectives.


def over_model(function, params, x, mesh):
    """(Kind, elements) of what goes over the model axis, in the compiled program."""
    lowered = jax.jit(function).lower(params, x)
    text = lowered.compile(compiler_options=dict(COMPILER_OPTIONS)).as_text()
    return sorted((c.kind, c.elements) for c in collectives(text, mesh) if "model" in c.axes)


@pytest.mark.parametrize(
    ("rules", "kinds"),
    [(PLAIN, ["all-reduce"]), (SEQUENCE, ["all-gather", "reduce-scatter"])],
    ids=["plain", "sequence parallel"],
)
def test_each_way_moves_the_rows_once(rules, kinds):
    """The gradients of all three branches are summed before they are: T·D and not 3·T·D."""
    spec = variant("silu*tanh*linear", d_model=D, d_ff=F)
    mesh = make_mesh("data=2,model=4")

    def apply(params, x):
        return by_hand.apply(params, x, spec, rules=rules)

    def both(params, x):
        y, back = jax.vjp(apply, params, x)
        return y, back(jnp.sin(y))

    with jax.set_mesh(mesh):
        table = ffn.parameters(spec)
        params = {n: Placement(rules).use(p, table[n].axes) for n, p in ones(spec).items()}
        x = placed_rows(rules)
        once = [(kind, B // 2 * S * D) for kind in kinds]
        assert over_model(apply, params, x, mesh) == once
        assert over_model(both, params, x, mesh) == sorted(once + once)


# Masks.


def counting_spec(**fields):
    """H is 1 everywhere and W_o the identity: the output shows the mask."""
    spec = variant("linear", d_model=F, d_ff=F, bias=True, hidden_dropout=0.5, **fields)
    params = {"wi": jnp.zeros((F, 1, F)), "bi_0": jnp.ones(F), "wo": jnp.eye(F), "bo": jnp.zeros(F)}
    return spec, params


@pytest.mark.parametrize("shared", [(), ("position",), ("batch",)], ids=str)
def test_masks_are_those_of_one_device_draw_for_draw(shared):
    spec, params = counting_spec(hidden_dropout_shared=shared)
    key = jax.random.key(7)
    shape = (8, 8, F)
    one = np.asarray(ffn.apply(params, jnp.ones(shape), spec, dropout_key=key))
    assert set(np.unique(one)) == {0, 2}
    for text in ("model=8", "data=2,model=4", "data=2,fsdp=2,model=2", "data=8"):
        with jax.set_mesh(make_mesh(text)):
            for rules in (PLAIN, SEQUENCE):
                got = run(params, jnp.ones(shape), spec, rules, key)
                np.testing.assert_array_equal(got, one)


# Other rules and ranks.


def test_channels_can_be_split_over_two_axes():
    rules = Rules(batch=("data",), embed=(), mlp=("fsdp", "model"))
    params = ffn.init(jax.random.key(0), SPEC)
    x = jax.random.normal(jax.random.key(1), (B, S, D))
    want = ffn.apply(params, x, SPEC)
    with jax.set_mesh(make_mesh("data=2,fsdp=2,model=2")):
        for each in (rules, dataclasses.replace(rules, seq=rules.mlp)):
            got = run(params, x, SPEC, each)
            assert got.sharding.spec == Placement(each).rows(x, None)
            # float32, 16 terms in another order, of outputs of order 1.
            np.testing.assert_allclose(got, want, atol=1e-6)


def test_rows_may_have_any_number_of_leading_dimensions():
    params = ffn.init(jax.random.key(0), SPEC)
    with jax.set_mesh(make_mesh("data=2,model=4")):
        for shape in ((D,), (B, D), (B, S, D), (B, S, 3, D)):
            x = jax.random.normal(jax.random.key(1), shape)
            for rules in (PLAIN, SEQUENCE) if len(shape) > 2 else (PLAIN,):
                got = run(params, x, SPEC, rules)
                np.testing.assert_allclose(got, ffn.apply(params, x, SPEC), atol=1e-6)


def test_channels_that_no_axis_splits_need_no_collective():
    rules = Rules(mlp=(), seq=("model",))
    mesh = make_mesh("data=2,model=4")

    def apply(params, x):
        return by_hand.apply(params, x, SPEC, rules=rules)

    with jax.set_mesh(mesh):
        assert over_model(apply, ones(SPEC), placed_rows(rules), mesh) == []


# What is refused.


def test_a_forgotten_sum_is_an_error_and_no_wrong_number(monkeypatch):
    monkeypatch.setattr(jax.lax, "psum", lambda y, axes: y)
    with jax.set_mesh(make_mesh("data=2,model=4")):
        with pytest.raises(ValueError, match="out_specs"):
            by_hand.apply(ones(SPEC), placed_rows(), SPEC)


def refused(text, spec=SPEC, rules=PLAIN, shape=(B, S, D), layout=None):
    """The message."""
    with jax.set_mesh(make_mesh(text)):
        x = reshard(jnp.ones(shape), layout or PartitionSpec())
        params = ones(spec)
        with pytest.raises(SpecError) as error:
            by_hand.apply(params, x, spec, rules=rules)
    return str(error.value)


def test_sizes_that_do_not_divide_are_refused_with_the_nearest():
    # 2F = 6 divides by 2, and a packed pair of branches cut in halves would pass.
    three = variant("swiglu", d_model=D, d_ff=3)
    said = refused("data=4,model=2", three)
    assert "mlp = 3 does not divide over model=2; the nearest sizes that do are 2 and 4" in said
    said = refused("data=2,model=4", rules=SEQUENCE, shape=(B, 6, D))
    assert "seq = 6 does not divide over model=4; the nearest sizes that do are 4 and 8" in said
    assert "seq = 6, mlp = 16 together admit model = 1, 2." in said
    said = refused("data=8", shape=(B, S, D))
    assert "batch = 4 does not divide over data=8 × fsdp=1" in said


def test_more_parts_than_devices_are_refused():
    with pytest.raises(SpecError, match="'model=16' needs 16 devices; there are 8"):
        make_mesh("model=16")


def test_rules_that_do_not_fit_together_are_refused():
    mesh = "data=2,fsdp=2,model=2"
    both = Rules(batch=("data",), embed=(), mlp=("fsdp", "model"), seq=("model",))
    assert "Sequence parallelism takes seq=('fsdp', 'model')" in refused(mesh, rules=both)
    over_rows = Rules(mlp=("data",))
    assert "'batch' and 'mlp' both lie on mesh axis 'data'" in refused(mesh, rules=over_rows)
    assert "(batch, position, d_model)" in refused(mesh, rules=SEQUENCE, shape=(S, D))


def test_rows_are_not_moved_behind_ones_back():
    said = refused("data=2,model=4", rules=SEQUENCE, layout=WHOLE_ROWS)
    assert "x lies as P(('data', 'fsdp'), None, None); the rules lay rows as" in said
    assert "jax.sharding.reshard(x, P(('data', 'fsdp'), 'model', None))" in said
    elsewhere = jnp.ones((B, S, D))
    with jax.set_mesh(make_mesh("data=2,model=4")):
        with pytest.raises(SpecError, match="x does not lie on this mesh"):
            by_hand.apply(ones(SPEC), elsewhere, SPEC)


def test_a_mesh_must_be_entered_and_have_explicit_axes():
    x = jnp.ones((B, S, D))
    with pytest.raises(SpecError, match=r"jax.set_mesh; it found none"):
        by_hand.apply(ones(SPEC), x, SPEC)
    auto = jax.make_mesh((1, 1, 8), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    other = jax.make_mesh((8,), ("tensor",), axis_types=(AxisType.Explicit,))
    for mesh in (auto, other):
        with jax.set_mesh(mesh), pytest.raises(SpecError, match="glu_lab.sharding.mesh.make_mesh"):
            by_hand.apply(ones(SPEC), x, SPEC)


def test_rows_and_parameters_of_another_spec_are_refused():
    with jax.set_mesh(make_mesh("data=2,model=4")):
        with pytest.raises(ValueError, match="d_model=6"):
            by_hand.apply(ones(SPEC), jnp.ones((B, S, D + 1)), SPEC)
        with pytest.raises(ValueError, match="do not fit the Spec"):
            by_hand.apply({}, placed_rows(), SPEC)

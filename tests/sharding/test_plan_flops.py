"""Counted operations against counts by hand: matrices, loops, recomputation, split arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from glu_lab.layers import attention, ffn
from glu_lab.layers.placement import Placement
from glu_lab.sharding.flops import count_flops
from glu_lab.sharding.mesh import parameter_specs
from glu_lab.sharding.targets import abstract_mesh, entered
from glu_lab.spec import variant
from glu_lab.spec.model import Attention
from glu_lab.spec.sharding import Rules

B, S, D, F, N, L = 8, 5, 16, 24, 2, 3
H, G, K = 8, 4, 6
T = B * S

MESHES = (
    {"data": 1, "fsdp": 1, "model": 1},
    {"data": 2, "fsdp": 1, "model": 4},
    {"data": 2, "fsdp": 4, "model": 1},
    {"data": 1, "fsdp": 2, "model": 2},
)
ON_MESHES = pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: str(tuple(sizes.values())))


def devices(sizes):
    return int(np.prod(list(sizes.values())))


def shaped(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def traced(function, *arguments):
    return count_flops(jax.jit(function).trace(*arguments).jaxpr)


class OnMesh:
    """Arguments and layouts of a layer on a mesh that is only a description."""

    def __init__(self, sizes, table, layers=0):
        self.mesh, self.place = abstract_mesh(sizes), Placement(Rules())
        leading = (layers,) if layers else ()
        specs = parameter_specs(table, Rules())

        def one(name):
            parameter = table[name]
            spec = P(*((None,) * len(leading)), *specs[name])
            return jax.ShapeDtypeStruct(
                (*leading, *parameter.shape), jnp.float32, sharding=NamedSharding(self.mesh, spec)
            )

        self.params = {name: one(name) for name in table}
        batch = NamedSharding(self.mesh, P(("data", "fsdp")))
        self.x = jax.ShapeDtypeStruct((B, S, D), jnp.float32, sharding=batch)
        self.mask = jax.ShapeDtypeStruct((B, 1, S, S), jnp.bool_, sharding=batch)
        self.table = table

    def used(self, params):
        return {n: self.place.use(value, self.table[n].axes) for n, value in params.items()}

    def flops(self, function, *arguments):
        with entered(self.mesh):
            return traced(function, *arguments)


SPEC = variant("swiglu", d_model=D, d_ff=F)
UP, DOWN = 2 * T * D * N * F, 2 * T * F * D


def one_ffn(on):
    return lambda params, x: ffn.apply(on.used(params), x, SPEC, place=on.place).sum()


@ON_MESHES
def test_an_ffn_and_its_gradient(sizes):
    on = OnMesh(sizes, ffn.parameters(SPEC))
    forward = on.flops(one_ffn(on), on.params, on.x)
    assert forward.per_device == (UP + DOWN) // devices(sizes)
    assert forward.compiler_placed == forward.once == 0 and not forward.opaque
    # Backward multiplies twice with each matrix: for the weight and for the input.
    backward = on.flops(jax.grad(one_ffn(on), (0, 1)), on.params, on.x)
    assert backward.per_device == 3 * (UP + DOWN) // devices(sizes)
    weights = on.flops(jax.grad(one_ffn(on)), on.params, on.x)
    assert weights.per_device == (3 * (UP + DOWN) - UP) // devices(sizes)


@ON_MESHES
@pytest.mark.parametrize("remat", [False, True])
def test_a_scan_of_ffns_with_and_without_recomputation(sizes, remat):
    on = OnMesh(sizes, ffn.parameters(SPEC), layers=L)

    def layer(x, params):
        return x + ffn.apply(on.used(params), x, SPEC, place=on.place), None

    body = jax.checkpoint(layer, prevent_cse=False) if remat else layer

    def loss(params, x):
        return jax.lax.scan(body, x, params)[0].sum()

    found = on.flops(jax.grad(loss, (0, 1)), on.params, on.x)
    # The down projection's own result is not needed by backward: only `up` is done again.
    once = 3 * (UP + DOWN) + (UP if remat else 0)
    assert found.per_device == L * once // devices(sizes)


@pytest.mark.parametrize("sizes", MESHES[:2], ids=str)
def test_an_attention_layer_with_grouped_heads(sizes):
    spec = Attention(num_heads=H, num_kv_heads=G, head_dim=K)
    on = OnMesh(sizes, attention.parameters(spec, D))

    def attend(params, x, mask):
        return attention.apply(on.used(params), x, x, spec, mask=mask, place=on.place).sum()

    projections = 2 * T * D * K * (H + G + G + H)
    scores_and_values = 2 * 2 * B * H * S * S * K
    forward = on.flops(attend, on.params, on.x, on.mask)
    assert forward.per_device == (projections + scores_and_values) // devices(sizes)
    backward = on.flops(jax.grad(attend, (0, 1)), on.params, on.x, on.mask)
    assert backward.per_device == 3 * (projections + scores_and_values) // devices(sizes)


SQUARE = shaped(4, 4)
PRODUCT = 2 * 4**3


def test_loops_count_their_trips_where_these_are_known():
    def repeated(lower, upper):
        return lambda x: jax.lax.fori_loop(lower, upper, lambda _, y: y @ x, x)

    def stepping(start, stop, step):
        def loop(x):
            return jax.lax.while_loop(lambda c: c[0] < stop, lambda c: (c[0] + step, c[1] @ x), c)

        c = (start, jnp.eye(4))
        return loop

    def carrying(x):
        return jax.lax.while_loop(
            lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1], c[2] @ x), (2, 7, x)
        )

    assert traced(repeated(2, 7), SQUARE).per_device == 5 * PRODUCT
    assert traced(carrying, SQUARE).per_device == 5 * PRODUCT
    assert traced(stepping(0, 7, 2), SQUARE).per_device == 4 * PRODUCT
    assert traced(stepping(1, 7, 2), SQUARE).per_device == 3 * PRODUCT
    assert traced(stepping(9, 7, 2), SQUARE).per_device == 0


def test_a_loop_that_data_end_counts_once_and_says_so():
    def until(n, x):
        return jax.lax.fori_loop(0, n, lambda _, y: y @ x, x)

    def halving(x):
        return jax.lax.while_loop(lambda y: y.sum() > 1.0, lambda y: 0.5 * y @ x, x)

    for found in (traced(until, jax.ShapeDtypeStruct((), jnp.int32), SQUARE),
                  traced(halving, SQUARE)):  # fmt: skip
        assert found.per_device == found.once == PRODUCT


def test_of_the_branches_of_a_conditional_the_dearest_counts():
    def choose(i, x):
        return jax.lax.switch(i, [lambda x: x, lambda x: x @ x @ x, lambda x: x @ x], x)

    assert traced(choose, jax.ShapeDtypeStruct((), jnp.int32), SQUARE).per_device == 2 * PRODUCT


def test_nested_programs_and_custom_derivatives_are_looked_into():
    @jax.custom_vjp
    def twice(x):
        return x @ x

    twice.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x.T + x.T @ g,))

    def nested(x):
        return jax.jit(lambda y: jax.lax.scan(lambda c, _: (twice(c), None), y, length=6)[0])(x)

    assert traced(nested, SQUARE).per_device == 6 * PRODUCT
    gradient = traced(jax.grad(lambda x: nested(x).sum()), SQUARE)
    assert gradient.per_device == 3 * 6 * PRODUCT


def test_a_grouped_convolution():
    # 9 of 12 positions; each output channel sees 6 of the 12 input channels at 4 positions.
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        )

    found = traced(convolve, shaped(3, 12, 12), shaped(4, 6, 10))
    assert found.per_device == 2 * 3 * 9 * 10 * 6 * 4


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (P(None, None, "model"), P()),  # The contracted dimension of one operand,
        (P(), P(None, "model", None)),  # or of the other,
        (P("model", None, None), P()),  # and the same of a batch dimension.
        (P(), P("model", None, None)),
    ],
    ids=str,
)
def test_a_dimension_that_one_operand_splits_is_split(left, right):
    mesh = abstract_mesh({"data": 1, "fsdp": 1, "model": 4})
    x, y = (
        jax.ShapeDtypeStruct((8, 8, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
        for spec in (left, right)
    )
    with entered(mesh):
        try:
            found = traced(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), x, y)
        except Exception as error:
            # jax 0.12 wants a batch dimension to be split alike in both operands.
            if "batch dimensions to have the same sharding" not in str(error):
                raise
            pytest.skip("this jax refuses such a product")
    assert found.per_device == 2 * 8**4 // 4


def test_what_the_compiler_lays_out_is_counted_whole_and_named():
    mesh = abstract_mesh({"data": 1, "fsdp": 1, "model": 4})
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    square = jax.sharding.auto_axes(lambda x: x @ x, out_sharding=P("model"))
    with entered(mesh):
        found = traced(square, x)
    assert found.per_device == found.compiler_placed == PRODUCT


def test_inside_a_shard_map_shapes_are_those_of_one_device():
    mesh = abstract_mesh({"data": 2, "fsdp": 1, "model": 4})

    def local(x, w):
        return jax.lax.psum(x @ w, "model")

    product = jax.shard_map(
        local, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None)
    )
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    w = jax.ShapeDtypeStruct((8, 12), jnp.float32, sharding=NamedSharding(mesh, P("model", None)))
    with entered(mesh):
        found = traced(product, x, w)
    assert found.per_device == 2 * 16 * 8 * 12 // 8
    assert found.compiler_placed == 0


def test_hidden_arithmetic_is_named():
    def called(x):
        return jax.lax.scan(
            lambda c, _: (jax.pure_callback(np.asarray, SQUARE, c), None), x, length=3
        )[0]

    found = traced(called, SQUARE)
    assert found.per_device == 0
    assert found.opaque == {"pure_callback": 3}

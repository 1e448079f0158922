"""What compiled programs communicate on eight devices, and that FFNs are at their minimum."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from glu_lab.data.shapes import UnpreparedDataset
from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.sharding import by_hand
from glu_lab.sharding.audit import Site, audit, ffn_site, model_sites
from glu_lab.sharding.collectives import COMPILER_OPTIONS, collectives
from glu_lab.sharding.mesh import automatic, make_mesh, parameter_specs, shardings
from glu_lab.spec import variant
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Attention
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import MESH_AXES, Rules
from glu_lab.spec.variants import VARIANTS
from glu_lab.training.programs import Programs, program_key
from tests.training.small import retrained, small_experiment, small_model, text_data

B, S, D, F = 4, 8, 16, 32

RESHARDING = {"all-gather", "all-to-all", "collective-permute", "collective-broadcast"}


def compiled(function, *arguments, mesh, **how):
    with jax.set_mesh(mesh):
        lowered = jax.jit(function, **how).lower(*arguments)
    return collectives(lowered.compile(compiler_options=dict(COMPILER_OPTIONS)).as_text(), mesh)


def by_rule(params, x, spec, rules, **how):
    place = Placement(rules)
    used = {n: place.use(params[n], p.axes) for n, p in ffn.parameters(spec).items()}
    return ffn.apply(used, x, spec, place=place, **how)


def hand(params, x, spec, rules, **how):
    return by_hand.apply(params, x, spec, rules=rules, **how)


def audited(call, specs, mesh, rules=Rules(), numerics=Numerics(), key=None):
    """The audit of several FFNs, each with rows of its own, and their gradients."""
    split = NamedSharding(mesh, Placement(rules).rows(jnp.zeros((B, S, D)), None))
    dtype = jnp.dtype(numerics.compute_dtype)

    def abstract(shape, where):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    params, rows = {}, {}
    for name, spec in specs.items():
        table = ffn.parameters(spec)
        where = shardings(mesh, parameter_specs(table, rules))
        params[name] = {n: abstract(p.shape, where[n]) for n, p in table.items()}
        rows[name] = abstract((B, S, D), split)

    def everything(params, rows, upstream):
        out = {}
        for name, spec in specs.items():

            def forward(p, x, name=name, spec=spec):
                with jax.named_scope(f"{name}/ffn"):
                    return call(p, x, spec, rules, numerics=numerics, dropout_key=key)

            y, back = jax.vjp(forward, params[name], rows[name])
            out[name] = y, back(upstream[name])
        return out

    found = compiled(everything, params, rows, rows, mesh=mesh)
    sites = [ffn_site(s, f"{n}/ffn", (B, S), rules, mesh.shape) for n, s in specs.items()]
    return audit(found, sites)


def over_model(found):
    return [row for row in found.rows if row.minimum_bytes is not None]


def test_every_variant_is_at_the_minimum_by_rule():
    """Forward one sum of T·D over `model`, backward one; nothing moves between gate and product."""
    specs = {
        f"{name}{'_biases' * bias}": variant(name, d_model=D, d_ff=F, bias=bias)
        for name in VARIANTS
        for bias in (False, True)
    }
    found = audited(by_rule, specs, make_mesh("data=2,model=4"))
    assert len(found.sums) == 2 * len(specs)
    assert {total.ratio for total in found.sums} == {1.0} == {found.worst_ratio}
    rows = over_model(found)
    assert len(rows) == 2 * len(specs)
    for row in rows:
        assert (row.kind, row.axis, row.elements) == ("all-reduce", "model", B // 2 * S * D)
        assert (row.count, row.ratio) == (1, 1.0)
    assert not any(row.kind in RESHARDING for row in found.rows)


@pytest.mark.parametrize("mesh", ["data=2,model=4", "fsdp=4,model=2", "model=8"])
def test_meshes_stored_pieces_and_dropout_change_nothing(mesh):
    """Weights stored in pieces are gathered over `fsdp`; a mask is drawn where it is used."""
    spec = variant("swiglu", d_model=D, d_ff=F, hidden_dropout=0.5)
    found = audited(by_rule, {"one": spec}, make_mesh(mesh), key=jax.random.key(0))
    assert {total.ratio for total in found.sums} == {1.0}
    gathers = [row for row in found.rows if row.kind in RESHARDING]
    assert {row.axis for row in gathers} == ({"fsdp"} if "fsdp" in mesh else set())
    if gathers:
        assert sum(row.elements for row in gathers) == (2 * D * F + F * D) // 2


def test_by_hand_plain_and_sequence_parallel():
    specs = {n: variant(n, d_model=D, d_ff=F, bias=True) for n in ("relu", "swiglu", "gpt_oss")}
    mesh = make_mesh("data=2,model=4")
    each_way = B // 2 * S * D
    plain = audited(hand, specs, mesh)
    assert {total.ratio for total in plain.sums} == {1.0}
    assert {(row.kind, row.elements) for row in over_model(plain)} == {("all-reduce", each_way)}

    split = audited(hand, specs, mesh, by_hand.SEQUENCE_PARALLEL)
    assert {total.ratio for total in split.sums} == {1.0}
    for name in specs:
        rows = [row for row in over_model(split) if row.module == f"{name}/ffn"]
        shown = sorted((row.phase, row.kind, row.elements, row.count) for row in rows)
        assert shown == [
            ("backward", "all-gather", each_way, 1),
            ("backward", "all-reduce", D, 1),  # of the output bias, added to each split
            ("backward", "reduce-scatter", each_way, 1),
            ("forward", "all-gather", each_way, 1),
            ("forward", "reduce-scatter", each_way, 1),
        ]


def test_bfloat16_counts_as_such():
    """Also where the CPU's compiler computes and moves it as float32."""
    specs = {"swiglu": variant("swiglu", d_model=D, d_ff=F)}
    numerics, mesh = Numerics.uniform("bfloat16"), make_mesh("data=2,model=4")
    for call, rules in ((by_rule, Rules()), (hand, by_hand.SEQUENCE_PARALLEL)):
        found = audited(call, specs, mesh, rules, numerics)
        assert {row.dtype for row in found.rows} == {"bfloat16"}
        assert {row.bytes for row in over_model(found)} == {B // 2 * S * D * 2}


def wrong(mesh, layer, **weights):
    """The audit of a layer whose weights lie as stated and that leaves the rest to the compiler."""
    mesh = automatic(mesh)

    def array(shape, *split):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*split)))

    def everything(w, x, upstream):
        def forward(w, x):
            with jax.named_scope("ffn"):
                return layer(w, x)

        y, back = jax.vjp(forward, w, x)
        return y, back(upstream)

    weights = {name: array(*weight) for name, weight in weights.items()}
    weights["wo"] = array((F, D), "model")
    x = array((B, S, D), "data")
    out = jax.tree.map(lambda a: a.sharding, (x, (weights, x)))
    found = compiled(everything, weights, x, x, mesh=mesh, out_shardings=out)
    site = Site(path="ffn", rows=B // 2 * S, d_model=D, over=("model",))
    found = audit(found, [site])
    extra = {row.kind for row in found.rows if row.minimum_bytes == 0}
    return {total.phase: total.ratio for total in found.sums}, extra


def swiglu(w, gate, up):
    return (jax.nn.silu(gate) * up) @ w["wo"]


def test_what_wrong_layouts_cost():
    """Seen with jax 0.10 for T·D = 256 and T·F = 512: the ratios beside each."""
    mesh = make_mesh("data=2,model=4")

    def canonical(w, x):
        return swiglu(w, *jnp.moveaxis(jnp.einsum("bsd,dnf->bsnf", x, w["wi"]), 2, 0))

    ratios, extra = wrong(mesh, canonical, wi=((D, 2, F), None, None, "model"))
    assert ratios == {"forward": 1.0, "backward": 1.0} and not extra

    # Two matrices and two products: each product's gradient is summed for itself.
    def apart(w, x):
        return swiglu(w, x @ w["gate"], x @ w["up"])

    columns = ((D, F), None, "model")
    ratios, extra = wrong(mesh, apart, gate=columns, up=columns)
    assert ratios == {"forward": 1.0, "backward": 2.0} and not extra

    # Packed, [gate; up] cut into contiguous pieces: half of the devices have gates and half ups.
    def packed(w, x):
        return swiglu(w, *jnp.split(x @ w["wi"], 2, axis=-1))

    ratios, extra = wrong(mesh, packed, wi=((D, 2 * F), None, "model"))
    assert ratios["forward"] >= 2 and ratios["backward"] >= 2, ratios  # 3.5 and 3.0
    assert extra & RESHARDING

    # The up branch split by rows: its product has to be moved to where the gate's is.
    ratios, extra = wrong(mesh, apart, gate=columns, up=((D, F), "model", None))
    assert ratios["forward"] >= 1.5 and ratios["backward"] >= 2, ratios  # 1.5 and 4.0
    assert extra & RESHARDING


def test_axes_are_the_meshs_own_in_any_order_of_devices():
    """Device numbers of a program are places in the mesh, not ids of devices."""
    devices = np.asarray(jax.devices())[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(2, 2, 2)
    mesh = Mesh(devices, MESH_AXES, axis_types=(AxisType.Explicit,) * 3)
    every = [c for n in (1, 2, 3) for c in itertools.combinations(MESH_AXES, n)]

    def sums(x):
        return [jax.lax.psum(x * float(i), axes) for i, axes in enumerate(every, 1)]

    out = [P(tuple(a for a in MESH_AXES if a not in axes) or None) for axes in every]
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P(MESH_AXES)))
    found = compiled(jax.shard_map(sums, in_specs=P(MESH_AXES), out_specs=out), x, mesh=mesh)
    assert sorted(c.axes for c in found) == sorted(every)
    assert all(c.group_size == 2 ** len(c.axes) for c in found)


def model_audit(experiment, mesh, program="train"):
    key = program_key(experiment, UnpreparedDataset(experiment.data))
    mesh = make_mesh(mesh)
    lowered = Programs(key, mesh).lower(program)
    text = lowered.compile(compiler_options=dict(COMPILER_OPTIONS)).as_text()
    batch = dict(key.train_batch if program == "train" else key.eval_batch)
    sites = model_sites(experiment.model, batch, Rules(), mesh.shape)
    return audit(collectives(text, mesh), sites)


def experiment(kind, execution=Execution(), **fields):
    objective = {"decoder": "causal_lm", "encoder_decoder": "span_corruption"}[kind]
    attention = Attention(num_heads=2, num_kv_heads=2, head_dim=4)
    model = small_model(kind, "swiglu", attention=attention, ffn={"hidden_dropout": 0.1}, **fields)
    data = text_data("nowhere", objective=objective)
    return small_experiment(data, model=model, execution=execution, eval_batch_size=8)


@pytest.mark.slow
def test_the_ffns_of_a_training_step():
    """With recomputation, micro-batches in a loop, layers in a loop, and weights in pieces."""
    whole = experiment("decoder", Execution(remat="block"))
    found = model_audit(retrained(whole, batch_size=16, microbatches=2), "data=2,fsdp=2,model=2")
    assert {total.phase: total.ratio for total in found.sums} == {"forward": 1.0, "backward": 1.0}
    rows = over_model(found)
    # Of a micro-batch, 2 rows of 16 tokens a device; 2 micro-batches of 2 layers.
    assert {(row.kind, row.elements, row.trips) for row in rows} == {("all-reduce", 2 * 16 * 8, 4)}
    phases = {row.phase for row in found.rows}
    assert phases == {"forward", "backward", "update"}


def test_both_stacks_of_an_evaluation_with_layers_written_out():
    written_out = experiment("encoder_decoder", Execution(scan_layers=False))
    found = model_audit(written_out, "data=2,model=2,fsdp=2", "evaluate")
    looped = dataclasses.replace(written_out, execution=Execution())
    same = model_audit(looped, "data=2,model=2,fsdp=2", "evaluate")
    assert [total.site for total in found.sums] == ["encoder/layers/ffn", "decoder/layers/ffn"]
    assert found.sums == same.sums and found.worst_ratio == 1.0
    assert {row.phase for row in found.rows} == {"forward"}
    assert {row.trips for row in over_model(found)} == {1}
    assert {row.trips for row in over_model(same)} == {1, 2}

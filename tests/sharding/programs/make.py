"""Writes the compiled programs that the tests of collectives read; run it where jax has changed.

    python tests/sharding/programs/make.py

Those for TPUs need the package libtpu and are left as they are without it. The one for GPUs,
for which there is no compiler without them, is written by hand; XLA's own parser reads it and
prints it again.
"""

import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from glu_lab.layers import ffn
from glu_lab.layers.placement import Placement
from glu_lab.sharding import targets
from glu_lab.sharding.mesh import parameter_specs, shardings
from glu_lab.spec import variant
from glu_lab.spec.sharding import Rules

FOLDER = Path(__file__).parent
SIZES = {"data": 2, "fsdp": 1, "model": 4}


def readable(text: str) -> str:
    """Without where in the source things stand, and layouts of memory that nobody asks for."""
    head, _, rest = text.partition("\n")
    rest = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "\n", rest)
    rest = re.sub(r" stack_frame_id=\d+", "", rest)
    rest = re.sub(r', backend_config=\{"(?!dynamic_variables)[^\n]*', "", rest)
    return head.split(",")[0] + "\n\n" + rest.strip() + "\n"


def write(name: str, text: str) -> None:
    (FOLDER / f"{name}.txt").write_text(readable(text))


def manual(body, mesh, x, spec, out):
    """A function of one device's block, compiled."""
    split = jax.sharding.NamedSharding(mesh, spec)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out)
    with jax.set_mesh(mesh):
        return jax.jit(mapped).lower(jax.ShapeDtypeStruct(*x, sharding=split)).compile().as_text()


def kinds(x):
    whole = lax.all_gather(x, "model", tiled=True)
    part = lax.psum_scatter(whole * whole, "model", scatter_dimension=0, tiled=True)
    return (
        part,
        lax.psum(part + 1, ("data", "model")),
        lax.all_to_all(part.reshape(4, -1, part.shape[-1]), "model", 0, 0),
        lax.ppermute(part, "model", [(i, (i + 1) % 4) for i in range(4)]),
    )


def loops(x):
    def vary(value, axis):
        return lax.pcast(value, axis, to="varying")

    def inner(carry, _):
        return vary(lax.psum(jnp.sin(carry), "model"), "model"), None

    def outer(carry, _):
        carry, _ = lax.scan(inner, carry, None, length=3)
        return vary(lax.psum(carry * 0.5, "data"), "data"), None

    nested, _ = lax.scan(outer, x, None, length=5)
    stepped = lax.fori_loop(2, 9, lambda i, c: vary(lax.pmax(jnp.cos(c), "model"), "model"), x)
    return nested, stepped


def on_data(x):
    """A loop that ends when its data say so."""
    return lax.while_loop(
        lambda c: jnp.sum(c) < 9.0,
        lambda c: lax.pcast(lax.psum(c, "model"), "model", to="varying"),
        x,
    )


def feed_forward(mesh, layers=None, dtype=jnp.float32, d_ff=32):
    """(params, x, upstream) → output and gradients of a SwiGLU, or of a stack of them."""
    spec = variant("swiglu", d_model=16, d_ff=d_ff)
    table, rules = ffn.parameters(spec), Rules()
    place = Placement(rules)
    specs = shardings(mesh, parameter_specs(table, rules))

    def array(shape, split):
        if layers and shape[0] != 4:
            shape, split = (layers, *shape), P(None, *split)
        where = jax.sharding.NamedSharding(mesh, split)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    params = {n: array(p.shape, specs[n].spec) for n, p in table.items()}
    x = array((4, 8, 16), P(("data", "fsdp")))

    def one(params, x):
        with jax.named_scope("ffn"):
            used = {n: place.use(params[n], p.axes) for n, p in table.items()}
            return ffn.apply(used, x, spec, place=place)

    def stack(params, x):
        if not layers:
            return one(params, x)
        return lax.scan(lambda x, p: (one(p, x).astype(x.dtype), None), x, params)[0]

    def both(params, x, upstream):
        y, back = jax.vjp(stack, params, x)
        return y, back(upstream)

    return (both if not layers else stack), ((params, x, x) if not layers else (params, x))


def scattered(mesh):
    """(x, w) → a product whose sum over devices the compiler scatters by itself."""

    def array(shape, *split):
        where = jax.sharding.NamedSharding(mesh, P(*split))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)

    def product(x, w):
        return jnp.einsum("td,df->tf", x, w, out_sharding=P(None, "model"))

    return product, (array((1024, 512), None, "model"), array((512, 1024), "model", None))


def main() -> None:
    targets.use_virtual_devices(8)
    mesh = targets.device_mesh(SIZES, targets.virtual_devices(8))
    rows = P(("data", "model"))
    write("kinds", manual(kinds, mesh, ((64, 16), jnp.bfloat16), rows, (rows, P(), rows, rows)))
    write("loops", manual(loops, mesh, ((64, 16), jnp.float32), rows, (rows, rows)))
    write("on_data", manual(on_data, mesh, ((64, 16), jnp.float32), rows, rows))
    function, arguments = feed_forward(mesh)
    with jax.set_mesh(mesh):
        write("merged", jax.jit(function).lower(*arguments).compile().as_text())
    from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

    write("gpu", _hlo.hlo_module_from_text((FOLDER / "gpu.txt").read_text()).to_string())
    if importlib.util.find_spec("libtpu"):
        devices = targets.topology_devices(targets.parse_target("tpu:v5e:2x4"))

        def tpu(name, sizes, make, *args, **kwargs):
            mesh = targets.device_mesh(sizes, devices)
            function, arguments = make(mesh, *args, **kwargs)
            with targets.entered(mesh):
                traced = jax.jit(function).trace(*arguments)
                write(name, traced.lower(lowering_platforms=("tpu",)).compile().as_text())

        stored = {"data": 1, "fsdp": 2, "model": 4}
        tpu("tpu", stored, feed_forward, layers=3, dtype=jnp.bfloat16, d_ff=4096)
        tpu("tpu_scatter", SIZES, scattered)


if __name__ == "__main__":
    main()

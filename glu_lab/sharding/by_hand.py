"""The FFN's tensor parallelism with every collective written out.

The function of `glu_lab.layers.ffn.apply`, which leaves the collectives to the compiler. Here each
device runs the same steps on its block of the hidden channels: ``wi`` is split by columns, ``wo``
by rows, and the outputs of the blocks are summed (Shoeybi et al. 2019, Megatron-LM, arXiv
1909.08053).

    rows outside      before wi      after wo          in backward
    whole             –              all-reduce        all-reduce
    split (``seq``)   all-gather     reduce-scatter    all-gather, reduce-scatter

The second line is sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198). Each collective
carries T·D elements. Only forward is written: the transpose of an all-reduce is to use one value
everywhere, which costs nothing, and the other way round; that of an all-gather is a reduce-scatter.

Dimension letters: D d_model, F d_ff, T rows.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtyping import Array, Float, Key

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.placement import Placement
from glu_lab.spec.ffn import FFN
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import MESH_AXES, Rules, Split, check_divides

#: Rules under which positions are split outside the FFN over what splits its channels inside.
SEQUENCE_PARALLEL = Rules(seq=Rules().mlp)

#: The dimension of positions in (batch, position, …, d_model), as `Placement.rows` lays it out.
_POSITION = 1


def apply(
    params: Mapping[str, Array],
    x: Float[Array, "... D"],
    spec: FFN,
    *,
    rules: Rules = Rules(),
    numerics: Numerics = Numerics(),
    dropout_key: Key[Array, ""] | None = None,
) -> Float[Array, "... D"]:
    """The sublayer's output for every row of x, on the mesh entered with `jax.set_mesh`.

    Args:
        params: arrays named as in `ffn.parameters`; pieces that are stored over further mesh axes
            are gathered first.
        x: rows of width D, laid out by the rules for ``batch`` and ``seq``.
        spec: which function.
        rules: ``mlp`` splits the hidden channels. Where ``seq`` has the same mesh axes, positions
            are split over them outside the FFN, as in `SEQUENCE_PARALLEL`.
        numerics: which number format each step uses.
        dropout_key: as in `ffn.apply`; an element of the mask depends on the key and its position
            in the whole array.

    Returns:
        Y, in ``numerics.compute_dtype``, laid out as x.

    Raises:
        ValueError: as `ffn.apply`.
        SpecError: without a mesh of Explicit axes; for sizes that do not divide over it, rules
            that do not fit together, or rows that lie in another way than the rules say.
    """
    ffn.check(params, x, spec)
    mesh = _entered_mesh()
    sequence = _is_sequence_parallel(rules, x)
    # Inside, a device has all positions of its rows and the whole width of its channels.
    whole = dataclasses.replace(rules, embed=(), branch=(), seq=() if sequence else rules.seq)
    whole.splits(("batch", "seq", "mlp"))
    outside, inside = Placement(rules), Placement(whole)
    leading = zip(("batch", "seq"), x.shape[:-1], strict=False)
    check_divides([*leading, ("mlp", spec.d_ff)], rules, mesh.shape)
    layout = outside.rows(x, None)
    assert layout is not None
    _check_layout(x, layout, mesh)

    table = ffn.parameters(spec)
    blocks = {name: inside.use(params[name], entry.axes) for name, entry in table.items()}
    keep = {}
    if dropout_key is not None and spec.hidden_dropout > 0.0:
        # By rule: each device draws its own piece of the one mask.
        keep["mask"] = ffn.keep_mask(dropout_key, x, spec, inside)
    local = functools.partial(
        _local, spec=spec, over=rules.mlp, sequence=sequence, numerics=numerics
    )
    # Arguments come in as their types say that they lie. From there the check knows of each value
    # over which axes it differs. It refuses a sum that was forgotten, and adds the gradients of
    # what devices share: weights over the batch's axes, output bias, learned scalars.
    return jax.shard_map(local, out_specs=layout, check_vma=True)(blocks, x, keep)


def _local(
    params: dict[str, Array],
    x: Array,
    keep: dict[str, Array],
    *,
    spec: FFN,
    over: Split,
    sequence: bool,
    numerics: Numerics,
) -> Array:
    """One device's part: its rows, and its block of channels."""
    x = x.astype(resolve(numerics.compute_dtype))
    if sequence:
        x = jax.lax.all_gather(x, over, axis=_POSITION, tiled=True)
    elif over:
        # The transpose sums the gradients of x over the blocks. Here, before x is used, those of
        # all branches are one array by then.
        x = jax.lax.pcast(x, over, to="varying")
    hidden = ffn.product(params, x, spec, numerics)
    if keep:
        hidden = ffn.drop(hidden, keep["mask"], spec)
    y = ffn.down(params, hidden, numerics)
    if sequence:
        y = jax.lax.psum_scatter(y, over, scatter_dimension=_POSITION, tiled=True)
    elif over:
        y = jax.lax.psum(y, over)
    # After the sum, so that the output bias is added once and not once a block.
    return ffn.finish(params, y, spec, numerics)


def _is_sequence_parallel(rules: Rules, x: Array) -> bool:
    """Whether positions are split outside the FFN over what splits its channels inside.

    Raises:
        SpecError: where they are over a part of it only, or x has no dimension of positions.
    """
    if not set(rules.seq) & set(rules.mlp):
        return False
    if rules.seq != rules.mlp:
        raise SpecError(
            f"the rules for 'seq' and 'mlp' share mesh axes and are not the same: {rules.seq} and "
            f"{rules.mlp}. Sequence parallelism takes seq={rules.mlp}; without it, seq=()."
        )
    if x.ndim <= _POSITION + 1:
        raise SpecError(
            f"x has shape {x.shape}; to split its positions it needs the dimensions (batch, "
            "position, d_model). Give it a leading one of size 1, or take seq=()."
        )
    return True


def _entered_mesh() -> AbstractMesh:
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and set(mesh.axis_names) >= set(MESH_AXES):
        if set(mesh.axis_types) == {AxisType.Explicit}:
            return mesh
    raise SpecError(
        "by_hand.apply works on a mesh of glu_lab.sharding.mesh.make_mesh, entered with "
        f"jax.set_mesh; it found {'none' if mesh.empty else mesh}."
    )


def _check_layout(x: Array, layout: PartitionSpec, mesh: AbstractMesh) -> None:
    """Checks that x lies as the rules say: to move it would be a collective that nobody wrote."""
    sharding = jax.typeof(x).sharding
    given = _splits(sharding.spec, x.ndim, mesh) if sharding.mesh == mesh else None
    if given != _splits(layout, x.ndim, mesh):
        lies = "does not lie on this mesh" if given is None else f"lies as {sharding.spec}"
        raise SpecError(
            f"x {lies}; the rules lay rows as {layout}. Move it where that is meant: "
            f"jax.sharding.reshard(x, {layout})."
        )


def _splits(spec: PartitionSpec, ndim: int, mesh: AbstractMesh) -> list[Split]:
    """The splits of a layout, without mesh axes of size 1."""
    entries = (*spec, *(None,) * ndim)[:ndim]
    named = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in entries]
    return [tuple(axis for axis in split if mesh.shape[axis] > 1) for split in named]

"""Token embeddings, with the vocabulary split over devices or not.

Dimension letters: B batch, S sequence, V vocabulary, D d_model.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from glu_lab.layers.placement import UNPLACED, Placement


def lookup(
    table: Float[Array, "V D"], tokens: Int[Array, "B S"], place: Placement = UNPLACED
) -> Float[Array, "B S D"]:
    """Rows of the table.

    Where the vocabulary is split, every device looks up the tokens that it holds and gives zeros
    for the others; one sum over the devices, in which all terms but one are zero, makes the rows.
    The table is never gathered.

    Args:
        table: one row a token, as `Placement.use` gives it.
        tokens: ids in [0, V).
        place: how arrays lie on the mesh.
    """
    rows = place.spec("batch", "seq", None)
    if place.rules is None or not place.rules.vocab:
        return jnp.asarray(table).at[tokens].get(out_sharding=rows)
    over = place.rules.vocab

    def local(piece: Float[Array, "v D"], ids: Int[Array, "b s"]) -> Float[Array, "b s D"]:
        here = ids - jax.lax.axis_index(over).astype(ids.dtype) * piece.shape[0]
        mine = (here >= 0) & (here < piece.shape[0])
        found = piece[jnp.where(mine, here, jnp.zeros_like(here))]
        return jax.lax.psum(jnp.where(mine[:, :, None], found, jnp.zeros_like(found)), over)

    split = jax.shard_map(
        local, in_specs=(place.spec("vocab", None), place.spec("batch", "seq")), out_specs=rows
    )
    return split(table, tokens)

"""Cross-entropy as sums: nats and a count, never a mean of means.

Dimension letters: B batch, S sequence, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from glu_lab.layers.placement import UNPLACED, Placement


def cross_entropy(
    logits: Float[Array, "B S V"],
    targets: Int[Array, "B S"],
    weights: Int[Array, "B S"],
    place: Placement = UNPLACED,
) -> dict[str, Array]:
    """Summed negative log-likelihood.

    Everything is a reduction over the vocabulary (the target's logit is picked by comparison with
    the positions rather than by indexing), so that one split over devices is never gathered.

    Args:
        logits: one row a position.
        targets: the right token of each position.
        weights: 1 where a position counts, 0 where it is padding.
        place: how arrays lie on the mesh.

    Returns:
        ``nats``: Σ −log p(target) over counted positions.
        ``nats_squared``: Σ (−log p)², for the standard error.
        ``z_squared``: Σ log²Z.
        ``tokens``: number of counted positions, an exact integer.
        ``correct``: counted positions whose target has the largest logit; of equal ones the first
            token's counts, as for `argmax`.
        ``non_finite``: counted positions with a NaN or infinite value.
    """
    layout = place.spec("batch", "seq", "vocab")
    vocabulary = jax.lax.broadcasted_iota(targets.dtype, logits.shape, 2, out_sharding=layout)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    hit = vocabulary == targets[:, :, None]
    target_logit = jnp.sum(jnp.where(hit, logits, jnp.zeros_like(logits)), axis=-1)
    nats = log_z - target_logit
    counted = weights > 0
    largest = logits == jnp.max(logits, axis=-1, keepdims=True)
    none = jnp.full_like(vocabulary, logits.shape[-1])
    correct = counted & (jnp.min(jnp.where(largest, vocabulary, none), axis=-1) == targets)

    def total(values: Array) -> Array:
        return jnp.sum(jnp.where(counted, values, jnp.zeros_like(values)))

    return {
        "nats": total(nats),
        "nats_squared": total(nats * nats),
        "z_squared": total(log_z * log_z),
        "tokens": jnp.sum(counted.astype(jnp.int32)),
        "correct": jnp.sum(correct.astype(jnp.int32)),
        "non_finite": jnp.sum((counted & ~jnp.isfinite(nats)).astype(jnp.int32)),
    }

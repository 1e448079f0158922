"""Multi-head attention with grouped key/value heads.

Dimension letters: B batch, S keys, Q queries, D d_model, H heads, G key/value heads, R = H/G query
heads of one group, K head width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from glu_lab.layers import norm, positions
from glu_lab.layers.dropout import dropout
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import Parameter
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.spec.model import Attention, Norm
from glu_lab.spec.numerics import Numerics


class KeyValues(NamedTuple):
    """Keys and values as queries meet them: normalised, rotated, in ``compute_dtype``.

    Leading axes may hold those of several layers.
    """

    keys: Float[Array, "*L B S G K"]
    values: Float[Array, "*L B S G K"]

    def written(self, new: "KeyValues", slot: Int[Array, ""]) -> "KeyValues":
        """These, with `new` in the slots from `slot` on."""

        def write(old: Array, rows: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, rows, slot, axis=old.ndim - 3)

        return KeyValues(write(self.keys, new.keys), write(self.values, new.values))


def parameters(spec: Attention, d_model: int) -> dict[str, Parameter]:
    """The table: ``q (D,H,K)``, ``k``, ``v (D,G,K)``, ``o (H,K,D)``, biases and QK-norm scales."""
    H, G, K = spec.num_heads, spec.num_kv_heads, spec.head_dim
    table = {}
    for name, heads, axis, init in (
        ("q", H, "heads", spec.q_init),
        ("k", G, "kv", spec.k_init),
        ("v", G, "kv", spec.v_init),
    ):
        table[name] = Parameter(
            shape=(d_model, heads, K),
            axes=("embed", axis, "head"),
            role="matrix",
            inputs=("embed",),
            outputs=(axis, "head"),
            init=init,
        )
        if spec.qkv_bias:
            table[f"{name}_bias"] = Parameter(shape=(heads, K), axes=(axis, "head"))
    table["o"] = Parameter(
        shape=(H, K, d_model),
        axes=("heads", "head", "embed"),
        role="matrix",
        inputs=("heads", "head"),
        outputs=("embed",),
        init=spec.o_init,
    )
    if spec.output_bias:
        table["o_bias"] = Parameter(shape=(d_model,), axes=("embed",))
    if spec.qk_norm:
        for name in ("q_norm", "k_norm"):
            table[name] = norm.parameters(Norm(), K, axis="head")["scale"]
    return table


def apply(
    params: Mapping[str, Array],
    x: Float[Array, "B Q D"],
    context: Float[Array, "B S D"],
    spec: Attention,
    **how: Any,
) -> Float[Array, "B Q D"]:
    """Attention from x to context; arguments and result are those of `attend`."""
    return attend(params, x, context, spec, **how)[0]


def attend(
    params: Mapping[str, Array],
    x: Float[Array, "B Q D"],
    context: Float[Array, "B S D"] | KeyValues,
    spec: Attention,
    *,
    mask: Bool[Array, "B 1 Q S"],
    bias: Float[Array, "1 H Q S"] | None = None,
    rope: tuple[Int[Array, "B Q"], float] | None = None,
    past: tuple[KeyValues, Int[Array, ""]] | None = None,
    norm_eps: float = 1e-6,
    numerics: Numerics = Numerics(),
    dropout_key: Key[Array, ""] | None = None,
    place: Placement = UNPLACED,
) -> tuple[Float[Array, "B Q D"], KeyValues | None]:
    """Attention from x to context, and what later calls may attend to.

    Args:
        params: arrays named as in `parameters`.
        x: queries' rows.
        context: keys' and values' rows, x itself for self-attention; or the keys and values that
            an earlier call made of them.
        spec: which function.
        mask: True where a query may see a key. A row with no key sees all keys evenly; its output
            must not be used.
        bias: added to the scores, after scaling.
        rope: positions of x (and context) and θ.
        past: keys and values in S slots, and the slot of the first row of `context`: its own are
            written there, and queries look at all slots. None looks at the rows of `context` alone.
        norm_eps: of QK-norm.
        numerics: scores and softmax use ``accumulation_dtype``.
        dropout_key: drops attention weights.
        place: how arrays lie on the mesh; parameters come as `Placement.use` gives them.

    Returns:
        (B, Q, D) in ``compute_dtype``; and the keys and values of the rows of `context`, None
        where they were given.
    """
    compute = resolve(numerics.compute_dtype)
    accumulate = resolve(numerics.accumulation_dtype)
    B, Q, _ = x.shape
    H, G, K = spec.num_heads, spec.num_kv_heads, spec.head_dim

    def project(rows: Array, *names: str) -> dict[str, Array]:
        """Heads (B, S, heads, K) of some projections, by one product of their joined weights.

        Where heads are split over devices, backward then sums the gradient of `rows` once, and not
        once a projection.
        """

        def grouped(x: Array, *leading: str | None) -> Array:
            shape = (*x.shape[:-2], G, x.shape[-2] // G, K)
            layout = place.spec(*leading, "kv", None, None)
            return jnp.reshape(x, shape, out_sharding=layout)

        weights = [grouped(params[name], None).astype(compute) for name in names]
        joined = jnp.einsum(
            "bsd,dgrk->bsgrk",
            rows.astype(compute),
            jnp.concatenate(weights, axis=2),
            preferred_element_type=accumulate,
        )
        if spec.qkv_bias:
            biases = [grouped(params[f"{name}_bias"]).astype(accumulate) for name in names]
            joined = joined + jnp.concatenate(biases, axis=1)[None, None]
        sizes = [weight.shape[2] for weight in weights]
        parts = jnp.split(joined.astype(compute), np.cumsum(sizes)[:-1], axis=3)
        shape = (*rows.shape[:2], -1, K)
        layout = place.spec("batch", None, "kv", None)
        heads = [jnp.reshape(part, shape, out_sharding=layout) for part in parts]
        return dict(zip(names, heads, strict=True))

    if isinstance(context, KeyValues):
        heads = project(x, "q")
    elif context is x:
        heads = project(x, "q", "k", "v")
    else:
        heads = project(x, "q") | project(context, "k", "v")
    compared = [name for name in ("q", "k") if name in heads]
    if spec.qk_norm:
        qk = Norm(eps=norm_eps)
        for name in compared:
            heads[name] = norm.apply({"scale": params[f"{name}_norm"]}, heads[name], qk)
    if rope is not None:
        for name in compared:
            heads[name] = positions.rope(heads[name], *rope)
    if isinstance(context, KeyValues):
        new, seen = None, context
    else:
        new = KeyValues(heads["k"], heads["v"])
        seen = new if past is None else past[0].written(new, past[1])
    # A group of query heads goes with its key head: what splits one splits the other.
    grouped = place.spec("batch", None, "kv", None, None)
    scores = jnp.einsum(
        "bqgrk,bsgk->bgrqs",
        jnp.reshape(heads["q"], (B, Q, G, H // G, K), out_sharding=grouped),
        seen.keys,
        preferred_element_type=accumulate,
    )
    if spec.scale_scores:
        scores = scores * K**-0.5
    if bias is not None:
        shape = (1, G, H // G, *bias.shape[2:])
        layout = place.spec(None, "kv", None, None, None)
        scores = scores + jnp.reshape(bias.astype(accumulate), shape, out_sharding=layout)
    scores = jnp.where(mask[:, :, None], scores, jnp.finfo(accumulate).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(compute)
    layout = place.spec("batch", "kv", None, None, None)
    weights = dropout(weights, spec.dropout, dropout_key, layout)
    mixed = jnp.einsum(
        "bgrqs,bsgk->bqgrk", weights, seen.values, preferred_element_type=accumulate
    ).astype(compute)
    y = jnp.einsum(
        "bqhk,hkd->bqd",
        jnp.reshape(mixed, (B, Q, H, K), out_sharding=place.spec("batch", None, "heads", None)),
        params["o"].astype(compute),
        preferred_element_type=accumulate,
        out_sharding=place.rows(x, None),
    )
    if spec.output_bias:
        y = y + params["o_bias"].astype(accumulate)[None, None]
    return y.astype(compute), new

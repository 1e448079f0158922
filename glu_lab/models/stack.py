"""A stack of layers as Linen shells that own names, `sow`, `scan` and `remat`, and nothing else.

Every calculation is a pure function of `glu_lab.layers`; a shell declares the parameters of the
function's table and calls it. The same shells train, read a prompt and go on from a `Cache`.
Dimension letters: B batch, S sequence, D d_model, L layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from glu_lab.errors import SpecError
from glu_lab.layers import attention, ffn, norm, positions
from glu_lab.layers.attention import KeyValues
from glu_lab.layers.dropout import dropout
from glu_lab.layers.params import Parameter, Table, path_key
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.models.cache import Cache
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics

Observer = Callable[[str, Array], Any]

INTERMEDIATES = "intermediates"


def declare(module: nn.Module, table: Table, place: Placement) -> dict[str, Any]:
    """Declares a table's arrays as the module's Linen parameters, and lays them out for use.

    Values come from `init_params`; the zeros here only state shapes, which Linen checks. Inside a
    scanned layer that layer's parameters alone are gathered.
    """

    def zeros(parameter: Parameter) -> Callable[[Any], Array]:
        return lambda key: jnp.zeros(parameter.shape, jnp.float32)

    return {
        name: place.use(module.param(name, zeros(entry)), entry.axes)
        for name, entry in table.items()
        if isinstance(entry, Parameter)
    }


def key_of(key: Array | None, path: str) -> Array | None:
    """The key of a part of the model; None, the inference mode, stays None."""
    return None if key is None else path_key(key, path)


def _newest(_: Any, new: Any) -> Any:
    """Keeps what is sown as it is, where Linen would collect a tuple."""
    return new


class FeedForward(nn.Module):
    """`glu_lab.layers.ffn` with its intermediates sown.

    Attributes:
        model: whose ``ffn`` is computed.
        numerics: number formats.
        place: how arrays lie on the mesh.
        observe: reduces an intermediate to what is sown; None sows the array itself.
    """

    model: Model
    numerics: Numerics
    place: Placement = UNPLACED
    observe: Observer | None = None

    @nn.compact
    def __call__(self, x: Array, dropout_key: Array | None) -> Array:
        spec = self.model.ffn

        def sow(name: str, value: Array) -> None:
            seen = value if self.observe is None else self.observe(name, value)
            self.sow(INTERMEDIATES, name, seen, init_fn=lambda: None, reduce_fn=_newest)

        tap = sow if self.is_mutable_collection(INTERMEDIATES) else None
        return ffn.apply(
            declare(self, ffn.parameters(spec), self.place),
            x,
            spec,
            numerics=self.numerics,
            dropout_key=dropout_key,
            tap=tap,
            place=self.place,
        )


class SelfOrCrossAttention(nn.Module):
    """`glu_lab.layers.attention` under a name."""

    model: Model
    numerics: Numerics
    place: Placement = UNPLACED

    @nn.compact
    def __call__(
        self, x: Array, context: Array | KeyValues, dropout_key: Array | None, **how: Any
    ) -> tuple[Array, KeyValues | None]:
        spec = self.model.attention
        return attention.attend(
            declare(self, attention.parameters(spec, self.model.d_model), self.place),
            x,
            context,
            spec,
            norm_eps=self.model.norm.eps,
            numerics=self.numerics,
            dropout_key=dropout_key,
            place=self.place,
            **how,
        )


class Normalization(nn.Module):
    """`glu_lab.layers.norm` under a name."""

    model: Model
    place: Placement = UNPLACED

    @nn.compact
    def __call__(self, x: Array) -> Array:
        table = norm.parameters(self.model.norm, self.model.d_model)
        return norm.apply(declare(self, table, self.place), x, self.model.norm)


class Block(nn.Module):
    """One layer: self-attention, cross-attention where there is an encoder, FFN.

    The call takes and returns what `nn.scan` carries, the residual stream. Beside it, of each
    layer, it takes the keys and values of the positions before (None for none), and returns those
    that it makes where `remember` says so; both by the name of the sublayer.
    """

    model: Model
    numerics: Numerics
    cross: bool
    place: Placement = UNPLACED
    observe: Observer | None = None
    remember: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S D"],
        key: Array | None,
        past: Mapping[str, KeyValues] | None,
        shared: Mapping[str, Any],
    ) -> tuple[Float[Array, "B S D"], dict[str, KeyValues | None] | None]:
        model = self.model
        made: dict[str, KeyValues | None] = {}

        def residual(name: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
            normalize = Normalization(model, self.place, name=f"{name}_norm")
            pre = model.norm.placement == "pre"
            y = sublayer(normalize(x) if pre else x)
            layout = self.place.rows(y, None)
            y = dropout(y, model.residual_dropout, key_of(key, f"{name}/residual"), layout)
            return x + y if pre else normalize(x + y)

        def attend(name: str, rows: Array, context: Array | KeyValues, **how: Any) -> Array:
            module = SelfOrCrossAttention(model, self.numerics, self.place, name=name)
            y, made[name] = module(rows, context, key_of(key, f"{name}/weights"), **how)
            return y

        x = residual(
            "attention",
            x,
            lambda rows: attend(
                "attention",
                rows,
                rows,
                mask=shared["mask"],
                bias=shared["bias"],
                rope=shared["rope"] and (shared["rope"][0], model.positions.rope_theta),
                past=past and (past["attention"], shared["slot"]),
            ),
        )
        if self.cross:
            context = past["cross_attention"] if past else shared["encoded"]
            x = residual(
                "cross_attention",
                x,
                lambda rows: attend("cross_attention", rows, context, mask=shared["cross_mask"]),
            )
        feed_forward = FeedForward(model, self.numerics, self.place, self.observe, name="ffn")
        x = residual("ffn", x, lambda rows: feed_forward(rows, key_of(key, "ffn/hidden")))
        return x, made if self.remember else None


_REMAT_POLICIES = {
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Stack(nn.Module):
    """An encoder or decoder: positions, layers, final norm and the dropouts around them.

    Attributes:
        model, numerics, execution, place, observe: as those of `glu_lab.models.Transformer`.
        layers: L.
        causal, cross: what distinguishes a decoder, with and without an encoder.
        remember: return the keys and values that the layers make, too.
    """

    model: Model
    numerics: Numerics
    execution: Execution
    layers: int
    causal: bool
    cross: bool
    place: Placement = UNPLACED
    observe: Observer | None = None
    remember: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S D"],
        segments: Array,
        where: Array,
        dropout_key: Array | None,
        encoded: Array | None = None,
        encoder_segments: Array | None = None,
        cache: Cache | None = None,
    ) -> tuple[Float[Array, "B S D"], dict[str, KeyValues | None] | None]:
        """The stack's output, and with `remember` each sublayer's new keys and values (L, …).

        Args:
            x: embedded rows; with a cache, the one position that follows those in it.
            segments: (B, S), attention stays inside a segment; 0 is padding.
            where: (B, S), positions of the rows in their sequences.
            dropout_key: None is the inference mode.
            encoded, encoder_segments: the encoder's output (B, E, D), with a cache None, and its
                segments.
            cache: of the positions before; they are what x sees, whatever their segments.
        """
        model, place, S = self.model, self.place, x.shape[1]
        rows = place.rows(x, None)
        if cache is None:
            mask = (segments[:, None, :, None] == segments[:, None, None, :]) & (
                segments[:, None, None, :] > 0
            )
            if self.causal:
                mask = mask & jnp.tril(jnp.ones((S, S), bool))[None, None]
        else:
            mask = cache.mask
        shared: dict[str, Any] = {"mask": mask, "bias": None, "rope": None}
        if cache is not None:
            shared["slot"] = cache.filled
        if self.cross:
            assert encoder_segments is not None
            shared["encoded"] = encoded
            shared["cross_mask"] = (segments[:, None, :, None] > 0) & (
                encoder_segments[:, None, None, :] > 0
            )
        kind = model.positions.kind
        if kind == "relative":
            table = positions.relative_parameters(
                model.positions, model.attention.num_heads, model.d_model
            )
            params = self.param(
                "relative", lambda key: {n: jnp.zeros(p.shape) for n, p in table.items()}
            )
            relative = {n: place.use(params[n], p.axes) for n, p in table.items()}
            if cache is None:
                shared["bias"] = positions.relative_bias(
                    relative, S, S, model.positions, bidirectional=not self.causal, place=place
                )
            else:
                shared["bias"] = positions.relative_bias_at(
                    relative, cache.filled, cache.slots, model.positions, place
                )
        elif kind == "rope":
            shared["rope"] = (where,)
        elif kind == "sinusoidal":
            if S > model.max_length:
                # Indexing past the table would repeat its last row without a word.
                raise SpecError(
                    f"a row has {S} positions and the sinusoidal table model.max_length="
                    f"{model.max_length}; set model.max_length."
                )
            waves = jnp.asarray(positions.sinusoidal(model.max_length, model.d_model), x.dtype)
            x = x + waves.at[where].get(out_sharding=rows)
        x = dropout(x, model.embedding_dropout, key_of(dropout_key, "embedding"), rows)

        block = Block
        if self.execution.remat != "none":
            block = nn.remat(Block, policy=_REMAT_POLICIES[self.execution.remat], prevent_cse=False)
        scan = nn.scan(
            block,
            variable_axes={"params": 0, INTERMEDIATES: 0},
            split_rngs={"params": False},
            in_axes=(0, 0, nn.broadcast),  # pyright: ignore[reportArgumentType] annotated as int
            length=self.layers,
            unroll=1 if self.execution.scan_layers else self.layers,
        )
        keys = None
        if dropout_key is not None:
            root = path_key(dropout_key, "layers")
            keys = jax.vmap(lambda layer: jax.random.fold_in(root, layer))(jnp.arange(self.layers))
        layers = scan(
            model, self.numerics, self.cross, place, self.observe, self.remember, name="layers"
        )
        x, made = layers(x, keys, None if cache is None else cache.layers, shared)

        if model.norm.placement == "pre":
            x = Normalization(model, place, name="final_norm")(x)
        return dropout(x, model.final_dropout, key_of(dropout_key, "final"), rows), made

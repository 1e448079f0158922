"""The Transformer as Linen shells that own names, `sow`, `scan` and `remat`, and nothing else.

Every calculation is a pure function of `glu_lab.layers`; a shell declares the parameters of the
function's table and calls it. Dimension letters: B batch, S sequence, D d_model, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from glu_lab.errors import SpecError
from glu_lab.layers import attention, embedding, ffn, norm, positions
from glu_lab.layers.dropout import dropout
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import Parameter, Table, initialize, path_key
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.models import tables
from glu_lab.models.tables import parameters
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics

Observer = Callable[[str, Array], Any]

INTERMEDIATES = "intermediates"


def init_params(model: Model, key: Key[Array, ""], dtype: Any = jnp.float32) -> dict:
    """Initial parameters of a model, keyed by path and layer (see `glu_lab.layers.params`)."""
    return initialize(parameters(model), key, dtype)


def _declare(module: nn.Module, table: Table, place: Placement) -> dict[str, Any]:
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


def _key(key: Array | None, path: str) -> Array | None:
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
            _declare(self, ffn.parameters(spec), self.place),
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
    def __call__(self, x: Array, context: Array, dropout_key: Array | None, **how: Any) -> Array:
        spec = self.model.attention
        return attention.apply(
            _declare(self, attention.parameters(spec, self.model.d_model), self.place),
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
        return norm.apply(_declare(self, table, self.place), x, self.model.norm)


class Block(nn.Module):
    """One layer: self-attention, cross-attention where there is an encoder, FFN.

    The call takes and returns what `nn.scan` carries: the residual stream.
    """

    model: Model
    numerics: Numerics
    cross: bool
    place: Placement = UNPLACED
    observe: Observer | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "B S D"], key: Array | None, shared: Mapping[str, Any]
    ) -> tuple[Float[Array, "B S D"], None]:
        model = self.model

        def residual(name: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
            normalize = Normalization(model, self.place, name=f"{name}_norm")
            pre = model.norm.placement == "pre"
            y = sublayer(normalize(x) if pre else x)
            layout = self.place.rows(y, None)
            y = dropout(y, model.residual_dropout, _key(key, f"{name}/residual"), layout)
            return x + y if pre else normalize(x + y)

        def attend(name: str, rows: Array, context: Array, **how: Any) -> Array:
            module = SelfOrCrossAttention(model, self.numerics, self.place, name=name)
            return module(rows, context, _key(key, f"{name}/weights"), **how)

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
            ),
        )
        if self.cross:
            x = residual(
                "cross_attention",
                x,
                lambda rows: attend(
                    "cross_attention", rows, shared["encoded"], mask=shared["cross_mask"]
                ),
            )
        feed_forward = FeedForward(model, self.numerics, self.place, self.observe, name="ffn")
        x = residual("ffn", x, lambda rows: feed_forward(rows, _key(key, "ffn/hidden")))
        return x, None


_REMAT_POLICIES = {
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class Stack(nn.Module):
    """An encoder or decoder: positions, layers, final norm and the dropouts around them."""

    model: Model
    numerics: Numerics
    execution: Execution
    layers: int
    causal: bool
    cross: bool
    place: Placement = UNPLACED
    observe: Observer | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B S D"],
        segments: Array,
        where: Array,
        dropout_key: Array | None,
        encoded: Array | None = None,
        encoder_segments: Array | None = None,
    ) -> Float[Array, "B S D"]:
        model, place, S = self.model, self.place, x.shape[1]
        rows = place.rows(x, None)
        mask = (segments[:, None, :, None] == segments[:, None, None, :]) & (
            segments[:, None, None, :] > 0
        )
        if self.causal:
            mask = mask & jnp.tril(jnp.ones((S, S), bool))[None, None]
        shared: dict[str, Any] = {"mask": mask, "bias": None, "rope": None}
        if self.cross:
            assert encoded is not None and encoder_segments is not None
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
            shared["bias"] = positions.relative_bias(
                {n: place.use(params[n], p.axes) for n, p in table.items()},
                S,
                S,
                model.positions,
                bidirectional=not self.causal,
                place=place,
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
        x = dropout(x, model.embedding_dropout, _key(dropout_key, "embedding"), rows)

        block = Block
        if self.execution.remat != "none":
            block = nn.remat(Block, policy=_REMAT_POLICIES[self.execution.remat], prevent_cse=False)
        scan = nn.scan(
            block,
            variable_axes={"params": 0, INTERMEDIATES: 0},
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] annotated as int
            length=self.layers,
            unroll=1 if self.execution.scan_layers else self.layers,
        )
        keys = None
        if dropout_key is not None:
            root = path_key(dropout_key, "layers")
            keys = jax.vmap(lambda layer: jax.random.fold_in(root, layer))(jnp.arange(self.layers))
        x, _ = scan(model, self.numerics, self.cross, place, self.observe, name="layers")(
            x, keys, shared
        )

        if model.norm.placement == "pre":
            x = Normalization(model, place, name="final_norm")(x)
        return dropout(x, model.final_dropout, _key(dropout_key, "final"), rows)


class Transformer(nn.Module):
    """A decoder LM or an encoder–decoder, by its Spec.

    Attributes:
        model: which function.
        numerics, execution: how it is computed and run.
        place: how arrays lie on the mesh, entered with `jax.set_mesh`.
        observe: reduces the FFNs' intermediates before they are sown; see `FeedForward`.

    Example:
        >>> transformer = Transformer(experiment.model)
        >>> variables = transformer.init(jax.random.key(0))
        >>> logits = transformer.apply(variables, batch)
    """

    model: Model
    numerics: Numerics = Numerics()
    execution: Execution = Execution()
    place: Placement = UNPLACED
    observe: Observer | None = None

    @nn.nowrap
    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> dict:
        """Initial variables, keyed by canonical path instead of Linen's call counter.

        Args:
            rngs: a key, or ``{"params": key}``.
            *args: ignored; no batch is needed.
            **kwargs: ignored.
        """
        key = rngs["params"] if isinstance(rngs, Mapping) else rngs
        return {"params": init_params(self.model, key, resolve(self.numerics.parameter_dtype))}

    @nn.compact
    def __call__(
        self, batch: Mapping[str, Array], *, dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "B S V"]:
        """Logits of every target position, in ``numerics.accumulation_dtype``.

        Args:
            batch: for a decoder ``tokens``, ``segments`` and ``positions``, each (B, S); for an
                encoder–decoder ``encoder_tokens``, ``encoder_segments`` (B, S) and
                ``decoder_tokens`` (B, R). Segment 0 is padding; attention stays inside a segment.
            dropout_key: None is the inference mode.
        """
        model = self.model
        compute = resolve(self.numerics.compute_dtype)
        table = tables.parameters(model)
        ends = _declare(
            self, {n: table[n] for n in ("embedding", "logits") if n in table}, self.place
        )

        def embed(tokens: Array) -> Array:
            rows = embedding.lookup(ends["embedding"].astype(compute), tokens, self.place)
            return rows * model.embedding_scale

        def stack(name: str, layers: int, causal: bool, cross: bool) -> Stack:
            return Stack(
                model,
                self.numerics,
                self.execution,
                layers=layers,
                causal=causal,
                cross=cross,
                place=self.place,
                observe=self.observe,
                name=name,
            )

        if model.kind == "decoder":
            x = stack("decoder", model.num_layers, causal=True, cross=False)(
                embed(batch["tokens"]),
                batch["segments"],
                batch["positions"],
                _key(dropout_key, "decoder"),
            )
        else:
            source, target = batch["encoder_tokens"], batch["decoder_tokens"]
            encoded = stack("encoder", model.num_encoder_layers, causal=False, cross=False)(
                embed(source),
                batch["encoder_segments"],
                _counting(source),
                _key(dropout_key, "encoder"),
            )
            x = stack("decoder", model.num_layers, causal=True, cross=True)(
                embed(target),
                jnp.ones_like(target),
                _counting(target),
                _key(dropout_key, "decoder"),
                encoded,
                batch["encoder_segments"],
            )
        x = x * model.logits_scale
        accumulate = resolve(self.numerics.accumulation_dtype)
        equation, head = (
            ("bsd,vd->bsv", "embedding") if model.tie_embeddings else ("bsd,dv->bsv", "logits")
        )
        return jnp.einsum(
            equation, x, ends[head].astype(compute), preferred_element_type=accumulate
        )


def _counting(tokens: Array) -> Array:
    """Positions 0, 1, 2, … of every row."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)

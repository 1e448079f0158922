"""The whole Transformer as a Linen shell: embedding, stacks, logits.

Dimension letters: B batch, S sequence, D d_model, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from glu_lab.layers import embedding
from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import Parameter, initialize
from glu_lab.layers.placement import UNPLACED, Placement
from glu_lab.models.stack import INTERMEDIATES, Observer, Stack, declare, key_of
from glu_lab.models.tables import parameters
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics

__all__ = ["INTERMEDIATES", "Transformer", "init_params", "parameters"]


def init_params(model: Model, key: Key[Array, ""], dtype: Any = jnp.float32) -> dict:
    """Initial parameters of a model, keyed by path and layer (see `glu_lab.layers.params`)."""
    return initialize(parameters(model), key, dtype)


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
        ends = declare(self, end_parameters(model), self.place)
        if model.kind == "decoder":
            x, _ = self.stack("decoder")(
                self.embed(ends, batch["tokens"]),
                batch["segments"],
                batch["positions"],
                key_of(dropout_key, "decoder"),
            )
        else:
            source, target = batch["encoder_tokens"], batch["decoder_tokens"]
            encoded, _ = self.stack("encoder")(
                self.embed(ends, source),
                batch["encoder_segments"],
                counting(source),
                key_of(dropout_key, "encoder"),
            )
            x, _ = self.stack("decoder")(
                self.embed(ends, target),
                jnp.ones_like(target),
                counting(target),
                key_of(dropout_key, "decoder"),
                encoded,
                batch["encoder_segments"],
            )
        return self.project(ends, x)

    # The parts, for a caller that goes through them in an order of its own.

    @nn.nowrap
    def embed(self, ends: Mapping[str, Array], tokens: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """Rows of the embedding, scaled; `ends` are arrays of `end_parameters`."""
        table = ends["embedding"].astype(resolve(self.numerics.compute_dtype))
        return embedding.lookup(table, tokens, self.place) * self.model.embedding_scale

    @nn.nowrap
    def stack(self, name: Literal["encoder", "decoder"], *, remember: bool = False) -> Stack:
        """The encoder or decoder; see `Stack`."""
        decoder = name == "decoder"
        return Stack(
            self.model,
            self.numerics,
            self.execution,
            layers=self.model.num_layers if decoder else self.model.num_encoder_layers,
            causal=decoder,
            cross=decoder and self.model.kind == "encoder_decoder",
            place=self.place,
            observe=self.observe,
            remember=remember,
            name=name,
        )

    @nn.nowrap
    def project(self, ends: Mapping[str, Array], x: Float[Array, "B S D"]) -> Float[Array, "B S V"]:
        """Logits of a decoder's output, in ``numerics.accumulation_dtype``."""
        x = x * self.model.logits_scale
        tied = self.model.tie_embeddings
        equation, head = ("bsd,vd->bsv", "embedding") if tied else ("bsd,dv->bsv", "logits")
        return jnp.einsum(
            equation,
            x,
            ends[head].astype(resolve(self.numerics.compute_dtype)),
            preferred_element_type=resolve(self.numerics.accumulation_dtype),
        )


def end_parameters(model: Model) -> dict[str, Parameter]:
    """The tables at the model's ends: ``embedding``, and ``logits`` where it is one of its own."""
    table = parameters(model)
    return {name: table[name] for name in ("embedding", "logits") if name in table}


def counting(tokens: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Positions 0, 1, 2, … of every row."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)

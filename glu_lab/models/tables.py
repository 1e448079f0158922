"""The parameter table of a whole model, from its Spec."""

import dataclasses
import math

from glu_lab.layers import attention, ffn, norm, positions
from glu_lab.layers.params import Parameter, stack
from glu_lab.spec.ffn import Initializer
from glu_lab.spec.model import Model


def _shrunk(init: Initializer, branches: int) -> Initializer:
    """The initialiser with its standard deviation divided by √branches."""
    factor = math.sqrt(branches) if init.fan == "none" else branches
    return dataclasses.replace(init, scale=init.scale / factor)


def block_parameters(model: Model, *, layers: int, cross: bool) -> dict:
    """The table of one layer of a stack of `layers` layers."""
    attention_spec, ffn_spec = model.attention, model.ffn
    if model.depth_scaled_output:
        branches = layers * (3 if cross else 2)
        attention_spec = dataclasses.replace(
            attention_spec, o_init=_shrunk(attention_spec.o_init, branches)
        )
        ffn_spec = ffn_spec.replace(wo_init=_shrunk(ffn_spec.wo_init, branches))
    table = {
        "attention_norm": norm.parameters(model.norm, model.d_model),
        "attention": attention.parameters(attention_spec, model.d_model),
    }
    if cross:
        table["cross_attention_norm"] = norm.parameters(model.norm, model.d_model)
        table["cross_attention"] = attention.parameters(attention_spec, model.d_model)
    table["ffn_norm"] = norm.parameters(model.norm, model.d_model)
    table["ffn"] = ffn.parameters(ffn_spec)
    return table


def stack_parameters(model: Model, *, layers: int, cross: bool) -> dict:
    """The table of an encoder or decoder: its layers stacked, and what they share."""
    table: dict = {"layers": stack(block_parameters(model, layers=layers, cross=cross), layers)}
    if model.positions.kind == "relative":
        table["relative"] = positions.relative_parameters(
            model.positions, model.attention.num_heads, model.d_model
        )
    if model.norm.placement == "pre":
        table["final_norm"] = norm.parameters(model.norm, model.d_model)
    return table


def parameters(model: Model) -> dict:
    """The table of every parameter of a model.

    Paths are canonical: ``embedding``, ``encoder/layers/ffn/wi``, ``decoder/final_norm/scale``, …
    Layers are stacked along a leading axis whether they are run scanned or unrolled.
    """
    V, D = model.vocab_size, model.d_model
    table: dict = {
        "embedding": Parameter(
            shape=(V, D),
            axes=("vocab", "embed"),
            role="embedding",
            inputs=("embed",),
            outputs=("vocab",),
            init=model.embedding_init,
        )
    }
    if model.kind == "encoder_decoder":
        table["encoder"] = stack_parameters(model, layers=model.num_encoder_layers, cross=False)
    table["decoder"] = stack_parameters(
        model, layers=model.num_layers, cross=model.kind == "encoder_decoder"
    )
    if not model.tie_embeddings:
        table["logits"] = Parameter(
            shape=(D, V),
            axes=("embed", "vocab"),
            role="head",
            inputs=("embed",),
            outputs=("vocab",),
            init=model.logits_init,
        )
    return table

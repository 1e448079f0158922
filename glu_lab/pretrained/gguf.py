"""The metadata of a GGUF file as a Model Spec.

Key names: ggml, ``docs/gguf.md``; their meaning: llama.cpp's loader of each architecture. The
activation is the architecture's own, from the layout table: a file states none.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts import branches_from_config, find
from glu_lab.pretrained.attributes import Attributes
from glu_lab.spec.ffn import FFN
from glu_lab.spec.model import Attention, Model, Norm, Positions

#: Beginnings of keys that describe the file, the tokenizer, or how weights were quantised.
_NEUTRAL = ("general.", "tokenizer.", "quantize.", "split.")


def read_model(metadata: Mapping[str, Any], names: set[str], source: str) -> Model:
    """The function that a file states.

    Args:
        metadata: of the file.
        names: of its tensors, which say what the metadata do not: whether the head is tied, and
            which projections have biases.
        source: what it is, for messages.

    Raises:
        LayoutError: for keys that are missing or cannot be said in a Spec.
    """
    architecture = metadata.get("general.architecture")
    branches = branches_from_config(
        find("gguf"), {"general": {"architecture": architecture}, **metadata}
    )
    start = f"{architecture}."
    a = Attributes(
        {
            key.removeprefix(start): _plain(value)
            for key, value in metadata.items()
            if not key.startswith(_NEUTRAL)
        },
        source,
    )
    D, heads = a.integer("embedding_length"), a.integer("attention.head_count")
    head_dim = a.integer("attention.key_length", D // heads)
    a.only("attention.value_length", head_dim)
    a.only("rope.dimension_count", head_dim)
    for name in ("rope.scaling.type", "rope.scaling.factor", "attention.sliding_window"):
        a.only(name)
    a.only("expert_count", 0)
    vocab = a.take("vocab_size", None)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if vocab is None and tokens is None:
        raise LayoutError(f"{source} states neither {start}vocab_size nor a list of tokens.")
    model = Model(
        kind="decoder",
        vocab_size=len(tokens) if vocab is None and tokens is not None else a.integer("vocab_size"),
        d_model=D,
        num_layers=a.integer("block_count"),
        max_length=a.integer("context_length"),
        attention=Attention(
            num_heads=heads,
            num_kv_heads=a.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            qkv_bias="blk.0.attn_q.bias" in names,
            output_bias="blk.0.attn_output.bias" in names,
            qk_norm="blk.0.attn_q_norm.weight" in names,
        ),
        ffn=FFN(branches=branches, d_model=D, d_ff=a.integer("feed_forward_length")),
        norm=Norm(kind="rmsnorm", eps=_decimal(a.number("attention.layer_norm_rms_epsilon"))),
        positions=Positions(kind="rope", rope_theta=_decimal(a.number("rope.freq_base", 10_000.0))),
        tie_embeddings="output.weight" not in names,
    )
    a.finish(())
    return model


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _decimal(value: float) -> float:
    """The shortest decimal that a float32 of the file is: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))

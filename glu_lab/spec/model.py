"""The Specs of whole models: which function, nothing about how it is run.

Dimension letters: D d_model, H heads, K head width, V vocabulary, L layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from glu_lab.errors import SpecError
from glu_lab.spec.checks import check_choices
from glu_lab.spec.ffn import FFN, Initializer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """Multi-head attention, with grouped key/value heads.

    Attributes:
        num_heads: H query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: K.
        qkv_bias, output_bias: biases of the projections.
        qk_norm: RMSNorm over K on queries and keys, before positions (Qwen3 style).
        scale_scores: multiply scores by 1/√K. T5 does not: its query initialiser has the factor.
        dropout: of the attention weights.
        q_init, k_init, v_init, o_init: initialisers by fan.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    scale_scores: bool = True
    dropout: float = 0.0
    q_init: Initializer = Initializer()
    k_init: Initializer = Initializer()
    v_init: Initializer = Initializer()
    o_init: Initializer = Initializer()

    def __post_init__(self):
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise SpecError(f"attention {name} must be ≥ 1, got {getattr(self, name)!r}.")
        if self.num_heads % self.num_kv_heads:
            raise SpecError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; "
                f"the divisors are {_divisors(self.num_heads)}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise SpecError(f"attention dropout must be in [0, 1), got {self.dropout!r}.")


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """Normalisation over D.

    Attributes:
        kind: ``rmsnorm`` (a scale) or ``layernorm`` (a scale and, with `bias`, a bias).
        eps: added to the mean square or the variance.
        bias: of ``layernorm`` only.
        placement: ``pre`` normalises a sublayer's input and the stack's output; ``post`` normalises
            the sum of residual and sublayer, as in 2017.
    """

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    eps: float = 1e-6
    bias: bool = False
    placement: Literal["pre", "post"] = "pre"

    def __post_init__(self):
        check_choices(self)
        if self.kind == "rmsnorm" and self.bias:
            raise SpecError("rmsnorm has no bias; set norm.bias=False or norm.kind='layernorm'.")
        if not self.eps >= 0:
            raise SpecError(f"norm eps must be ≥ 0, got {self.eps!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
    """How order enters the model.

    Attributes:
        kind: ``rope`` rotates queries and keys (split-half convention); ``relative`` adds T5's
            bucketed bias, shared by all layers of a stack; ``sinusoidal`` adds the 2017 table to
            the embeddings; ``none``.
        rope_theta: base of RoPE's wavelengths.
        num_buckets, max_distance: of the relative bias.
        relative_init: initialiser of the bias table; its fan-in is D.
    """

    kind: Literal["rope", "relative", "sinusoidal", "none"] = "rope"
    rope_theta: float = 10000.0
    num_buckets: int = 32
    max_distance: int = 128
    relative_init: Initializer = Initializer()

    def __post_init__(self):
        check_choices(self)
        if self.kind == "relative" and (self.num_buckets < 4 or self.num_buckets % 2):
            raise SpecError(
                f"positions num_buckets must be even and ≥ 4, got {self.num_buckets!r}."
            )
        if self.kind == "relative" and self.max_distance <= self.num_buckets // 2:
            raise SpecError(
                f"positions max_distance={self.max_distance} must be over num_buckets/2="
                f"{self.num_buckets // 2}, the distances that have a bucket of their own."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A Transformer whose every MLP is one FFN Spec.

    Attributes:
        kind: ``decoder`` (causal LM) or ``encoder_decoder``.
        vocab_size: V, rows of the embedding, sentinels and padding included.
        d_model: D.
        num_layers: L of the decoder.
        num_encoder_layers: of the encoder; 0 for a decoder LM.
        max_length: longest sequence that the model is asked to see.
        attention, norm, positions, ffn: the Specs of the parts.
        tie_embeddings: the output projection is the embedding.
        embedding_scale: multiplier of embedded tokens (√D in 2017).
        logits_scale: multiplier of the decoder's output before the logits (1/√D in tied T5).
        residual_dropout: on each sublayer's output before the residual sum.
        embedding_dropout: on each stack's input; `final_dropout` on each stack's output.
        embedding_init, logits_init: initialisers; the embedding's fan-in is D.
        depth_scaled_output: divide the standard deviation of attention-output and FFN-down
            projections by √(number of residual branches in their stack).
    """

    kind: Literal["decoder", "encoder_decoder"]
    vocab_size: int
    d_model: int
    num_layers: int
    num_encoder_layers: int = 0
    max_length: int = 1024
    attention: Attention
    ffn: FFN
    norm: Norm = Norm()
    positions: Positions = Positions()
    tie_embeddings: bool = True
    embedding_scale: float = 1.0
    logits_scale: float = 1.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    final_dropout: float = 0.0
    embedding_init: Initializer = Initializer(scale=1.0, fan="none")
    logits_init: Initializer = Initializer()
    depth_scaled_output: bool = False

    def __post_init__(self):
        check_choices(self)
        for name in ("vocab_size", "d_model", "num_layers", "max_length"):
            if getattr(self, name) < 1:
                raise SpecError(f"model {name} must be ≥ 1, got {getattr(self, name)!r}.")
        if (self.kind == "encoder_decoder") != (self.num_encoder_layers > 0):
            raise SpecError(
                f"model kind {self.kind!r} with num_encoder_layers={self.num_encoder_layers}: an "
                "encoder_decoder has at least one encoder layer, a decoder has 0."
            )
        if self.ffn.d_model != self.d_model:
            raise SpecError(
                f"ffn.d_model={self.ffn.d_model} differs from model d_model={self.d_model}."
            )
        if self.positions.kind == "rope" and self.attention.head_dim % 2:
            raise SpecError(f"rope needs an even head_dim, got {self.attention.head_dim}.")
        if self.positions.kind == "sinusoidal" and self.d_model % 2:
            raise SpecError(f"sinusoidal positions need an even d_model, got {self.d_model}.")
        for name in ("residual_dropout", "embedding_dropout", "final_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise SpecError(f"{name} must be in [0, 1), got {getattr(self, name)!r}.")

    @classmethod
    def complete_mapping(cls, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gives the FFN its d_model from the model, where the config leaves it out."""
        ffn = mapping.get("ffn")
        if isinstance(ffn, Mapping) and "d_model" not in ffn and "d_model" in mapping:
            mapping = {**mapping, "ffn": {**ffn, "d_model": mapping["d_model"]}}
        return mapping

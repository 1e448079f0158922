"""A trained run, opened to be used: words and validation numbers from its checkpoint."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.data.tokenizer_files import open_tokenizer
from glu_lab.errors import DataError, RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.models import Transformer
from glu_lab.models.generate import generate
from glu_lab.spec.codec import decode
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Experiment
from glu_lab.training.evaluation import evaluate, metrics
from glu_lab.training.programs import program_key, programs
from glu_lab.training.record import TOKENIZER_FILE, RunDirectory
from glu_lab.training.state import state_shapes


class TrainedRun:
    """A run directory opened to be used.

    Attributes:
        workdir: its folder.
        experiment: the run.
        tokenizer: its tokenizer.
        step: of the checkpoint.
        params: the parameters, on one device.
    """

    def __init__(self, workdir: Path, step: int | None = None):
        """Reads a run.

        Args:
            workdir: its folder.
            step: which checkpoint; None for the newest.

        Raises:
            RecordError: when it is no run, or has no such checkpoint.
        """
        self.workdir = Path(workdir)
        config, pieces = workdir / "config.json", workdir / TOKENIZER_FILE
        for file in (config, workdir / "manifest.json", pieces):
            if not file.is_file():
                raise RecordError(
                    f"{workdir} is no run of `glu-lab train`: {file.name} is missing."
                )
        try:
            tree = json.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RecordError(f"{config} is not JSON: {error}.") from error
        self.experiment = decode(Experiment, tree)
        # A config that was edited names another function than the one whose weights lie here.
        run = RunDirectory(workdir)
        run.check(self.experiment)
        if not (workdir / "checkpoints").is_dir():
            raise RecordError(_without_weights(run, self.experiment))
        data = self.experiment.data
        sentinels = data.num_sentinels if data.objective == "span_corruption" else 0
        self.tokenizer = open_tokenizer(pieces.read_bytes(), sentinels, name=str(pieces))
        # The mesh that it was trained on may not be here; how it is run is free to change.
        self._execution = dataclasses.replace(self.experiment.execution, mesh=Execution().mesh)
        model, numerics = self.experiment.model, self.experiment.numerics
        shapes = state_shapes(model, numerics, self.experiment.training.optimizer)
        checkpoints = Checkpoints(workdir / "checkpoints", self.experiment.recording.keep, "read")
        try:
            if checkpoints.latest() is None:
                raise RecordError(_without_weights(run, self.experiment))
            self.step, state, _ = checkpoints.load(shapes, step)
        finally:
            checkpoints.close()
        self.params: Any = state["params"]
        transformer = Transformer(model, numerics, self._execution)
        target = "decoder_tokens" if model.kind == "encoder_decoder" else "tokens"

        def next_logits(given: Any, filled: Any) -> Any:
            params, batch = given
            return transformer.apply({"params": params}, {**batch, target: filled})

        self._next_logits = next_logits

    def evaluate(self) -> dict[str, Any]:
        """The validation numbers of this checkpoint, as `glu_lab.training.evaluation.metrics`.

        Raises:
            RecordError: when the data prepared now are not those of the run.
            DataError: when they cannot be prepared.
        """
        from glu_lab.data import load

        dataset = load(self.experiment.data)
        old = json.loads((self.workdir / "manifest.json").read_text(encoding="utf-8"))
        fingerprint = old["identity"]["data_fingerprint"]
        if dataset.fingerprint != fingerprint:
            raise RecordError(
                f"the data prepared now have fingerprint {dataset.fingerprint[:12]}, the run was "
                f"trained on {fingerprint[:12]}; their numbers do not compare."
            )
        here = dataclasses.replace(self.experiment, execution=self._execution)
        program = programs(program_key(here, dataset))
        batches = dataset.validation(self.experiment.eval_batch_size)
        params = program.put_params(self.params)
        totals = evaluate(program.evaluate, params, map(program.put_batch, batches))
        return metrics(totals, utf8_bytes=dataset.scored_bytes)

    def sample(
        self,
        text: str,
        *,
        samples: int = 1,
        tokens: int = 64,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> list[str]:
        """Texts that the model writes.

        Args:
            text: for an encoder–decoder, text with ``<extra_id_0>``, ``<extra_id_1>``, … where
                words are missing; for a decoder, the beginning of a text (may be empty).
            samples: how many.
            tokens: at most this many new tokens.
            temperature: 0 for the likeliest token each time (all samples are then equal).
            seed: of the draws.

        Returns:
            The whole texts: prompts with their spans filled in, or continued.

        Raises:
            DataError: for a text that is too long, or has no span to fill; or for numbers that
                ask for nothing.
        """
        if samples < 1 or tokens < 1:
            raise DataError(f"samples and tokens must be ≥ 1, got {samples} and {tokens}.")
        if not 0 <= temperature < math.inf:
            raise DataError(f"temperature must be ≥ 0 and finite, got {temperature!r}.")
        model = self.experiment.model
        span_filling = model.kind == "encoder_decoder"
        if span_filling:
            prompt, source = [self.tokenizer.pad_id], self._source(text)
        else:
            prompt, source = [self.tokenizer.eos_id, *self.tokenizer.encode(text)], None
        if len(prompt) + tokens > model.max_length:
            raise DataError(
                f"{len(prompt)} tokens of text and {tokens} new ones are over "
                f"model.max_length={model.max_length}."
            )
        buffer = np.zeros((samples, len(prompt) + tokens), np.int32)
        buffer[:, : len(prompt)] = prompt
        if source is None:
            where = np.broadcast_to(np.arange(buffer.shape[1], dtype=np.int32), buffer.shape)
            batch = {"segments": np.ones_like(buffer), "positions": where}
        else:
            encoder = np.broadcast_to(np.asarray(source, np.int32), (samples, len(source)))
            batch = {"encoder_tokens": encoder, "encoder_segments": np.ones_like(encoder)}
        filled = generate(
            self._next_logits,
            (self.params, jax.tree.map(jnp.asarray, batch)),
            jnp.asarray(buffer),
            jnp.int32(len(prompt)),
            jax.random.key(seed),
            jnp.float32(temperature),
            stop=self.tokenizer.eos_id,
            limit=self.tokenizer.size,
        )
        rows = np.asarray(filled)[:, len(prompt) :]
        if span_filling:
            return [self._fill(text, row) for row in rows]
        return [text + self.tokenizer.decode(row) for row in rows]

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

    def _fill(self, text: str, row: np.ndarray) -> str:
        """Puts what stands after each sentinel of a row in the place of its mark, in brackets."""
        spans: dict[int, list[int]] = {}
        current = None
        for token in row.tolist():
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


def _without_weights(run: RunDirectory, experiment: Experiment) -> str:
    """Why a run has no checkpoint, and what to do."""
    summary = run.summary() or {}
    status, error = summary.get("status"), (summary.get("error") or "").strip()
    reason = f": {error.splitlines()[-1]}" if error else ""
    if status == "diverged":
        return (
            f"{run.path} diverged before its first checkpoint{reason}. There are no weights to "
            "use; train it anew in another folder, with a lower training.schedule.peak."
        )
    if status == "complete":
        return f"{run.path} is complete, but its checkpoints are gone; train it anew."
    every, steps = experiment.recording.checkpoint_every, experiment.training.steps
    first = min(every, steps) if every > 0 else steps
    begun = f"failed{reason}" if status == "failed" else "has not come so far, or was stopped"
    return (
        f"{run.path} has no checkpoint yet: the first is written at step {first}, and the run "
        f"{begun}. Wait for it, or go on with `glu-lab train` (or the sweep) as it was started."
    )

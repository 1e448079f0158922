"""A run that takes a second: a decoder of two layers on a few invented documents."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

from glu_lab.spec import variant
from glu_lab.spec.experiment import (
    Data,
    Experiment,
    Optimizer,
    Recording,
    Schedule,
    Training,
)
from glu_lab.spec.model import Attention, Model, Positions

SYLLABLES = [a + b for a in "bdglmnrst" for b in ("a", "e", "i", "o", "u", "an", "er")]
VOCABULARY, SENTINELS = 300, 10

#: Keys of a line of metrics that say how long something took.
TIMES = ("tokens_per_second",)


def write_corpus(path: Path, documents: int = 40) -> Path:
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(documents):
            words = ("".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) for _ in range(60))
            file.write(json.dumps({"text": f"document {number}: {' '.join(words)}"}) + "\n")
    return path


def text_data(path: Path, **fields: Any) -> Data:
    settings: dict[str, Any] = dict(
        corpus="text",
        path=str(path),
        vocab_size=VOCABULARY,
        num_sentinels=SENTINELS,
        input_length=16,
        logical_shards=2,
        objective="causal_lm",
    )
    return Data(**(settings | fields))


def small_model(kind: str = "decoder", text: str = "reglu", **fields: Any) -> Model:
    """Dropout is on, so that what depends on the random key shows."""
    ffn = variant(text, d_model=8, d_ff=12, **fields.pop("ffn", {}))
    settings: dict[str, Any] = dict(
        kind=kind,
        vocab_size=VOCABULARY + SENTINELS,
        d_model=8,
        num_layers=2,
        max_length=64,
        attention=Attention(num_heads=2, num_kv_heads=1, head_dim=4, dropout=0.1),
        ffn=ffn,
        residual_dropout=0.1,
        depth_scaled_output=True,
    )
    if kind == "encoder_decoder":
        settings |= dict(
            num_encoder_layers=1,
            attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4),
            positions=Positions(kind="relative", num_buckets=8, max_distance=12),
        )
    return Model(**(settings | fields))


def small_training(**fields: Any) -> Training:
    settings: dict[str, Any] = dict(
        steps=13,
        batch_size=4,
        optimizer=Optimizer(kind="adamw", weight_decay=0.1, clip_norm=1.0),
        schedule=Schedule(kind="cosine", peak=0.01, warmup_steps=3, warmup="linear"),
    )
    return Training(**(settings | fields))


#: Checkpoints fall inside the windows over which the training loss is averaged.
RECORDING = Recording(log_every=5, eval_every=6, checkpoint_every=4, keep=10)


def small_experiment(data: Data, **fields: Any) -> Experiment:
    settings: dict[str, Any] = dict(
        model=small_model(),
        data=data,
        training=small_training(),
        recording=RECORDING,
        eval_batch_size=4,
    )
    return Experiment(**(settings | fields))


def retrained(experiment: Experiment, **fields: Any) -> Experiment:
    """The experiment with other fields in its `training`."""
    return dataclasses.replace(
        experiment, training=dataclasses.replace(experiment.training, **fields)
    )


def metrics_lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def killed_after(run: Path, copy: Path, step: int) -> Path:
    """A copy of a finished run as a kill leaves it whose last checkpoint was that of `step`.

    Lines of metrics from after the checkpoint are there, and no summary.
    """
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    for folder in (copy / "checkpoints").iterdir():
        if folder.name.isdigit() and int(folder.name) > step:
            shutil.rmtree(folder)
    return copy


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

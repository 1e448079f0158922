"""A small base config, and runs that were never trained."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glu_lab.budget import ledger
from glu_lab.spec import variant
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Data, Experiment, Training
from glu_lab.spec.identity import identity_hash, run_id
from glu_lab.spec.model import Attention, Model, Positions
from glu_lab.spec.variants import variant_name

FINGERPRINT = "f" * 64


def base(d_ff: int = 96, **training: Any) -> Experiment:
    """A two-plus-two-layer T5 with a ReLU FFN of D = 32."""
    return Experiment(
        model=Model(
            kind="encoder_decoder",
            vocab_size=512,
            d_model=32,
            num_layers=2,
            num_encoder_layers=2,
            attention=Attention(num_heads=2, num_kv_heads=2, head_dim=16),
            positions=Positions(kind="relative"),
            ffn=variant("relu", d_model=32, d_ff=d_ff),
        ),
        data=Data(vocab_size=256, num_sentinels=50),
        training=Training(**{"steps": 100, "batch_size": 8, **training}),
    )


class FakeData:
    """Stands in for a loaded dataset: a sweep needs its fingerprint only."""

    fingerprint = FINGERPRINT


def summary(experiment: Experiment, **changes: Any) -> dict[str, Any]:
    """A complete summary, as the training loop writes it."""
    ffn = experiment.model.ffn
    cost = ledger(ffn)
    steps = experiment.training.steps
    return {
        "status": "complete",
        "log_perplexity": 2.0,
        "log_perplexity_se": 0.01,
        "bits_per_byte": None,
        "params": 20_000 + 4 * cost.params,
        "ffn_params": cost.params,
        "macs_per_token": cost.macs_per_token,
        "d_ff": ffn.d_ff,
        "tokens_seen": steps * 1000,
        "tokens_per_second": 5000.0,
        "seed": experiment.seed,
        "variant": variant_name(ffn),
        "formula": "H = …",
        "exact_zero_fraction": None,
        "identity_hash": identity_hash(experiment, FINGERPRINT),
        "execution_hash": "e" * 64,
        "data_fingerprint": FINGERPRINT,
        "steps": steps,
        "wall_seconds": 12.5,
        "error": None,
    } | changes


def write_run(
    results: Path,
    experiment: Experiment,
    *,
    metrics: bool = False,
    with_summary: bool = True,
    **changes: Any,
) -> Path:
    """Writes a run directory as the training loop leaves it."""
    directory = results / run_id(experiment, changes.get("data_fingerprint", FINGERPRINT))
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(encode(experiment)))
    content = summary(experiment, **changes)
    if with_summary:
        (directory / "summary.json").write_text(json.dumps(content))
    if metrics:
        lines = curve(content["log_perplexity"], experiment.training.steps, experiment.seed)
        (directory / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
    return directory


def curve(final: float | None, steps: int, seed: int) -> list[Mapping[str, Any]]:
    """Metrics that fall to a final validation loss, with a deterministic wobble."""
    entries: list[Mapping[str, Any]] = []
    for step in range(0, steps + 1, max(1, steps // 100)):
        wobble = 0.06 * math.sin(1.7 * step + seed) + 0.05 * math.cos(2.9 * step * (seed + 1))
        loss = (final or 2.0) + 4.0 * math.exp(-6.0 * step / steps) * (1 - step / steps)
        entries.append({"step": step, "kind": "train", "loss": loss + wobble})
        if step and step % max(1, steps // 10) == 0:
            entries.append({"step": step, "kind": "eval", "log_perplexity": loss})
    return entries

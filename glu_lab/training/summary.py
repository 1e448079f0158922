"""What a run has done, counted over all its sessions, and the summary made of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from glu_lab.budget import ledger
from glu_lab.layers.params import count
from glu_lab.models import parameters
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.formula import formula
from glu_lab.spec.identity import identity_hash
from glu_lab.spec.variants import variant_name
from glu_lab.training import telemetry
from glu_lab.training.environment import execution_hash
from glu_lab.training.evaluation import Totals


@dataclasses.dataclass(kw_only=True)
class Counters:
    """What a run has done so far; all of it survives a resume."""

    tokens_seen: int = 0
    positions: int = 0
    train_seconds: float = 0.0
    window: Totals = dataclasses.field(default_factory=Totals)
    window_seconds: float = 0.0
    window_positions: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "window": self.window.state()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "Counters":
        return cls(**{**state, "window": Totals.from_state(state["window"])})


def summarize(
    experiment: Experiment,
    fingerprint: str,
    *,
    status: str,
    step: int,
    counters: Counters,
    evaluation: Mapping[str, Any] | None,
    observed: Mapping[str, Any] | None,
    seconds: float,
    error: str | None,
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        experiment: the run.
        fingerprint: of its data.
        status: ``complete``, ``diverged`` or ``interrupted``; validation numbers stand in the
            summary of a complete run alone.
        step: optimiser steps done.
        counters: of all sessions.
        evaluation: the last one, as `glu_lab.training.evaluation.metrics`.
        observed: the last telemetry, as `glu_lab.training.telemetry.report`.
        seconds: wall time of this session.
        error: what ended the run early.
    """
    model = experiment.model
    measured: Mapping[str, Any] = {}
    if status == "complete" and evaluation is not None:
        measured = evaluation
    cost = ledger(model.ffn)
    trained = counters.train_seconds
    return {
        "status": status,
        "variant": variant_name(model.ffn),
        "formula": formula(model.ffn),
        "d_ff": model.ffn.d_ff,
        "seed": experiment.seed,
        "steps": step,
        "log_perplexity": measured.get("log_perplexity"),
        "log_perplexity_se": measured.get("log_perplexity_se"),
        "perplexity": measured.get("perplexity"),
        "bits_per_byte": measured.get("bits_per_byte"),
        "accuracy": measured.get("accuracy"),
        "validation_tokens": measured.get("tokens"),
        "non_finite": measured.get("non_finite"),
        "params": count(parameters(model)),
        "ffn_params": cost.params,
        "macs_per_token": cost.macs_per_token,
        "tokens_seen": counters.tokens_seen,
        "tokens_per_second": counters.positions / trained if trained else None,
        "train_seconds": trained,
        "wall_seconds": seconds,
        "exact_zero_fraction": observed and telemetry.exact_zero_fraction(observed),
        "identity_hash": identity_hash(experiment, fingerprint),
        "execution_hash": execution_hash(experiment.execution),
        "data_fingerprint": fingerprint,
        "error": error,
    }

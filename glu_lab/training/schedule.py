"""Learning rate as a function of the step; computed on the host, handed to the step as data."""

import math

from glu_lab.spec.experiment import Schedule


def learning_rate(schedule: Schedule, step: int, steps: int) -> float:
    """The rate of one optimiser step.

    Args:
        schedule: which curve.
        step: counted from 0.
        steps: of the whole run.

    Returns:
        The rate, ≥ 0. Source of ``inverse_sqrt``: Vaswani et al. 2017 (linear warm-up) and Raffel
        et al. 2019 (held at 1/√warm-up); of ``wsd``: Hu et al. 2024 (arXiv 2404.06395).
    """
    warmup = schedule.warmup_steps
    if schedule.warmup == "linear" and step < warmup:
        return schedule.peak * (step + 1) / warmup
    rate = schedule.peak
    if schedule.kind == "inverse_sqrt":
        rate *= math.sqrt(max(warmup, 1) / max(step, warmup, 1))
    if schedule.kind == "cosine":
        start = warmup if schedule.warmup == "linear" else 0
        done = min(1.0, (step - start) / max(1, steps - start))
        floor = schedule.final_fraction
        return rate * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
    decay = round(schedule.decay_fraction * steps)
    if decay and step >= steps - decay:
        left = (steps - step) / (decay + 1)
        rate *= schedule.final_fraction + (1 - schedule.final_fraction) * left
    return rate

"""How fast the pipeline makes examples: ``python -m glu_lab.data.benchmark``.

The pipeline should make at least ten times what a training step takes, so that it never waits.
"""

import dataclasses
import time

from glu_lab.data.dataset import TextDataset, load
from glu_lab.spec.experiment import Data


def examples_per_second(dataset: TextDataset, *, batch_size: int = 32, steps: int = 200) -> float:
    """Training examples that one process makes in a second of wall time.

    Args:
        dataset: what to draw from.
        batch_size: examples of a batch.
        steps: batches to time, after one that is not timed.
    """
    iterator = dataset.train_iterator(seed=0, batch_size=batch_size)
    next(iterator)
    start = time.perf_counter()
    for _ in range(steps):
        next(iterator)
    return steps * batch_size / (time.perf_counter() - start)


def report(spec: Data) -> list[str]:
    """A line for each objective on one corpus."""
    lines = []
    for objective in ("span_corruption", "causal_lm"):
        dataset = load(dataclasses.replace(spec, objective=objective))
        speed = examples_per_second(dataset)
        lines.append(f"{objective:<16} {speed:>10,.0f} examples/s of {dataset.raw_length} tokens")
    return lines


if __name__ == "__main__":
    print("\n".join(report(Data())))

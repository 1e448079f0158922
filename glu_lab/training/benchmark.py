"""How fast a config trains, and how much of the time is not the compiled step.

Three things are timed in turn, round after round, so that whatever else the machine does falls on
all of them alike: the compiled step alone on one batch; the loop's path, which also makes batches,
places them, dispatches and reads metrics; and the input pipeline alone.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.errors import SpecError
from glu_lab.models.ledger import model_ledger
from glu_lab.spec.experiment import Experiment
from glu_lab.training.environment import execution_facts
from glu_lab.training.evaluation import Totals
from glu_lab.training.programs import program_key, programs
from glu_lab.training.schedule import learning_rate

ROUNDS = 7

#: Batches of one measurement of the input pipeline, or the steps asked for where these are more: a
#: few would only empty the buffer that its thread has filled.
PIPELINE_BATCHES = 200

#: Rows and columns of the matrices whose product measures the machine's peak.
PEAK_SIZE = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and interquartile range of one number over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least two values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What was measured; times are wall time.

    Attributes:
        rounds, steps: each number is over `rounds` measurements of `steps` steps (of the pipeline:
            of at least `PIPELINE_BATCHES` batches).
        step_seconds: one compiled training step on a batch that is already on the device.
        loop_seconds: one step of the loop's path.
        overhead: (loop − step) / step of the same round; below 0 when noise is larger than it.
        pipeline_batches_per_second: of the input pipeline alone.
        pipeline_ratio: batches that the pipeline makes during one step.
        tokens_per_second: positions that the model reads (encoder and decoder, padding included)
            on the loop's path.
        step_flops: of one training step: 6 for each multiply-accumulate of the forward pass (2
            forward, 4 backward); recomputation under remat is not counted.
        flops_per_second: `step_flops` over the compiled step's time.
        peak_flops_per_second: of a float32 product of two 2048² matrices at the precision that JAX
            takes by default.
        peak_fraction: flops_per_second / peak_flops_per_second, medians.
        machine: device, cores, versions.
    """

    rounds: int
    steps: int
    step_seconds: Spread
    loop_seconds: Spread
    overhead: Spread
    pipeline_batches_per_second: Spread
    pipeline_ratio: Spread
    tokens_per_second: Spread
    step_flops: int
    flops_per_second: Spread
    peak_flops_per_second: Spread
    peak_fraction: float
    machine: dict[str, Any]


def benchmark(
    experiment: Experiment,
    *,
    steps: int = 20,
    dataset: Any = None,
    progress: Callable[[str], None] | None = None,
) -> Benchmark:
    """Measures one experiment on this machine; writes nothing.

    Args:
        experiment: what to train.
        steps: of one measurement; there are `ROUNDS` of each kind.
        dataset: a loaded `glu_lab.data.TextDataset` of ``experiment.data``; None loads it.
        progress: called with a line before each part.

    Raises:
        SpecError: for ``steps`` below 1, or a mesh or batch that does not fit the devices.
        DataError: for data that do not fit.
    """
    if steps < 1:
        raise SpecError(f"steps must be ≥ 1, got {steps}.")
    report = progress or (lambda line: None)
    if dataset is None:
        from glu_lab.data import load

        dataset = load(experiment.data, progress=report)
    program = programs(program_key(experiment, dataset))
    report("compiling")
    step = program.train
    batch_size = experiment.training.batch_size
    iterator = dataset.train_iterator(seed=experiment.seed, batch_size=batch_size)
    pipeline = dataset.train_iterator(seed=experiment.seed, batch_size=batch_size)
    fixed = program.put_batch(next(iterator))
    state = program.init(program.put_key(experiment.seed))
    peak = _Peak()

    def alone(state: Any, count: int) -> Any:
        for _ in range(count):
            state, out = step(state, fixed, np.float32(0.0))
        jax.block_until_ready((state, out))
        return state

    def loop(state: Any, count: int) -> Any:
        # As `glu_lab.training.loop`: the sums of a step are read while the next one runs.
        # The learning rate is computed and then not used: the weights stay as they are, and no
        # step of a longer measurement can diverge.
        totals, last = Totals(), None
        for number in range(count):
            batch = program.put_batch(next(iterator))
            rate = learning_rate(experiment.training.schedule, number, experiment.training.steps)
            state, out = step(state, batch, np.float32(0.0 * rate))
            if last is not None and bool(last["finite"]):
                totals.add(jax.device_get(last["sums"]))
            last = out
        assert last is not None
        totals.add(jax.device_get(last["sums"]))
        return jax.block_until_ready(state)

    def batches(count: int) -> None:
        for _ in range(count):
            next(pipeline)

    state = loop(alone(state, 2), 2)
    batches(2)
    peak.seconds()
    seconds: dict[str, list[float]] = {"step": [], "loop": [], "pipeline": [], "peak": []}
    made = max(steps, PIPELINE_BATCHES)
    for number in range(ROUNDS):
        report(f"round {number + 1} of {ROUNDS}")
        start = time.perf_counter()
        state = alone(state, steps)
        middle = time.perf_counter()
        state = loop(state, steps)
        end = time.perf_counter()
        batches(made)
        last = time.perf_counter()
        seconds["step"].append((middle - start) / steps)
        seconds["loop"].append((end - middle) / steps)
        seconds["pipeline"].append((last - end) / made)
        seconds["peak"].append(peak.seconds())
    return _result(experiment, dataset, steps, seconds)


class _Peak:
    """The product of two float32 matrices, as large as fits any cache badly."""

    def __init__(self) -> None:
        key = jax.random.key(0)
        self._matrix = jax.random.normal(key, (PEAK_SIZE, PEAK_SIZE), jnp.float32)
        self._product = jax.jit(jnp.dot)

    def seconds(self) -> float:
        """Of one product, the best of three."""
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(self._product(self._matrix, self._matrix))
            best = min(best, time.perf_counter() - start)
        return best


def _result(
    experiment: Experiment, dataset: Any, steps: int, seconds: dict[str, list[float]]
) -> Benchmark:
    batch_size, data = experiment.training.batch_size, experiment.data
    two_stacks = experiment.model.kind == "encoder_decoder"
    cost = model_ledger(
        experiment.model,
        input_length=data.input_length,
        target_length=dataset.target_length if two_stacks else None,
    )
    flops = 6 * cost.macs_per_example * batch_size
    positions = sum(cost.lengths.values()) * batch_size
    pairs = list(zip(seconds["step"], seconds["loop"], strict=True))
    rate = Spread.of([flops / s for s in seconds["step"]])
    peak = Spread.of([2 * PEAK_SIZE**3 / s for s in seconds["peak"]])
    return Benchmark(
        rounds=ROUNDS,
        steps=steps,
        step_seconds=Spread.of(seconds["step"]),
        loop_seconds=Spread.of(seconds["loop"]),
        overhead=Spread.of([(loop - step) / step for step, loop in pairs]),
        pipeline_batches_per_second=Spread.of([1 / s for s in seconds["pipeline"]]),
        pipeline_ratio=Spread.of(
            [s / p for s, p in zip(seconds["step"], seconds["pipeline"], strict=True)]
        ),
        tokens_per_second=Spread.of([positions / s for s in seconds["loop"]]),
        step_flops=flops,
        flops_per_second=rate,
        peak_flops_per_second=peak,
        peak_fraction=rate.median / peak.median,
        machine=execution_facts(experiment.execution),
    )

"""Whether a run goes on as if it had not been stopped: in a fresh program, on another mesh, and
when backward recomputes what forward dropped.

A run of K steps saves a checkpoint after K/2 and goes on. What is loaded from it goes on too, to K:

* on the same mesh bit for bit: parameters, optimiser, step and random key, data iterator, metrics;
* on another mesh: the state and the next batch bit for bit, then what float rounding leaves equal;
* recomputation (``remat``) gives the loss and gradients of the step after the checkpoint.

How far rounding goes is stated beforehand, in `glu_lab.conformance.comparisons`. Dropout is on, so
that a random key that is not restored shows.
"""

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from glu_lab.conformance.comparisons import (
    BITS,
    MOVED,
    Bounds,
    Comparison,
    bounds,
    distance,
    equal,
    host,
    losses_alike,
    moved_alike,
    near,
    same,
    snapshot,
)
from glu_lab.errors import SpecError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.sharding.targets import device_mesh
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.sharding import parse_mesh
from glu_lab.training.initial import initial_params
from glu_lab.training.programs import Programs, program_key
from glu_lab.training.schedule import learning_rate

REMATS = ("none", "block", "dots")


@dataclasses.dataclass
class _Run:
    """A run at some step, on some mesh."""

    experiment: Experiment
    dataset: Any
    program: Programs
    state: Any
    iterator: Any
    step: int

    def next_batch(self) -> Any:
        """The batch that comes next, which the run itself still takes."""
        ahead = _iterator(self.experiment, self.dataset)
        ahead.set_state(self.iterator.get_state())
        return next(ahead)

    def until(self, last: int) -> list[Any]:
        """Takes steps up to `last`; the metrics of each, on the host."""
        training, seen = self.experiment.training, []
        while self.step < last:
            batch = self.program.put_rows(next(self.iterator))
            rate = learning_rate(training.schedule, self.step, training.steps)
            self.state, out = self.program.train(self.state, batch, np.float32(rate))
            seen.append(jax.tree.map(np.array, out))
            self.step += 1
        return seen


def _iterator(experiment: Experiment, dataset: Any) -> Any:
    return dataset.train_iterator(seed=experiment.seed, batch_size=experiment.training.batch_size)


def _programs(experiment: Experiment, dataset: Any, mesh: Mesh) -> Programs:
    """Programs that nobody else has; not the shared ones of `glu_lab.training.programs`."""
    return Programs(program_key(experiment, dataset), mesh)


@functools.lru_cache(maxsize=8)
def _gradient(program: Programs) -> Callable[..., tuple[Any, Any]]:
    return jax.jit(program.loss_gradients)


def _resumed(experiment: Experiment, dataset: Any, mesh: Mesh, folder: Path) -> _Run:
    """What a fresh program finds in a checkpoint."""
    program = _programs(experiment, dataset, mesh)
    checkpoints = Checkpoints(folder, 1, "read")
    try:
        step, state, loop = checkpoints.load(program.abstract_state())
    finally:
        checkpoints.close()
    iterator = _iterator(experiment, dataset)
    iterator.set_state(loop["iterator"])
    return _Run(experiment, dataset, program, state, iterator, step)


def with_dropout(experiment: Experiment, rate: float) -> tuple[Experiment, bool]:
    """The experiment with dropout, and whether it had none."""
    model = experiment.model
    rates = (
        model.residual_dropout, model.embedding_dropout, model.final_dropout,
        model.attention.dropout, model.ffn.hidden_dropout,
    )  # fmt: skip
    if any(rates) or not rate:
        return experiment, False
    dropping = dataclasses.replace(
        model,
        residual_dropout=rate,
        ffn=model.ffn.replace(hidden_dropout=rate),
        attention=dataclasses.replace(model.attention, dropout=rate),
    )
    return dataclasses.replace(experiment, model=dropping), True


def mesh_sizes(text: str) -> dict[str, int]:
    """Sizes of a mesh; an axis that takes the rest of the devices takes one."""
    return parse_mesh(text.replace("=-1", "=1"), None)


def devices_needed(experiment: Experiment, onto: Sequence[str]) -> int:
    """How many devices a check uses."""
    texts = (experiment.execution.mesh, *onto)
    return max(math.prod(mesh_sizes(text).values()) for text in texts)


def check(
    experiment: Experiment,
    *,
    steps: int = 6,
    onto: Sequence[str] = (),
    dropout: float = 0.1,
    dataset: Any = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Stops a run in the middle and compares.

    Args:
        experiment: the run; its schedule is that of the whole run.
        steps: K ≥ 2.
        onto: meshes on which the checkpoint is loaded too, ``"data=2"``.
        dropout: rate for a config that has no dropout; 0 leaves it without.
        dataset: a loaded `glu_lab.data.TextDataset`; None loads it.
        report: called with a line before each slow part.

    Returns:
        ``comparisons``, ``passed`` and the record of the checkpoint, ready for JSON.

    Raises:
        SpecError: for fewer than two steps, a mesh that does not fit, or parameters that do not
            move.
        DataError: for data that cannot be prepared.
    """
    tell = report or (lambda line: None)
    if steps < 2:
        raise SpecError(f"steps must be ≥ 2, to stop between the first and the last; got {steps}.")
    if not 0 <= dropout < 1:
        raise SpecError(f"dropout must be in [0, 1), got {dropout!r}.")
    experiment, added = with_dropout(experiment, dropout)
    sizes = {text: mesh_sizes(text) for text in (experiment.execution.mesh, *onto)}
    meshes = {text: device_mesh(s, _devices(math.prod(s.values()))) for text, s in sizes.items()}
    for text in onto:
        # What does not divide is refused before anything is prepared.
        _programs_fit(experiment, meshes[text])
    if dataset is None:
        from glu_lab.data import load

        dataset = load(experiment.data, progress=tell)
    with tempfile.TemporaryDirectory(prefix="glu-lab-continuity-") as folder:
        checked = _Check(experiment, dataset, meshes, Path(folder) / "checkpoints", tell)
        comparisons = list(checked.comparisons(steps, onto))
    shapes = {text: "×".join(map(str, s.values())) for text, s in sizes.items()}
    return {
        "config": experiment.name,
        "steps": steps,
        "saved_at": steps // 2,
        "mesh": shapes[experiment.execution.mesh],
        "onto": [shapes[text] for text in onto],
        "dropout_added": dropout if added else None,
        "compute_dtype": experiment.numerics.compute_dtype,
        "checkpoint": checked.record,
        "comparisons": [
            {**dataclasses.asdict(c), "passed": c.passed, "largest": _finite(c.largest)}
            for c in comparisons
        ],
        "passed": all(c.passed for c in comparisons),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _devices(count: int) -> list[Any]:
    devices = jax.devices()
    if len(devices) < count:
        raise SpecError(f"a mesh needs {count} devices; there are {len(devices)}.")
    return devices[:count]


def _programs_fit(experiment: Experiment, mesh: Mesh) -> None:
    from glu_lab.data.shapes import UnpreparedDataset

    _programs(experiment, UnpreparedDataset(experiment.data), mesh)


class _Check:
    """The runs of one check."""

    def __init__(
        self,
        experiment: Experiment,
        dataset: Any,
        meshes: Mapping[str, Mesh],
        folder: Path,
        tell: Callable[[str], None],
    ):
        self.experiment, self.dataset, self.meshes = experiment, dataset, meshes
        self.folder, self.tell = folder, tell
        self.own = meshes[experiment.execution.mesh]
        self.record: dict[str, Any] = {}

    def comparisons(self, steps: int, onto: Sequence[str]) -> Iterator[Comparison]:
        """All of them; a run of `steps` first."""
        experiment, dataset, half = self.experiment, self.dataset, steps // 2
        self.tell(f"{steps} steps on the config's own mesh")
        program = _programs(experiment, dataset, self.own)
        given = initial_params(experiment)
        state = program.init(
            program.put_key(experiment.seed), None if given is None else program.put_params(given)
        )
        run = _Run(experiment, dataset, program, state, _iterator(experiment, dataset), 0)
        run.until(half)
        middle, place = snapshot(run.state), run.iterator.get_state()
        start = middle["params"]
        checkpoints = Checkpoints(self.folder, 1)
        checkpoints.save(half, run.state, {"iterator": place})
        checkpoints.close()
        self.record = {
            "step": int(middle["step"]),
            "rng": middle["rng"].tolist(),
            "finite": bool(middle["finite"]),
        }
        metrics = run.until(steps)

        self.tell("resumed in a fresh program")
        yield from self._same_mesh(steps, run, metrics, middle, place)
        bound = bounds(experiment, dict(program.key.train_batch))
        self.tell("gradients after the checkpoint")
        base = _resumed(experiment, dataset, self.own, self.folder)
        batch = base.next_batch()
        reference = self._gradients(base, batch)
        for remat in REMATS:
            if remat != experiment.execution.remat:
                self.tell(f"remat {remat}")
                yield from self._recomputed(remat, batch, reference, bound)
        for text in onto:
            self.tell(f"resumed on {text}")
            yield from self._other_mesh(
                text, steps, run, metrics, middle, batch, reference, start, bound
            )

    def _same_mesh(
        self, steps: int, run: _Run, metrics: list[Any], middle: Any, place: Any
    ) -> Iterator[Comparison]:
        again = _resumed(self.experiment, self.dataset, self.own, self.folder)
        way = f"resumed at step {again.step}"
        yield same(way, "state as loaded", again.state, middle, BITS)
        yield equal(way, "place of the data", again.iterator.get_state(), place)
        seen = again.until(steps)
        for name, what in (
            ("params", "parameters at the end"),
            ("optimizer", "optimiser state at the end"),
        ):
            yield same(way, what, again.state[name], run.state[name], BITS)
        rest = ("step", "rng", "finite")
        yield same(
            way, "step and random key at the end", {n: again.state[n] for n in rest},
            {n: run.state[n] for n in rest}, BITS,
        )  # fmt: skip
        yield equal(
            way,
            "place of the data at the end",
            again.iterator.get_state(),
            run.iterator.get_state(),
        )
        yield same(way, "metrics of every step", seen, metrics, BITS)

    def _gradients(self, run: _Run, batch: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        with jax.set_mesh(run.program.mesh):
            sums, grads = _gradient(run.program)(run.state, run.program.put_rows(batch))
        return host(sums), host(grads)

    def _recomputed(
        self, remat: str, batch: Any, reference: tuple[Any, Any], bound: Bounds
    ) -> Iterator[Comparison]:
        execution = dataclasses.replace(self.experiment.execution, remat=remat)
        experiment = dataclasses.replace(self.experiment, execution=execution)
        run = _resumed(experiment, self.dataset, self.own, self.folder)
        sums, grads = self._gradients(run, batch)
        way = f"remat {remat}"
        yield near(way, _loss(sums), _loss(reference[0]), bound, "loss of the next step")
        yield near(way, grads, reference[1], bound)

    def _other_mesh(
        self, text: str, steps: int, run: _Run, metrics: list[Any], middle: Any, batch: Any,
        reference: tuple[Any, Any], start: Any, bound: Bounds,
    ) -> Iterator[Comparison]:  # fmt: skip
        other = _resumed(self.experiment, self.dataset, self.meshes[text], self.folder)
        way = f"resumed on {text}"
        yield same(way, "state as loaded", other.state, middle, MOVED)
        yield same(way, "next batch", other.next_batch(), batch, MOVED)
        _, grads = self._gradients(other, batch)
        yield near(way, grads, reference[1], bound)
        seen = other.until(steps)
        yield moved_alike(way, other.state["params"], run.state["params"], start, bound)
        gone = distance(start, run.state["params"])
        yield losses_alike(way, seen, metrics, bound, gone)


def _loss(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {path: x for path, x in sums.items() if path == "nats"}

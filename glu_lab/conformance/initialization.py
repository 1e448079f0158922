"""What a model's FFNs look like at the start of a run, or at a checkpoint, beside the theory.

One batch goes forward and backward once. Recorded for every layer and branch are the statistics of
`glu_lab.training.telemetry` and the sizes of parameters and gradients; measured second moments
stand beside those that `glu_lab.conformance.propagation` predicts.

Channels of a layer are independent draws given its rows: the spread of a moment over channels gives
its standard error. The product's own error enters the output's, whose channels share the product.

Dimension letters: B batch, S sequence, T = B·S rows, D d_model, F d_ff, N branches, L layers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab.conformance.propagation import (
    Propagation,
    held_weights,
    propagate,
    stated_weights,
)
from glu_lab.errors import DataError, RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.layers.params import flatten
from glu_lab.layers.placement import Placement
from glu_lab.models import Transformer, parameters
from glu_lab.models.transformer import INTERMEDIATES
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Experiment
from glu_lab.training import telemetry
from glu_lab.training.initial import initial_params
from glu_lab.training.programs import (
    Batch,
    Programs,
    dropout_key,
    program_key,
    programs,
    rms_by_path,
)
from glu_lab.training.trained import TrainedRun

#: Added to the telemetry of a tap; taken out of it again before it is reported.
_MOMENTS = "moments"


def observe(name: str, value: Array) -> dict[str, Any]:
    """Telemetry of a tap, and the moments that the theory is held against.

    Returns:
        Statistics as of `telemetry.observe`, and ``moments``: of the input ``squared_lengths`` of
        all rows; of the others ``mean``, the mean over rows and channels of the square, and ``se``,
        its standard error over channels, both (N,) where there are branches; of two branches also
        the standard error of their correlation.
    """
    statistics: dict[str, Any] = telemetry.observe(name, value)
    x = value.astype(np.promote_types(value.dtype, np.float32))
    branched = name in ("pre_activation", "branches", "slopes")
    rows = tuple(range(x.ndim - (2 if branched else 1)))
    if name == "input":
        statistics[_MOMENTS] = {"squared_lengths": jnp.sum(jnp.square(x), axis=-1)}
    elif name != "slopes":
        mean, se = _over_channels(jnp.mean(jnp.square(x), axis=rows))
        statistics[_MOMENTS] = {"mean": mean, "se": se}
    if name == "pre_activation" and x.shape[-2] > 1:
        centred = x - jnp.mean(x, axis=(*rows, x.ndim - 1), keepdims=True)
        joint = jnp.mean(centred[..., 0, :] * centred[..., 1, :], axis=rows)
        spread = statistics["std"]
        se = _over_channels(joint)[1] / (spread[0] * spread[1])
        statistics[_MOMENTS]["correlation_se"] = se
    return statistics


def _over_channels(x: Array) -> tuple[Array, Array]:
    """Mean over the last axis, and its standard error; NaN for a single channel."""
    n = x.shape[-1]
    mean = jnp.mean(x, axis=-1)
    squares = jnp.sum(jnp.square(x - mean[..., None]), axis=-1)
    return mean, jnp.sqrt(squares / (max(n - 1, 1) * n)) if n > 1 else jnp.full_like(mean, jnp.nan)


def branch_sizes(tree: Any) -> dict[str, Array]:
    """`rms_by_path`, with the branches of every ``wi`` (L, D, N, F) apart: (L, N)."""
    sizes = rms_by_path(tree)
    for path, x in flatten(tree).items():
        if path.endswith("/ffn/wi"):
            wide = x.astype(np.promote_types(x.dtype, np.float32))
            sizes[path] = jnp.sqrt(jnp.mean(jnp.square(wide), axis=(1, 3)))
    return sizes


@functools.lru_cache(maxsize=4)
def _pass(program: Programs) -> Callable[[Any, Batch], dict[str, Any]]:
    """One forward and backward pass of a run's program; compiled once."""
    key = program.key
    place = Placement(key.execution.rules)
    model = Transformer(key.model, key.numerics, key.execution, place, observe)

    def run(state: Any, batch: Batch) -> dict[str, Any]:
        sums, gradient = program.loss_gradients(state, batch)
        drops = dropout_key(state["rng"], state["step"])
        _, sown = model.apply(
            {"params": state["params"]}, batch, dropout_key=drops, mutable=[INTERMEDIATES]
        )
        return {
            "sums": sums,
            "parameter": branch_sizes(state["params"]),
            "gradient": branch_sizes(gradient),
            "sown": sown,
        }

    return jax.jit(run)


def measure(program: Programs, state: Any, batch: Batch) -> dict[str, Any]:
    """One forward and backward pass, reduced inside the compiled program.

    Args:
        program: of the run.
        state: a training state.
        batch: a training batch, on the mesh.

    Returns:
        ``sums`` of the loss, ``parameter`` and ``gradient`` sizes (`branch_sizes`), and what was
        ``sown`` by `observe`, as NumPy arrays. Dropout is that of the state's next step.
    """
    with jax.set_mesh(program.mesh):
        return jax.device_get(_pass(program)(state, batch))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One second moment, measured and predicted.

    Attributes:
        stack, layer: where.
        quantity: ``pre-activation``, ``factor``, ``product``, ``output``, or ``correlation``, which
            is predicted to be 0 and has no ratio.
        branch: its number, or None.
        measured, predicted: the two.
        ratio: measured / predicted.
        standard_error: of the ratio, or of the correlation.
    """

    stack: str
    layer: int
    quantity: str
    branch: int | None
    measured: float | None
    predicted: float
    ratio: float | None
    standard_error: float | None

    @property
    def deviations(self) -> float | None:
        """How many standard errors it lies off; None where there are none."""
        off = self.measured if self.ratio is None else self.ratio - 1
        if off is None or not self.standard_error:
            return None
        return off / self.standard_error


def _known(value: Any) -> float | None:
    value = float(value)
    return value if math.isfinite(value) else None


def _lines(stack: str, layer: int, taps: Mapping[str, Any], theory: Propagation) -> Iterator[Line]:
    """The lines of one layer; `taps` holds that layer's statistics."""

    def moment(
        quantity: str, tap: str, predicted: float, branch: int | None = None, more: float = 0.0
    ) -> Line:
        mean, se = (np.asarray(taps[tap][_MOMENTS][part]) for part in ("mean", "se"))
        if branch is not None:
            mean, se = mean[branch], se[branch]
        ratio = _known(mean / predicted) if predicted else None
        error = math.hypot(float(se / mean), more) * (ratio or 0.0) if mean else math.nan
        return Line(
            stack=stack,
            layer=layer,
            quantity=quantity,
            branch=branch,
            measured=_known(mean),
            predicted=predicted,
            ratio=ratio,
            standard_error=_known(error),
        )

    for i, predicted in enumerate(theory.arguments):
        yield moment("pre-activation", "pre_activation", predicted, i)
    for i, predicted in enumerate(theory.factors):
        yield moment("factor", "branches", predicted, i)
    product = moment("product", "product", theory.product)
    yield product
    own = (product.standard_error or 0.0) / (product.ratio or 1.0)
    yield moment("output", "output", theory.output, more=own)
    if "correlation" in taps["pre_activation"]:
        yield Line(
            stack=stack,
            layer=layer,
            quantity="correlation",
            branch=None,
            measured=_known(taps["pre_activation"]["correlation"]),
            predicted=0.0,
            ratio=None,
            standard_error=_known(taps["pre_activation"][_MOMENTS]["correlation_se"]),
        )


def of_config(
    experiment: Experiment, report: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The record of a run's first step, before it is taken.

    Args:
        experiment: the run; its weights are drawn, or those of ``experiment.initial``.
        report: called with a line before each slow part.

    Raises:
        SpecError: for a mesh or batch that does not fit the devices.
        DataError: for data that cannot be prepared.
    """
    tell = report or (lambda line: None)
    program, iterator = _prepared(experiment, tell)
    given = initial_params(experiment)
    key = program.put_key(experiment.seed)
    state = program.init(key, None if given is None else program.put_params(given))
    tell("compiling one step")
    batch = program.put_rows(next(iterator))
    return initial_statistics(experiment, program, state, batch, drawn=given is None)


def of_run(
    workdir: Path, step: int | None = None, report: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The record of the step that follows a checkpoint.

    Args:
        workdir: a run's folder; nothing in it is written.
        step: which checkpoint; None for the newest.
        report: as in `of_config`.

    Raises:
        RecordError: when it is no run, has no such checkpoint, or its data are others by now.
        DataError: for data that cannot be prepared.
    """
    tell = report or (lambda line: None)
    trained = TrainedRun(workdir, step)
    # The mesh that it was trained on may not be here.
    execution = dataclasses.replace(trained.experiment.execution, mesh=Execution().mesh)
    experiment = dataclasses.replace(trained.experiment, execution=execution)
    program, iterator = _prepared(experiment, tell)
    checkpoints = Checkpoints(Path(workdir) / "checkpoints", experiment.recording.keep, "read")
    try:
        _, state, loop = checkpoints.load(program.abstract_state(), trained.step)
    finally:
        checkpoints.close()
    try:
        iterator.set_state(loop["iterator"])
    except DataError as error:
        raise RecordError(f"{workdir}: the data prepared now are not the run's. {error}") from error
    tell("compiling one step")
    batch = program.put_rows(next(iterator))
    return initial_statistics(experiment, program, state, batch, drawn=False)


def _prepared(experiment: Experiment, tell: Callable[[str], None]) -> tuple[Programs, Any]:
    """Programs, and a training iterator at its start."""
    from glu_lab.data import load

    dataset = load(experiment.data, progress=tell)
    program = programs(program_key(experiment, dataset))
    group, groups = program.process_rows()
    iterator = dataset.train_iterator(
        seed=experiment.seed,
        batch_size=experiment.training.batch_size,
        process_index=group,
        process_count=groups,
    )
    return program, iterator


def initial_statistics(
    experiment: Experiment, program: Programs, state: Any, batch: Batch, *, drawn: bool
) -> dict[str, Any]:
    """Everything that is recorded, ready for JSON.

    Args:
        experiment: the run.
        program: of the run.
        state: its initial state, or that of a checkpoint.
        batch: a training batch, on the mesh.
        drawn: whether the theory takes the spreads that the config's initialisers state. At a
            checkpoint, or for weights of another project, it takes those that the weights have: a
            ratio of 1 then says that they are still independent of the rows.
    """
    model = experiment.model
    spec, table, seen = model.ffn, parameters(model), measure(program, state, batch)
    lines: list[Line] = []
    statistics: dict[str, Any] = {}
    for stack, tree in seen["sown"][INTERMEDIATES].items():
        taps = tree["layers"]["ffn"]
        params = jax.device_get(state["params"][stack]["layers"]["ffn"])
        for layer in range(len(taps["input"]["rms"])):
            here = jax.tree.map(lambda x: x[layer], taps)  # noqa: B023 - used at once
            weights = (
                stated_weights(spec, table[stack]["layers"]["ffn"])
                if drawn
                else held_weights(spec, params, layer)
            )
            lengths = here["input"][_MOMENTS]["squared_lengths"]
            theory = propagate(spec, weights, lengths, spec.hidden_dropout)
            lines += _lines(stack, layer, here, theory)
        plain = {
            tap: {name: telemetry.plain(x) for name, x in values.items() if name != _MOMENTS}
            for tap, values in taps.items()
        }
        plain["input"]["mean_square"] = telemetry.plain(
            np.mean(taps["input"][_MOMENTS]["squared_lengths"], axis=(1, 2)) / spec.d_model
        )
        statistics[stack] = plain
    rng = state["rng"]
    tokens = int(seen["sums"]["tokens"])
    return {
        "config": experiment.name,
        "weights": "drawn" if drawn else "held",
        "step": int(state["step"]),
        "rng": {
            "implementation": str(jax.random.key_impl(rng)),
            "words": np.asarray(jax.random.key_data(rng)).tolist(),
        },
        # Steps are skipped when a number is not finite; no loss is scaled, in any number format.
        "loss_scale": None,
        "finite": bool(state["finite"]),
        "tokens": tokens,
        "loss": _known(float(seen["sums"]["nats"]) / tokens) if tokens else None,
        "hidden_dropout": spec.hidden_dropout,
        "theory": [dataclasses.asdict(line) for line in lines],
        "pooled": _pooled(lines),
        "statistics": statistics,
        "rms": {
            kind: {path: telemetry.plain(x) for path, x in seen[kind].items()}
            for kind in ("parameter", "gradient")
        },
    }


def _pooled(lines: list[Line]) -> list[dict[str, Any]]:
    """Mean ratio of each quantity over all layers, whose weights are independent draws."""
    groups: dict[tuple[str, int | None], list[Line]] = {}
    for line in lines:
        if line.ratio is not None and line.standard_error is not None:
            groups.setdefault((line.quantity, line.branch), []).append(line)
    return [
        {
            "quantity": quantity,
            "branch": branch,
            "layers": len(own),
            "ratio": math.fsum(line.ratio or 0.0 for line in own) / len(own),
            "standard_error": math.hypot(*(line.standard_error or 0.0 for line in own)) / len(own),
        }
        for (quantity, branch), own in groups.items()
    ]

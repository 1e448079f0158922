"""The compiled programs of a run, shared by every run of the same shape.

Seeds, learning rates and data are arguments. Everything that changes the program is in a
`ProgramKey`; two runs with equal keys use one compilation.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, auto_axes
from jaxtyping import Array

from glu_lab.layers.dtypes import resolve
from glu_lab.layers.loss import cross_entropy
from glu_lab.layers.params import Parameter, flatten, initialize
from glu_lab.layers.placement import Placement, partition_spec
from glu_lab.models import Transformer, parameters
from glu_lab.models.transformer import INTERMEDIATES
from glu_lab.sharding import mesh as mesh_lib
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Experiment, Optimizer
from glu_lab.spec.model import Model
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import check_size
from glu_lab.training import optimizers, telemetry
from glu_lab.training.state import check_layout, state_shapes

Batch = Mapping[str, Array]
BatchSpec = tuple[tuple[str, tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramKey:
    """Everything that a compiled program depends on.

    Attributes:
        model, numerics, execution, optimizer, microbatches, z_loss: as in the Experiment.
        train_batch, eval_batch: names and shapes of the int32 arrays of a batch.
    """

    model: Model
    numerics: Numerics
    execution: Execution
    optimizer: Optimizer
    microbatches: int
    z_loss: float
    train_batch: BatchSpec
    eval_batch: BatchSpec


def program_key(experiment: Experiment, dataset: Any) -> ProgramKey:
    """The key of an experiment's programs on a dataset."""

    def shapes(batch_size: int) -> BatchSpec:
        return tuple((k, tuple(s)) for k, (s, _) in dataset.batch_spec(batch_size).items())

    return ProgramKey(
        model=experiment.model,
        numerics=experiment.numerics,
        execution=experiment.execution,
        optimizer=experiment.training.optimizer,
        microbatches=experiment.training.microbatches,
        z_loss=experiment.training.z_loss,
        train_batch=shapes(experiment.training.batch_size),
        eval_batch=shapes(experiment.eval_batch_size),
    )


def dropout_key(rng: Array, step: Array | int, microbatch: Array | int = 0) -> Array:
    """The key of one micro-batch's dropout, from the run's root key."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(rng, 1), step), microbatch)


def rms_by_path(tree: Any) -> dict[str, Array]:
    """Root mean square of every array; one number a layer for stacked ones."""
    out = {}
    for path, x in flatten(tree).items():
        layered = "/layers/" in f"/{path}"
        axes = tuple(range(1 if layered else 0, x.ndim))
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        out[path] = jnp.sqrt(jnp.mean(jnp.square(wide), axis=axes))
    return out


class Programs:
    """Compiled functions of one `ProgramKey`; each is compiled once, when first asked for.

    * ``init(key)`` → state
    * ``train(state, batch, learning_rate)`` → (state, metrics); the state is donated
    * ``evaluate(params, batch)`` → sums, as `glu_lab.layers.loss.cross_entropy`
    * ``observe(params, batch, dropout_key)`` → sown statistics
    * ``gradients(state, batch)`` → RMS of every gradient, to name the one that is not finite

    What a state holds is said in `glu_lab.training.state`.
    """

    def __init__(self, key: ProgramKey, mesh: Mesh | AbstractMesh | None = None):
        """Checks that model and batch divide over the mesh; compiles nothing.

        Args:
            key: what to build.
            mesh: None makes the one of ``key.execution`` from the devices here; one of other
                devices (virtual ones, say) can be given to look at what would be compiled, one
                without devices to look at shapes and layouts.

        Raises:
            SpecError: for a mesh that does not fit the devices, or sizes that do not divide.
        """
        self.key = key
        made = mesh_lib.make_mesh(key.execution.mesh) if mesh is None else mesh
        self.mesh = cast(Mesh, made)  # one without devices is good for layouts alone
        self._place = Placement(key.execution.rules)
        self._table = parameters(key.model)
        check_layout(key.model, key.execution.rules, self.mesh)
        if key.train_batch:
            self._check_batches()
        self._lock = threading.Lock()
        self._compiled: dict[str, Any] = {}
        self._transformer = Transformer(key.model, key.numerics, key.execution, self._place)
        self._rule = optimizers.build(key.optimizer, self._table, key.numerics)
        self._shapes = state_shapes(key.model, key.numerics, key.optimizer)

    def _check_batches(self) -> None:
        parts = {
            "training.batch_size / training.microbatches": (
                self.key.train_batch[0][1][0] // self.key.microbatches
            ),
            "eval_batch_size": self.key.eval_batch[0][1][0],
        }
        for name, size in parts.items():
            check_size(name, size, self.key.execution.rules.batch, self.mesh.shape)

    # What is computed.

    def _sums(self, params: Any, batch: Batch, dropout_key: Array | None) -> dict[str, Array]:
        logits: Any = self._transformer.apply({"params": params}, batch, dropout_key=dropout_key)
        return cross_entropy(logits, batch["targets"], batch["weights"], self._place)

    def loss_gradients(self, state: Any, batch: Batch) -> tuple[dict[str, Array], Any]:
        """Summed losses and the gradient of the mean loss per counted token.

        Micro-batches are weighted by their tokens: the denominator is the whole batch's. To be
        traced under the mesh.
        """
        key = self.key
        accumulate = resolve(key.numerics.gradient_accumulation_dtype)
        tokens = jnp.maximum(jnp.sum((batch["weights"] > 0).astype(jnp.int32)), 1)

        def loss(params: Any, part: Batch, dropout_key: Array) -> tuple[Array, Any]:
            sums = self._sums(params, part, dropout_key)
            total = sums["nats"]
            if key.z_loss:
                total = total + key.z_loss * sums["z_squared"]
            return total / tokens.astype(total.dtype), sums

        gradient = jax.grad(loss, has_aux=True)

        def drops(microbatch: Array | int) -> Array:
            return dropout_key(state["rng"], state["step"], microbatch)

        if key.microbatches == 1:
            grads, sums = gradient(state["params"], batch, drops(0))
            return sums, grads

        # Micro-batch m takes rows m, m + M, …: every device goes on with the rows that it has.
        def split(x: Array) -> Array:
            rows = self._place.spec("batch", *(None,) * x.ndim)
            shape = (-1, key.microbatches, *x.shape[1:])
            return jnp.moveaxis(jnp.reshape(x, shape, out_sharding=rows), 1, 0)

        parts = jax.tree.map(split, dict(batch))

        def add(total: Any, indexed: Any) -> tuple[Any, Any]:
            index, part = indexed
            grads, sums = gradient(state["params"], part, drops(index))
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads), sums

        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, accumulate), state["params"])
        grads, sums = jax.lax.scan(add, zeros, (jnp.arange(key.microbatches), parts))
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, state["params"])
        return jax.tree.map(lambda s: s.sum(axis=0), sums), grads

    def _train(self, state: Any, batch: Batch, learning_rate: Array) -> tuple[Any, Any]:
        sums, grads = self.loss_gradients(state, batch)
        norm = optax.tree.norm(grads)
        limit = self.key.optimizer.clip_norm
        if limit:
            shrink = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))
            grads = jax.tree.map(lambda g: g * shrink.astype(g.dtype), grads)
        # Update rules see matrices with heads folded, reshaped and transposed: the compiler lays
        # out what is between.
        layouts = self._layouts
        update_rule: Any = auto_axes(
            self._rule.update, out_sharding=(layouts["params"], layouts["optimizer"])
        )
        direction, optimizer = update_rule(grads, state["optimizer"], state["params"])
        update = jax.tree.map(
            lambda p, d: (learning_rate.astype(d.dtype) * d).astype(p.dtype),
            state["params"],
            direction,
        )
        # The squares too: they overflow long before the loss itself, and are recorded.
        finite = state["finite"] & jnp.isfinite(norm)
        for name in ("nats", "nats_squared", "z_squared"):
            finite &= jnp.isfinite(sums[name])
        new = {
            "params": jax.tree.map(jnp.subtract, state["params"], update),
            "optimizer": optimizer,
            "step": state["step"] + 1,
        }
        kept = {
            name: jax.tree.map(lambda a, b: jnp.where(finite, a, b), value, state[name])
            for name, value in new.items()
        }
        kept |= {"rng": state["rng"], "finite": finite}
        metrics = {
            "sums": sums,
            "gradient_norm": norm,
            "finite": finite,
            "rms": {
                "parameter": rms_by_path(kept["params"]),
                "gradient": rms_by_path(grads),
                "update": rms_by_path(update),
            },
        }
        return kept, metrics

    def _observe(self, params: Any, batch: Batch, dropout_key: Array) -> Any:
        observed = Transformer(
            self.key.model,
            self.key.numerics,
            self.key.execution,
            self._place,
            telemetry.observe,
        )
        _, sown = observed.apply(
            {"params": params}, batch, dropout_key=dropout_key, mutable=[INTERMEDIATES]
        )
        return sown

    # How it is compiled.

    @functools.cached_property
    def _layouts(self) -> dict[str, Any]:
        """Layouts of a state, as `PartitionSpec`."""
        rules = self.key.execution.rules
        return {
            "params": mesh_lib.parameter_specs(self._table, rules),
            "optimizer": self._rule.layouts(self._shapes["optimizer"], rules),
            **dict.fromkeys(("step", "rng", "finite"), PartitionSpec()),
        }

    def abstract(self) -> dict[str, Any]:
        """Program → (function, abstract arguments with their layouts, donated arguments)."""
        split = mesh_lib.batch_sharding(self.mesh, self.key.execution.rules)
        whole = mesh_lib.replicated(self.mesh)

        def batch(spec: BatchSpec) -> dict[str, Any]:
            return {
                name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=split) for name, shape in spec
            }

        key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=whole)
        state = self.abstract_state()
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
        train, evaluate = batch(self.key.train_batch), batch(self.key.eval_batch)
        return {
            "train": (self._train, (state, train, rate), (0,)),
            "evaluate": (lambda p, b: self._sums(p, b, None), (state["params"], evaluate), ()),
            "observe": (self._observe, (state["params"], train, key), ()),
            "gradients": (
                lambda s, b: rms_by_path(self.loss_gradients(s, b)[1]),
                (state, train),
                (),
            ),
        }

    def lower(self, name: str) -> jax.stages.Lowered:
        """One program, lowered for the mesh and not compiled yet."""
        function, arguments, donated = self.abstract()[name]
        with jax.set_mesh(self.mesh):
            return jax.jit(function, donate_argnums=donated).lower(*arguments)

    def _get(self, name: str) -> Callable[..., Any]:
        with self._lock:
            if name not in self._compiled:
                self._compiled[name] = self.lower(name).compile()
            return self._compiled[name]

    def compile(self) -> None:
        """Compiles what every run needs; safe to call from another thread."""
        for name in ("train", "evaluate", "observe"):
            self._get(name)

    def init(self, key: Array, params: Any = None) -> Any:
        """Key → state; of parameters drawn with it, or of those given, as in `put_params`."""
        # Not one program: each shape is drawn by a small one that all variants share.
        auto = mesh_lib.automatic(self.mesh)
        rules = self.key.execution.rules

        def lies(parameter: Parameter) -> NamedSharding:
            return NamedSharding(auto, partition_spec(rules.splits(parameter.axes)))

        dtype = resolve(self.key.numerics.parameter_dtype)
        if params is None:
            drawn = initialize(self._table, key, dtype, sharding=lies)
        else:
            drawn = jax.tree.map(lambda x: mesh_lib.on_mesh(x, auto), self.put_params(params))
        layouts = mesh_lib.shardings(auto, self._layouts["optimizer"])
        optimizer = jax.jit(self._rule.init, out_shardings=layouts)(drawn)
        arrays = {"params": drawn, "optimizer": optimizer}
        start = {"step": np.int32(0), "rng": key, "finite": np.bool_(True)}
        return {
            **jax.tree.map(lambda x: mesh_lib.on_mesh(x, self.mesh), arrays),
            **{name: mesh_lib.put_replicated(x, self.mesh) for name, x in start.items()},
        }

    @property
    def train(self) -> Callable[[Any, Batch, Array | np.floating], tuple[Any, Any]]:
        """(State, batch, learning rate) → (state, metrics)."""
        return self._get("train")

    @property
    def evaluate(self) -> Callable[[Any, Batch], dict[str, Array]]:
        """(Parameters, batch) → sums."""
        return self._get("evaluate")

    @property
    def observe(self) -> Callable[[Any, Batch, Array], Any]:
        """(Parameters, batch, dropout key) → sown statistics."""
        return self._get("observe")

    @property
    def gradients(self) -> Callable[[Any, Batch], dict[str, Array]]:
        """(State, batch) → RMS of every gradient."""
        return self._get("gradients")

    def abstract_state(self) -> Any:
        """Shapes, dtypes and shardings of a state, for loading one."""
        return jax.tree.map(
            lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
            self._shapes,
            mesh_lib.shardings(self.mesh, self._layouts),
        )

    def put_params(self, params: Any) -> Any:
        """Parameters of one device, or of NumPy, laid out on the mesh."""
        return jax.device_put(params, mesh_lib.shardings(self.mesh, self._layouts["params"]))

    @property
    def _batch_sharding(self) -> NamedSharding:
        return mesh_lib.batch_sharding(self.mesh, self.key.execution.rules)

    def process_rows(self) -> tuple[int, int]:
        """(Index, count): which of how many equal groups of a batch's rows this process reads."""
        return mesh_lib.process_rows(self._batch_sharding, self.key.train_batch[0][1][0])

    def put_rows(self, batch: Mapping[str, Any]) -> Batch:
        """A training batch on the mesh, from the rows of `process_rows` in every process."""
        return mesh_lib.put_rows(batch, self._batch_sharding, self.key.train_batch[0][1][0])

    def put_batch(self, batch: Mapping[str, Any]) -> Batch:
        """A batch on the mesh that every process holds whole."""
        return mesh_lib.put_whole(batch, self._batch_sharding)

    def put_key(self, seed: int) -> Array:
        """A run's root key on the mesh."""
        return mesh_lib.put_replicated(jax.random.key(seed), self.mesh)


@functools.lru_cache(maxsize=16)
def programs(key: ProgramKey) -> Programs:
    """The programs of a key, compiled at most once a process."""
    return Programs(key)

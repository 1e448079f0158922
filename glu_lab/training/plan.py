"""What a training step needs of each device of a mesh, without that mesh.

Bytes of parameters, optimiser state and gradients follow from their layouts; operations are counted
in the traced step; temporaries and collectives are read off the step as a compiler made it for
stand-ins of the devices. Nothing is run, no data are read.
"""

import dataclasses
import io
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from glu_lab.data.shapes import UnpreparedDataset, batch_shapes
from glu_lab.layers.params import count
from glu_lab.models import parameters
from glu_lab.models.ledger import model_ledger
from glu_lab.sharding import targets
from glu_lab.sharding.collectives import COMPILER_OPTIONS, bytes_by_axis, collectives
from glu_lab.sharding.flops import Flops, count_flops
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.numerics import DTYPE_BYTES, DType
from glu_lab.spec.sharding import MESH_AXES, parse_mesh
from glu_lab.training.programs import Programs, program_key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compiler says of the step; bytes are of one device.

    Attributes:
        compiler: which one.
        mesh: the sizes that it compiled for: the planned ones, or `targets.stand_in`'s.
        argument_bytes, output_bytes: state, batch and metrics, with the compiler's padding.
        alias_bytes: output that takes the place of a donated argument.
        temp_bytes: everything else that is alive at the worst moment, gradients among it.
        collective_bytes: mesh axis, or axes with commas between, → bytes of the collectives over
            them in a step, as `glu_lab.sharding.collectives` counts.
        seconds: that compilation took here.
    """

    compiler: str
    mesh: Mapping[str, int]
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    collective_bytes: Mapping[str, int]
    seconds: float

    @property
    def peak_bytes(self) -> int:
        """Arguments, temporaries and the output that has no argument's place."""
        return self.argument_bytes + self.temp_bytes + self.output_bytes - self.alias_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What one device needs for one training step.

    Attributes:
        name: of the experiment.
        target: as `targets.parse_target` takes it.
        mesh: axis → size.
        batch_size: sequences of the global batch; `microbatches` parts of it, one after another.
        total_params: of the whole model.
        params_bytes, optimizer_bytes: exact, from the layouts.
        gradient_bytes: one gradient of every parameter, laid out like it; in the accumulator's
            dtype where there are micro-batches. Part of the temporaries.
        flops: matrix products as executed, those that remat repeats among them.
        model_flops: of the whole step on all devices by the model's formula, 6 for each
            multiply-accumulate of the forward pass.
        remat: as in the Execution.
        module_bytes: of the lowered program, StableHLO bytecode.
        lower_seconds: that tracing and lowering took here.
        compiled: None where no compiler for the target runs here, or where it refused.
        refusal: what the compiler says of a step that it finds too large for a device.
    """

    name: str
    target: str
    mesh: Mapping[str, int]
    batch_size: int
    microbatches: int
    total_params: int
    params_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    flops: Flops
    model_flops: int
    remat: str
    compute_dtype: str
    module_bytes: int
    lower_seconds: float
    compiled: Compiled | None
    refusal: str | None = None

    @property
    def devices(self) -> int:
        """Of the mesh."""
        return math.prod(self.mesh.values())

    @property
    def useful_fraction(self) -> float:
        """The model's own arithmetic over what all devices execute; below 1 by remat and by work
        that several devices repeat.
        """
        return self.model_flops / (self.flops.per_device * self.devices)

    @property
    def needed_bytes(self) -> int:
        """What has to fit into one device: the peak, or, not compiled, a bound from below."""
        if self.compiled is not None:
            return self.compiled.peak_bytes
        return self.params_bytes + self.optimizer_bytes + self.gradient_bytes

    @property
    def parts(self) -> dict[str, int]:
        """The largest things in a device's memory, by name."""
        rest = ("gradients", self.gradient_bytes)
        if self.compiled is not None:
            rest = ("temporaries", self.compiled.temp_bytes)
        return {
            "parameters": self.params_bytes,
            "optimiser state": self.optimizer_bytes,
            rest[0]: rest[1],
        }

    @property
    def largest(self) -> str:
        """The name of the largest part."""
        return "temporaries" if self.refusal else max(self.parts, key=self.parts.__getitem__)

    @property
    def advice(self) -> str:
        """How the largest part becomes smaller."""
        return _ADVICE[self.largest]

    def fits(self, limit: int) -> bool | None:
        """Whether `limit` bytes a device are enough; None where that is not known."""
        if self.refusal is not None or self.needed_bytes > limit:
            return False
        return None if self.compiled is None else True


#: Part of a device's memory → how it becomes smaller.
_ADVICE = {
    "parameters": "Split them over more devices: a larger fsdp, or model.",
    "optimiser state": "Split it over more devices: a larger fsdp, or model.",
    "gradients": "Split them over more devices: a larger fsdp, or model.",
    "temporaries": "Fewer sequences at a time per device (training.microbatches, a larger data or "
    "fsdp), execution.remat=block, or a larger model axis.",
}


def planned_sizes(mesh: str, target: str) -> dict[str, int]:
    """Sizes of a planned mesh.

    Args:
        mesh: states every size; for a TPU topology, -1 is the rest.
        target: as `targets.parse_target` takes it.

    Raises:
        SpecError: as `parse_mesh` and `targets.parse_target`.
    """
    place = targets.parse_target(target)
    if place.platform != "tpu":
        return parse_mesh(mesh, None)
    return parse_mesh(mesh, len(targets.topology_devices(place)))


def prepare(experiment: Experiment, target: str = "cpu") -> None:
    """Readies a process that does nothing but plan; before anything of JAX has run.

    Raises:
        SpecError: for a mesh that model, batch or target do not fit, before the process has any
            devices; and as `targets.use_virtual_devices`.
    """
    sizes = planned_sizes(experiment.execution.mesh, target)
    _programs(experiment, targets.abstract_mesh(sizes), experiment.training.batch_size)
    wanted = 1
    if targets.parse_target(target).platform == "cpu":
        stand_in = targets.stand_in(sizes, experiment.execution.rules, targets.MAX_VIRTUAL_DEVICES)
        wanted = math.prod(stand_in.values()) if stand_in else 1
    targets.use_virtual_devices(wanted)


def plan(
    experiment: Experiment,
    target: str = "cpu",
    *,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Plans the training step of an experiment on the mesh of its Execution.

    The mesh of target ``cpu`` needs as many virtual devices; a process that only plans gets them
    from `prepare`. One of over `targets.MAX_VIRTUAL_DEVICES` is compiled on a stand-in.

    Args:
        experiment: ``execution.mesh`` as for `planned_sizes`.
        target: ``cpu``, ``cuda``, or ``tpu:<topology>``.
        progress: called with a line before each slow part.

    Raises:
        SpecError: for a mesh that model, batch or target do not fit, or a target that cannot be
            planned here.
    """
    report = progress or (lambda line: None)
    place = targets.parse_target(target)
    sizes = planned_sizes(experiment.execution.mesh, target)
    numerics, training = experiment.numerics, experiment.training
    # On a mesh without devices first: what does not divide is refused before anything is slow.
    programs = _programs(experiment, targets.abstract_mesh(sizes), training.batch_size)
    report("tracing and lowering")
    start = time.perf_counter()
    function, arguments, donated = programs.abstract()["train"]
    with targets.entered(programs.mesh):
        traced = jax.jit(function, donate_argnums=donated).trace(*arguments)
        lowered = traced.lower(lowering_platforms=(place.platform,))
    lower_seconds = time.perf_counter() - start
    state = programs.abstract_state()
    accumulated = training.microbatches > 1
    compiled = refusal = None
    if place.compiles:
        report(f"compiling for {place.name}")
        try:
            compiled = _compile(experiment, place, sizes)
        except jax.errors.JaxRuntimeError as error:
            refusal = _too_large(error, place)
    return Plan(
        name=experiment.name,
        target=place.name,
        mesh=sizes,
        batch_size=training.batch_size,
        microbatches=training.microbatches,
        total_params=count(parameters(experiment.model)),
        params_bytes=bytes_per_device(state["params"]),
        optimizer_bytes=bytes_per_device(state["optimizer"]),
        gradient_bytes=bytes_per_device(
            state["params"], numerics.gradient_accumulation_dtype if accumulated else None
        ),
        flops=count_flops(traced.jaxpr),
        model_flops=6 * _macs(experiment) * training.batch_size,
        remat=experiment.execution.remat,
        compute_dtype=numerics.compute_dtype,
        module_bytes=_module_bytes(lowered),
        lower_seconds=lower_seconds,
        compiled=compiled,
        refusal=refusal,
    )


def bytes_per_device(tree: Any, dtype: DType | None = None) -> int:
    """Bytes of one device's pieces of abstract arrays.

    Args:
        tree: arrays with a sharding.
        dtype: taken for all of them instead of their own.
    """

    def one(x: Any) -> int:
        size = x.dtype.itemsize if dtype is None else DTYPE_BYTES[dtype]
        return size * math.prod(x.sharding.shard_shape(x.shape))

    return sum(one(x) for x in jax.tree.leaves(tree))


def _programs(experiment: Experiment, mesh: Any, batch_size: int) -> Programs:
    """The programs on a mesh of any kind; annotated for devices, which nothing here touches."""
    training = dataclasses.replace(experiment.training, batch_size=batch_size)
    scaled = dataclasses.replace(experiment, training=training)
    return Programs(program_key(scaled, UnpreparedDataset(experiment.data)), mesh)


def _macs(experiment: Experiment) -> int:
    """Multiply-accumulates of one example's forward pass."""
    data = experiment.data
    two_stacks = experiment.model.kind == "encoder_decoder"
    return model_ledger(
        experiment.model,
        input_length=data.input_length,
        target_length=batch_shapes(data, 1)["targets"][1] if two_stacks else None,
    ).macs_per_example


def _module_bytes(lowered: jax.stages.Lowered) -> int:
    module: Any = lowered.compiler_ir("stablehlo")
    code = io.BytesIO()
    module.operation.write_bytecode(code)
    return len(code.getvalue())


def _too_large(error: Exception, place: targets.Target) -> str:
    """What a compiler that knows its device's memory says of a step that does not fit."""
    said = str(error).strip().splitlines()[0]
    if place.platform == "cpu" or "RESOURCE_EXHAUSTED" not in said:
        raise error
    return said.rpartition("RESOURCE_EXHAUSTED:")[2].strip().rstrip(".")


def _compile(
    experiment: Experiment, place: targets.Target, sizes: Mapping[str, int]
) -> Compiled | None:
    """Compiles the step; None where a mesh is too large and has no stand-in."""
    if place.platform == "tpu":
        devices, compiled_sizes = targets.topology_devices(place), dict(sizes)
        options = {}
    else:
        options = dict(COMPILER_OPTIONS)
        limit = targets.MAX_VIRTUAL_DEVICES
        compiled_sizes = targets.stand_in(sizes, experiment.execution.rules, limit)
        if compiled_sizes is None:
            return None
        devices = targets.virtual_devices(math.prod(compiled_sizes.values()))
    mesh = targets.device_mesh(compiled_sizes, devices)
    rows = experiment.training.batch_size * compiled_sizes["data"] // sizes["data"]
    start = time.perf_counter()
    made = _programs(experiment, mesh, rows).lower("train").compile(options)
    seconds = time.perf_counter() - start
    memory: Any = made.memory_analysis()
    text = made.as_text()
    assert text is not None  # The compilers here always have one.
    moved = bytes_by_axis(collectives(text, mesh))
    return Compiled(
        compiler=targets.compiler_name(place),
        mesh=compiled_sizes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        collective_bytes=dict.fromkeys(MESH_AXES, 0) | moved,
        seconds=seconds,
    )

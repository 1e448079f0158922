"""A model split over devices trains as on one: losses, gradients, state, telemetry."""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from glu_lab.layers.params import leaves
from glu_lab.models import parameters
from glu_lab.spec import variant
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Optimizer
from glu_lab.spec.model import Attention, Model, Positions
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import MESH_AXES
from glu_lab.training.optimizers import flatten
from glu_lab.training.programs import ProgramKey, Programs

F64 = Numerics.uniform("float64")
#: V is the size of nothing else, so that it shows where it is gathered.
B, S, R, D, F, V = 8, 6, 4, 8, 12, 52

COMMON = dict(vocab_size=V, d_model=D, num_layers=1, residual_dropout=0.1)
MODELS = {
    "t5": Model(
        kind="encoder_decoder",
        num_encoder_layers=1,
        attention=Attention(num_heads=4, num_kv_heads=4, head_dim=4, scale_scores=False),
        ffn=variant("geglu_tanh", d_model=D, d_ff=F, hidden_dropout=0.1),
        positions=Positions(kind="relative", num_buckets=8, max_distance=12),
        logits_scale=D**-0.5,
        **COMMON,
    ),
    "decoder": Model(
        kind="decoder",
        attention=Attention(
            num_heads=8, num_kv_heads=4, head_dim=4, qk_norm=True, qkv_bias=True, dropout=0.1
        ),
        ffn=variant("swiglu", d_model=D, d_ff=F, bias=True, hidden_dropout=0.1),
        tie_embeddings=False,
        embedding_dropout=0.1,
        final_dropout=0.1,
        **COMMON,
    ),
}
OPTIMIZERS = {
    "t5": Optimizer(kind="adafactor", clip_norm=1.0),
    "decoder": Optimizer(kind="adamw", weight_decay=0.1, clip_norm=1.0),
}
MESHES = [(2, 2, 2), (2, 1, 4)]

#: Compilation is nearly all the time of these tests.
QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def batch(kind):
    rng = np.random.default_rng(0)

    def tokens(length):
        return rng.integers(1, V, (B, length)).astype(np.int32)

    length = R if kind == "t5" else S
    ends = dict(
        targets=tokens(length),
        weights=(rng.random((B, length)) > 0.2).astype(np.int32),
    )
    if kind == "t5":
        source = dict(encoder_tokens=tokens(S), encoder_segments=np.ones((B, S), np.int32))
        return source | dict(decoder_tokens=tokens(R)) | ends
    where = np.tile(np.arange(S, dtype=np.int32), (B, 1))
    return dict(tokens=tokens(S), segments=np.ones((B, S), np.int32), positions=where) | ends


def programs(kind, sizes, model=None):
    shapes = tuple((name, value.shape) for name, value in batch(kind).items())
    key = ProgramKey(
        model=model or MODELS[kind],
        numerics=F64,
        execution=Execution(),
        optimizer=OPTIMIZERS[kind],
        microbatches=2 if kind == "decoder" else 1,
        z_loss=1e-4,
        train_batch=shapes,
        eval_batch=shapes,
    )
    devices = jax.devices()[: math.prod(sizes)]
    types = (AxisType.Explicit,) * len(MESH_AXES)
    return Programs(key, jax.make_mesh(sizes, MESH_AXES, axis_types=types, devices=devices))


#: Splits of the default rules, stated anew: logical axis → index of its mesh axis.
SPLIT_OVER = {"embed": 1, "mlp": 2, "heads": 2, "kv": 2, "vocab": 2}


@dataclasses.dataclass(frozen=True)
class Run:
    """What two steps leave.

    Attributes:
        seen: everything that is recorded, and the parameters, by name.
        state: as it lies on the devices.
        texts: the compiled programs.
    """

    seen: dict[str, np.ndarray]
    state: dict
    texts: dict[str, str]


def run(kind, sizes):
    built = programs(kind, sizes)
    compiled = {
        name: built.lower(name).compile(compiler_options=QUICK)
        for name in ("train", "evaluate", "observe")
    }
    state, rows = built.init(built.put_key(0)), built.put_batch(batch(kind))
    seen = {}
    for step in range(2):
        state, seen[f"step {step}"] = compiled["train"](state, rows, np.float32(0.01))
    seen["parameters"] = state["params"]
    seen["evaluation"] = compiled["evaluate"](state["params"], rows)
    seen["telemetry"] = compiled["observe"](state["params"], rows, built.put_key(1))
    texts = {name: program.as_text() for name, program in compiled.items()}
    return Run(jax.tree.map(np.asarray, flatten(seen)), state, texts)


@pytest.fixture(scope="module")
def runs():
    """(Model, mesh) → its run; one device first."""
    with jax.enable_x64(True):
        return {(k, sizes): run(k, sizes) for k in MODELS for sizes in ((1, 1, 1), *MESHES)}


every_run = pytest.mark.parametrize(
    ("kind", "sizes"), [(k, sizes) for k in MODELS for sizes in MESHES], ids=str
)


@every_run
def test_two_steps_are_those_of_one_device(kind, sizes, runs):
    got, want = runs[kind, sizes].seen, runs[kind, (1, 1, 1)].seen
    assert got.keys() == want.keys()
    recorded = {name.split("/")[0] for name in want}
    assert recorded == {"step 0", "step 1", "parameters", "evaluation", "telemetry"}
    assert {"step 1/gradient_norm", "step 1/sums/nats", "evaluation/nats"} < want.keys()
    assert want["step 0/gradient_norm"] > 0 and want["step 1/finite"]
    for name, value in want.items():
        if value.dtype.kind in "bi":
            np.testing.assert_array_equal(got[name], value, err_msg=name)
            continue
        # Sums in another order: a few ulp, 2e-16, of the largest element, through two steps.
        error = np.max(np.abs(got[name] - value), initial=0.0)
        assert error <= 1e-12 * np.max(np.abs(value)), name


def parts(parameter, sizes):
    return math.prod(sizes[SPLIT_OVER[axis]] for axis in parameter.axes if axis in SPLIT_OVER)


def held(array):
    """The bytes of an array that each device holds."""
    (size,) = {shard.data.nbytes for shard in array.addressable_shards}
    return size


@every_run
def test_a_device_holds_its_piece_of_parameters_and_optimiser_state(kind, sizes, runs):
    state = runs[kind, sizes].state
    table = dict(leaves(parameters(MODELS[kind])))
    for path, array in flatten(state["params"]).items():
        assert held(array) * parts(table[path], sizes) == array.nbytes, path
    moments = 0
    for path, array in jax.tree_util.tree_leaves_with_path(state["optimizer"]):
        owner = next((k.key for k in path if getattr(k, "key", None) in table), None)
        if owner is None or array.size != table[owner].count:
            # Counts of steps and moments that are not kept: one for each matrix of a stack.
            assert array.size <= 2, path
            continue
        moments += 1
        # The relative bias is flat there, its whole buckets outermost, and is not split.
        count = 1 if owner.endswith("relative/bias") else parts(table[owner], sizes)
        assert held(array) * count == array.nbytes, path
    assert moments == len(table) * {"t5": 1, "decoder": 2}[kind]


def test_factored_moments_lie_like_the_dimension_that_they_keep():
    """Rows and columns of a moment of second order, of matrices large enough to be factored."""
    d_model, d_ff, heads, head, vocab = 128, 256, 4, 48, 320
    model = dataclasses.replace(
        MODELS["t5"],
        d_model=d_model,
        vocab_size=vocab,
        ffn=MODELS["t5"].ffn.replace(d_model=d_model, d_ff=d_ff),
        attention=dataclasses.replace(MODELS["t5"].attention, head_dim=head),
    )
    built = programs("t5", (1, 2, 4), model)
    pieces = {d_model: 2, d_ff: 4, heads * head: 4, vocab: 4}
    seen = set()
    for path, array in jax.tree_util.tree_leaves_with_path(built.abstract_state()["optimizer"]):
        if len(array.shape) == 2 and array.shape[1] in pieces:
            whole = array.shape[1]
            assert array.sharding.shard_shape(array.shape)[1] * pieces[whole] == whole, path
            seen.add(whole)
    assert seen == set(pieces)


@every_run
def test_logits_are_never_gathered(kind, sizes, runs):
    whole = re.compile(rf"\[(\d+,)*{V}(,\d+)*\]")
    moved = re.compile(r"= .*(all-gather|all-to-all|collective-permute|collective-broadcast)\S*\(")
    for name in ("train", "evaluate"):
        assert whole.search(runs[kind, (1, 1, 1)].texts[name])
        lines = runs[kind, sizes].texts[name].splitlines()
        assert not [line for line in lines if moved.search(line) and whole.search(line)]
        if sizes[1] > 1:
            assert any(moved.search(line) for line in lines)  # weights, over fsdp

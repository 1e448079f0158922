"""Experiments to JSON and back, strictly; and what names a run."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec import FFN, Activation, Branch, Initializer, variant
from glu_lab.spec.activation import ACTIVATIONS
from glu_lab.spec.codec import decode, encode, encode_variant
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Data, Experiment, Optimizer, Recording, Schedule, Training
from glu_lab.spec.identity import canonical_json, difference, identity, identity_hash, run_id
from glu_lab.spec.model import Attention, Model, Norm, Positions
from glu_lab.spec.numerics import Numerics

MODEL = {
    "kind": "decoder",
    "vocab_size": 128,
    "d_model": 16,
    "num_layers": 2,
    "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 4},
    "ffn": {"variant": "swiglu", "d_ff": 24},
}
EXPERIMENT = {
    "model": MODEL,
    "data": {"vocab_size": 100, "objective": "causal_lm", "input_length": 32},
    "training": {"steps": 10, "batch_size": 4},
}


def experiment(**changes):
    return dataclasses.replace(decode(Experiment, EXPERIMENT), **changes)


finite = st.floats(allow_nan=False, allow_infinity=False)
bounds = st.floats(allow_nan=False)
clamps = st.none() | st.tuples(bounds, bounds).filter(lambda c: c[0] < c[1])


@st.composite
def branches(draw):
    name = draw(st.sampled_from(sorted(ACTIVATIONS)))
    constants = tuple(draw(finite) for _ in ACTIVATIONS[name].constants)
    return Branch(
        activation=Activation(name, constants),
        scale=draw(finite),
        bias=draw(st.booleans()),
        pre=draw(clamps),
        post=draw(clamps),
        offset=draw(finite | st.integers(-3, 3)),
    )


ffns = st.builds(
    FFN,
    d_model=st.integers(1, 10**6),
    d_ff=st.integers(1, 10**6),
    branches=st.lists(branches(), min_size=1, max_size=3).map(tuple),
    product_bias=st.booleans(),
    output_bias=st.booleans(),
    output_scale=finite,
    hidden_dropout=st.floats(0, 0.999),
    hidden_dropout_shared=st.lists(st.sampled_from(["batch", "position"]), max_size=2).map(tuple),
    wi_init=st.builds(
        Initializer,
        distribution=st.sampled_from(["normal", "truncated_normal", "uniform", "zeros", "ones"]),
        scale=st.floats(0, 1e6),
        fan=st.sampled_from(["in", "out", "avg", "none"]),
    ),
)


@settings(max_examples=60)
@given(ffns)
def test_any_ffn_survives_json(spec):
    text = canonical_json(encode(spec))
    again = decode(FFN, json.loads(text))
    assert again == spec
    assert canonical_json(encode(again)) == text


@settings(max_examples=30)
@given(ffns, st.sampled_from(["scale", "offset"]))
def test_equal_specs_are_written_equally(spec, field):
    """An integer, or −0.0, in a float field: == before, so the same text and hash after."""

    def with_value(value):
        first = dataclasses.replace(spec.branches[0], **{field: value})
        return spec.replace(branches=(first, *spec.branches[1:]))

    for one, other in ((2, 2.0), (0.0, -0.0), (0, 0.0)):
        assert with_value(one) == with_value(other)
        assert canonical_json(encode(with_value(one))) == canonical_json(encode(with_value(other)))


def test_an_experiment_survives_json_field_by_field():
    full = experiment(
        model=dataclasses.replace(
            decode(Model, MODEL),
            norm=Norm(kind="layernorm", bias=True, eps=1e-5, placement="post"),
            positions=Positions(kind="sinusoidal"),
            ffn=variant("gpt_oss", d_model=16, d_ff=24, hidden_dropout=0.1),
            residual_dropout=0.1,
        ),
        numerics=Numerics(compute_dtype="bfloat16", rounding_point="branch"),
        execution=Execution(remat="dots", scan_layers=False),
        recording=Recording(tensorboard=True),
        seed=7,
        name="a name",
    )
    assert decode(Experiment, json.loads(json.dumps(encode(full), allow_nan=False))) == full


def test_numbers_of_python_and_of_json_give_one_hash():
    """`Training(z_loss=0)` is the run that its own config file describes."""
    training = dataclasses.replace(experiment().training, z_loss=0)
    written = experiment(training=training)
    read = decode(Experiment, json.loads(json.dumps(encode(written))))
    assert (
        identity_hash(written, "d") == identity_hash(read, "d") == identity_hash(experiment(), "d")
    )


def test_the_short_form_says_the_same_ffn():
    for name in ("swiglu", "gpt_oss", "relu2*linear"):
        for bias in (False, True):
            spec = variant(name, d_model=16, d_ff=24, bias=bias, hidden_dropout=0.1)
            short = json.loads(json.dumps(encode_variant(spec)))
            assert short["variant"] == name and decode(FFN, short) == spec
    with pytest.raises(SpecError, match="no variant's name"):
        encode_variant(
            FFN(d_model=4, d_ff=8, branches=(Branch(activation=Activation("relu"), scale=2.0),))
        )


def test_a_models_ffn_takes_its_width_from_the_model():
    assert decode(Model, MODEL).ffn == variant("swiglu", d_model=16, d_ff=24)
    with pytest.raises(SpecError, match=r"ffn\.d_model=8 differs from model d_model=16"):
        decode(Model, {**MODEL, "ffn": {"variant": "swiglu", "d_ff": 24, "d_model": 8}})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "model.ffn.dff",
            3,
            r"unknown config key 'model\.ffn\.dff'; did you mean 'model\.ffn\.d_ff'",
        ),
        ("model.num_layer", 3, r"did you mean 'model\.num_layers'"),
        ("trainig", {}, "did you mean 'training'"),
        ("training.optimizer.kind", "adam", "did you mean 'adamw'"),
        ("model.ffn.variant", "swigl", "did you mean 'swiglu'"),
        ("model.num_layers", "2", r"model\.num_layers must be an integer, got '2'"),
        ("model.num_layers", 2.0, "must be an integer, got 2.0"),
        ("model.num_layers", True, "must be an integer, got True"),
        ("model.tie_embeddings", 1, "must be true or false, got 1"),
        ("model.residual_dropout", "0.1", "must be a number, got '0.1'"),
        ("model.residual_dropout", math.nan, "must be a number, got NaN"),
        ("training.z_loss", True, "must be a number, got True"),
        ("name", 3, "name must be text, got 3"),
        ("model.attention", 3, r"model\.attention must be a mapping"),
        ("model.ffn.hidden_dropout_shared", "position", "must be a list"),
        ("model.ffn.variant", 3, "must be text"),
    ],
)
def test_a_bad_key_or_value_is_named(path, value, message):
    config = json.loads(json.dumps(EXPERIMENT))
    *parents, last = path.split(".")
    node = config
    for key in parents:
        node = node.setdefault(key, {})
    node[last] = value
    with pytest.raises(SpecError, match=message):
        decode(Experiment, config)


@pytest.mark.parametrize("path", ["model", "data", "training.steps", "model.ffn.d_ff"])
def test_a_missing_field_is_named(path):
    config = json.loads(json.dumps(EXPERIMENT))
    *parents, last = path.split(".")
    node = config
    for key in parents:
        node = node[key]
    del node[last]
    with pytest.raises(SpecError, match=f"{path.replace('.', '[.]')} is missing"):
        decode(Experiment, config)


@pytest.mark.parametrize(
    ("build", "nearest"),
    [
        (lambda: Norm(kind="rmsnrm"), "rmsnorm"),
        (lambda: Norm(placement="pos"), "post"),
        (lambda: Positions(kind="relativ"), "relative"),
        (lambda: Initializer(distribution="norml"), "normal"),
        (lambda: Initializer(fan="inn"), "in"),
        (lambda: Numerics(rounding_point="prodct"), "product"),
        (lambda: Numerics(compute_dtype="bfloat"), "bfloat16"),
        (lambda: Execution(remat="blocks"), "block"),
        (lambda: dataclasses.replace(decode(Model, MODEL), kind="decodr"), "decoder"),
        (lambda: Data(objective="causal"), "causal_lm"),
        (lambda: Optimizer(kind="adamm"), "adamw"),
        (lambda: Schedule(kind="cosin"), "cosine"),
    ],
)
def test_a_misspelt_choice_is_refused_from_python_too(build, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Attention(num_heads=6, num_kv_heads=4, head_dim=8),
            r"the divisors are \[1, 2, 3, 6\]",
        ),
        (lambda: Attention(num_heads=0, num_kv_heads=1, head_dim=8), "num_heads must be"),
        (lambda: Norm(bias=True), "rmsnorm has no bias"),
        (lambda: Positions(kind="relative", num_buckets=7), "even"),
        (lambda: Positions(kind="relative", max_distance=16), "max_distance=16"),
        (lambda: decode(Model, {**MODEL, "num_encoder_layers": 1}), "a decoder has 0"),
        (lambda: decode(Model, {**MODEL, "kind": "encoder_decoder"}), "at least one encoder layer"),
        (
            lambda: decode(
                Model, {**MODEL, "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 3}}
            ),
            "even head_dim",
        ),
        (lambda: experiment(data=Data(objective="span_corruption")), "trains on 'causal_lm'"),
        (
            lambda: experiment(data=Data(objective="causal_lm", vocab_size=500)),
            "cannot hold 500 ids",
        ),
        (lambda: Training(steps=1, batch_size=10, microbatches=4), "does not divide"),
        (lambda: experiment(seed=-1), "seed must be in"),
        (lambda: Data(corpus="c4"), "needs data.path"),
    ],
)
def test_models_that_cannot_be_built_are_refused(build, message):
    with pytest.raises(SpecError, match=message):
        build()


def _leaves(value, path=()):
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner) and not isinstance(inner, Activation):
            yield from _leaves(inner, (*path, field.name))
        else:
            yield (*path, field.name), inner


def _other(value):
    """A different value of the same JSON type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, "other"] if isinstance(value, list) else f"{value}-other"


#: Fields that may differ between two sessions of one run.
FREE = {("name",), ("data", "path"), ("data", "tokenizer"), ("initial", "path")}


def test_identity_holds_every_field_that_changes_a_result_and_no_other():
    base = experiment()
    leaves = dict(_leaves(base))
    assert len(leaves) > 60
    for path in leaves:
        free = path in FREE or path[0] in ("execution", "recording")
        written = encode(base)
        node = written
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = _other(node[path[-1]])

        # Identity is taken of the encoded form, so a changed leaf need not be a valid Experiment.
        hashed = _hash_of(written)
        assert (hashed == identity_hash(base, "fingerprint")) == free, path


def _hash_of(written):
    from glu_lab.spec import identity as module

    original, module.encode = module.encode, lambda _: written
    try:
        return identity_hash(experiment(), "fingerprint")
    finally:
        module.encode = original


def test_identity_changes_with_the_data_and_not_with_its_place():
    base = experiment()
    moved = experiment(data=dataclasses.replace(base.data, path="/elsewhere", tokenizer="t.model"))
    assert identity_hash(base, "a") == identity_hash(moved, "a")
    assert identity_hash(base, "a") != identity_hash(base, "b")


def test_one_function_under_two_names_is_one_run():
    def with_ffn(text):
        return experiment(
            model=dataclasses.replace(decode(Model, MODEL), ffn=variant(text, d_model=16, d_ff=24))
        )

    assert identity_hash(with_ffn("swish(1.702)*linear"), "d") == identity_hash(
        with_ffn("quick_gelu*linear"), "d"
    )
    assert identity_hash(with_ffn("swiglu"), "d") == identity_hash(with_ffn("silu*linear"), "d")
    assert identity_hash(with_ffn("geglu_erf"), "d") != identity_hash(with_ffn("geglu_tanh"), "d")


def test_a_run_id_is_readable_unique_and_a_file_name():
    base = experiment()
    ids = {run_id(base, "d"), run_id(experiment(seed=1), "d"), run_id(base, "e")}
    assert len(ids) == 3
    assert run_id(base, "d").startswith("swiglu-f24-s0-")
    product = experiment(
        model=dataclasses.replace(
            decode(Model, MODEL), ffn=variant("swish(1.5)*linear", d_model=16, d_ff=24)
        )
    )
    name = run_id(product, "d")
    assert name.startswith("swish-1.5--x-linear-f24-s0-")
    assert not set(name) & set('*()/\\ "')


def test_a_difference_names_each_field_that_changed():
    old = identity(experiment(), "a")
    new = identity(experiment(seed=3), "b")
    assert difference(old, new) == ["data_fingerprint: 'a' → 'b'", "seed: 0 → 3"]
    assert difference(old, old) == []
    assert difference({"a": 1}, {"b": 1}) == ["a: 1 → (absent)", "b: (absent) → 1"]

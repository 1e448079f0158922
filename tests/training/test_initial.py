"""Runs that start from weights of another project."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from glu_lab.errors import FileFormatError, LayoutError, SpecError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.models.transformer import init_params
from glu_lab.pretrained import content_sha256
from glu_lab.pretrained.families import FAMILIES
from glu_lab.pretrained.hugging_face import write_config
from glu_lab.pretrained.weights import write_tensors
from glu_lab.spec.experiment import Initial
from glu_lab.spec.identity import identity_hash
from glu_lab.spec.numerics import Numerics
from glu_lab.training.loop import train
from glu_lab.training.programs import program_key, programs
from tests.training.small import metrics_lines, small_model, without_times


@pytest.fixture(scope="module")
def given(dataset, tmp_path_factory):
    """(Folder of a Llama in Hugging Face's form, its parameters)."""
    model = small_model(text="reglu")
    params = jax.tree.map(np.asarray, init_params(model, jax.random.key(77)))
    folder = tmp_path_factory.mktemp("llama")
    save_file(write_tensors(FAMILIES["hf-llama"], params, model), folder / "model.safetensors")
    config = write_config(model, "llama")
    (folder / "config.json").write_text(json.dumps(config))
    return folder, params


@pytest.fixture
def starting(experiment, given):
    folder, _ = given
    return dataclasses.replace(
        experiment, initial=Initial(path=str(folder), sha256=content_sha256(folder))
    )


def at_step(workdir, experiment, dataset, step):
    checkpoints = Checkpoints(workdir / "checkpoints", 1, "read")
    try:
        abstract = programs(program_key(experiment, dataset)).abstract_state()
        return checkpoints.load(abstract, step)[1]
    finally:
        checkpoints.close()


def test_a_run_starts_from_the_weights_that_it_names(starting, given, dataset, tmp_path):
    still = dataclasses.replace(
        starting,
        training=dataclasses.replace(
            starting.training,
            steps=2,
            schedule=dataclasses.replace(starting.training.schedule, peak=0.0),
        ),
    )
    assert train(still, tmp_path, dataset=dataset)["status"] == "complete"
    params = at_step(tmp_path, still, dataset, 2)["params"]
    for got, want in zip(jax.tree.leaves(params), jax.tree.leaves(given[1]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_no_steps_keep_the_weights_as_a_checkpoint_of_a_run(starting, given, dataset, tmp_path):
    none = dataclasses.replace(starting, training=dataclasses.replace(starting.training, steps=0))
    summary = train(none, tmp_path, dataset=dataset)
    assert summary["status"] == "complete"
    assert summary["steps"] == 0
    params = at_step(tmp_path, none, dataset, 0)["params"]
    for got, want in zip(jax.tree.leaves(params), jax.tree.leaves(given[1]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_it_resumes_without_them_and_ends_as_if_it_had_not_stopped(
    starting, given, dataset, tmp_path
):
    import os
    import signal

    whole = tmp_path / "whole"
    train(starting, whole, dataset=dataset)

    def stop(entry):
        if entry["kind"] == "train":
            os.kill(os.getpid(), signal.SIGINT)

    part = tmp_path / "part"
    assert train(starting, part, dataset=dataset, progress=stop)["status"] == "interrupted"
    gone = dataclasses.replace(
        starting, initial=dataclasses.replace(starting.initial, path="/nowhere")
    )
    assert train(gone, part, dataset=dataset)["status"] == "complete"
    assert without_times(metrics_lines(part)) == without_times(metrics_lines(whole))


def test_the_run_is_named_by_what_it_starts_from_not_by_where(experiment, starting, given):
    names = {
        identity_hash(run, "data")
        for run in (
            experiment,
            starting,
            dataclasses.replace(
                starting, initial=dataclasses.replace(starting.initial, path="elsewhere")
            ),
            dataclasses.replace(
                starting, initial=dataclasses.replace(starting.initial, sha256="0" * 64)
            ),
        )
    }
    assert len(names) == 3


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (dict(sha256=""), SpecError, "initial.sha256 is not stated"),
        (dict(sha256="1" * 64), SpecError, "the config names 1111"),
        (dict(path="/nowhere"), FileFormatError, "/nowhere does not exist"),
    ],
    ids=["unnamed", "other content", "absent"],
)
def test_what_cannot_be_started_from_is_refused_before_anything_is_written(
    starting, dataset, tmp_path, change, error, told
):
    wrong = dataclasses.replace(starting, initial=dataclasses.replace(starting.initial, **change))
    with pytest.raises(error, match=told):
        train(wrong, tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()


def test_another_function_is_refused(starting, dataset, tmp_path):
    other = dataclasses.replace(starting, model=small_model(text="swiglu"))
    with pytest.raises(SpecError, match="activation: 'silu' → 'relu'"):
        train(other, tmp_path / "run", dataset=dataset)


def test_weights_are_not_rounded_to_the_format_of_the_run(starting, dataset, tmp_path):
    narrow = dataclasses.replace(starting, numerics=Numerics(parameter_dtype="bfloat16"))
    with pytest.raises(LayoutError, match="float32, which bfloat16 would round"):
        train(narrow, tmp_path / "run", dataset=dataset)
    assert not (tmp_path / "run").exists()


def test_a_hash_without_weights_is_refused():
    with pytest.raises(SpecError, match="initial.path does not say where"):
        Initial(sha256="0" * 64)
    with pytest.raises(SpecError, match="64 hexadecimal digits"):
        Initial(path="x", sha256="abc")

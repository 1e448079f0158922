"""The published JSON Schema holds for what is written, and refuses what is not."""

import json

import pytest

from glu_lab.spec.manifest import manifest
from glu_lab.spec.schema import manifest_schema
from tests.layouts import checkpoints as made
from tests.training.small import small_experiment, text_data


@pytest.fixture(scope="module")
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(manifest_schema())
    return jsonschema.Draft202012Validator(manifest_schema())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    target = made.megatron(tmp_path_factory.mktemp("schema"))
    return json.loads((target / "manifest.json").read_text())


def _run():
    parameters = {"decoder/layers/ffn/wi": {"shape": [2, 4, 2, 8], "axes": ["layers"]}}
    document = manifest(
        small_experiment(text_data("none.jsonl")), "0" * 8, parameters=parameters, revision=None
    )
    return json.loads(json.dumps(document))


def test_the_manifest_of_a_conversion_is_valid(validator, checkpoint):
    assert list(validator.iter_errors(checkpoint)) == []


def test_the_manifest_of_a_training_run_is_valid(validator):
    assert list(validator.iter_errors(_run())) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("provenance"),
        lambda m: m.update(unknown=1),
        lambda m: m.update(kind="weights"),
        lambda m: m["checkpoint"]["tensors"][0].update(sha256="abc"),
        lambda m: m["architecture"]["ffn"]["branches"][0].pop("activation"),
        lambda m: m["parallelism"].update(tensor_parallel=0),
        lambda m: m["numerics"].pop("stored_dtypes"),
        lambda m: m["training"].pop("initializers"),
    ],
)
def test_a_manifest_that_lacks_or_bends_something_is_not(validator, checkpoint, change):
    document = json.loads(json.dumps(checkpoint))
    change(document)
    assert list(validator.iter_errors(document))

"""A manifest against its tensors: each planted difference is found and named."""

import json
import re

import numpy as np
import pytest

from glu_lab.layouts.checkpoint_manifest import ManifestError
from glu_lab.layouts.convert import convert
from glu_lab.layouts.verify import verify
from tests.layouts import checkpoints as made

FC1, FC2 = (f"decoder.layers.0.mlp.linear_fc{i}.weight" for i in (1, 2))


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return made.megatron(tmp_path_factory.mktemp("verify"))


def test_a_fresh_conversion_agrees_with_its_manifest_in_every_byte(converted):
    found = verify(converted)
    assert (found.differences, found.tensors, found.hashed, found.rows) == ((), 24, 24, True)


def _tensor(document, name, rank=1):
    return next(
        entry
        for entry in document["checkpoint"]["tensors"]
        if (entry["name"], entry["rank"]) == (name, rank)
    )


def _manifest(change):
    return lambda folder: made.edit(folder, change)


def _tensors(change):
    return lambda folder: made.rewrite(folder, change)


def _swapped(tensors):
    tensors[FC1] = np.concatenate(np.split(tensors[FC1], 2)[::-1])


def _one_bit(tensors):
    tensors[FC2] = tensors[FC2].copy()
    tensors[FC2].view(np.uint32)[0, 0] ^= 1


def _renamed(tensors):
    tensors["decoder.layers.0.mlp.linear_fc9.weight"] = tensors.pop(FC1)


def _branch(document, i, **fields):
    document["architecture"]["ffn"]["branches"][i].update(fields)


PLANTED = {
    "one bit of one tensor": (_tensors(_one_bit), {"hash", "function"}, FC2),
    "gate and up exchanged in one rank": (_tensors(_swapped), {"hash", "function"}, FC1),
    "another type": (
        _tensors(lambda t: t.update({FC1: t[FC1].astype("f2")})),
        {"dtype", "layout"},
        "F16",
    ),
    "another shape": (
        _tensors(lambda t: t.update({FC1: t[FC1].T.copy()})),
        {"shape", "layout"},
        r"\[6, 4\]",
    ),
    "a tensor gone": (_tensors(lambda t: t.pop(FC1)), {"count", "name", "layout"}, "not there"),
    "a tensor more": (
        _tensors(lambda t: t.update(more=np.zeros(2, "f4"))),
        {"count", "name"},
        "'more' of rank 1 is there",
    ),
    "a tensor renamed": (_tensors(_renamed), {"name", "layout"}, "linear_fc9"),
    "a shape in the manifest": (
        _manifest(lambda m: _tensor(m, FC1).update(shape=[4, 7])),
        {"shape"},
        r"says \[4, 7\]",
    ),
    "a hash in the manifest": (
        _manifest(lambda m: _tensor(m, FC1).update(sha256="0" * 64)),
        {"hash"},
        "says 0000",
    ),
    "another file": (
        _manifest(lambda m: _tensor(m, FC1).update(file="mp_rank_00/model.safetensors")),
        {"file"},
        "mp_rank_01/model.safetensors",
    ),
    "no hash": (_manifest(lambda m: _tensor(m, FC1).pop("sha256")), {"hash"}, "says None"),
    "ranks": (
        _manifest(lambda m: m["parallelism"].update(tensor_parallel=2)),
        {"ranks"},
        "there are 4",
    ),
    "biases that are not there": (
        _manifest(lambda m: _branch(m, 0, bias=True)),
        {"bias policy"},
        "bias",
    ),
    "a bias policy that is not the Spec's": (
        _manifest(lambda m: m["architecture"]["bias_policy"].update(output=True)),
        {"bias policy"},
        "output",
    ),
    "another activation": (
        _manifest(lambda m: _branch(m, 0, activation="gelu_tanh")),
        {"function"},
        "row proof failed",
    ),
    "another packing": (
        _manifest(lambda m: m["checkpoint"].update(layout="megatron-interleave-1")),
        {"packing", "function"},
        "interleave",
    ),
    "packing of one tensor": (
        _manifest(lambda m: _tensor(m, FC1).update(packing="interleaved, width 32")),
        {"packing"},
        FC1,
    ),
    "a layout that does not exist": (
        _manifest(lambda m: m["checkpoint"].update(layout="megatorn")),
        {"function"},
        "megatron",
    ),
    "tensors that were one": (
        _manifest(
            lambda m: m["checkpoint"]["aliases"].append(
                [{"name": FC1, "rank": 0}, {"name": FC1, "rank": 1}]
            )
        ),
        {"alias"},
        "differ",
    ),
    "the number of FFNs": (
        _manifest(lambda m: m["architecture"].update(ffns=4)),
        {"count"},
        "there are 3",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_difference_is_named(tmp_path, converted, what):
    plant, kinds, words = PLANTED[what]
    spoiled = made.copy(converted, tmp_path / "spoiled")
    plant(spoiled)
    found = verify(spoiled).differences
    assert {difference.what for difference in found} == kinds, found
    messages = "\n".join(difference.message for difference in found)
    assert re.search(words, messages), messages


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.pop("checkpoint"), "no object 'layout'"),
        (lambda m: m.update(manifest_version=9), "version 9"),
        (lambda m: m["checkpoint"].update(tensors={}), "no list"),
        (lambda m: m["checkpoint"]["tensors"].append({}), "no name and rank"),
        (lambda m: m["checkpoint"]["tensors"].append(m["checkpoint"]["tensors"][0]), "twice"),
        (lambda m: m["checkpoint"].update(aliases=[["x"]]), "aliases"),
    ],
)
def test_a_damaged_manifest_is_an_error_of_its_own(tmp_path, converted, change, match):
    spoiled = made.copy(converted, tmp_path / "spoiled")
    made.edit(spoiled, change)
    with pytest.raises(ManifestError, match=match):
        verify(spoiled)


def test_a_folder_without_a_manifest_has_nothing_to_verify(tmp_path):
    with pytest.raises(ManifestError, match=r"no manifest\.json"):
        verify(made.write(tmp_path / "llama", made.llama_tensors()))


def test_kept_tensors_are_verified_like_converted_ones(tmp_path):
    source = made.write(tmp_path / "llama", {**made.llama_tensors(), **made.others()})
    convert(made.request(source, tmp_path / "out", rest="keep"))
    assert not verify(tmp_path / "out").differences

    def change(tensors):
        tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2

    made.rewrite(tmp_path / "out", change, rank=0)
    (only,) = verify(tmp_path / "out").differences
    assert only.what == "hash" and "model.norm.weight" in only.message


def test_the_manifest_is_plain_json(converted):
    assert json.loads((converted / "manifest.json").read_text())["kind"] == "checkpoint"

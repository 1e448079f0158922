"""A checkpoint goes on on other meshes: the same state and data, and sums in another order."""

import pytest

from glu_lab.conformance.continuity import check
from glu_lab.data import load
from glu_lab.errors import SpecError
from glu_lab.spec.model import Attention
from tests.training.small import small_experiment, small_model, text_data, write_corpus


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data = text_data(write_corpus(folder / "documents.jsonl"))
    return load(data, cache_dir=folder / "cache")


@pytest.mark.slow
def test_one_device_then_two_by_data_or_by_model(dataset, monkeypatch):
    monkeypatch.setattr("glu_lab.conformance.continuity.REMATS", ("none",))
    attention = Attention(num_heads=2, num_kv_heads=2, head_dim=4, dropout=0.1)
    experiment = small_experiment(dataset.spec, model=small_model(attention=attention))
    report = check(experiment, steps=4, onto=["data=2", "model=2"], dataset=dataset)
    assert report["passed"]
    assert (report["mesh"], report["onto"]) == ("1×1×1", ["2×1×1", "1×1×2"])
    for way in ("resumed on data=2", "resumed on model=2"):
        lines = {line["what"]: line for line in report["comparisons"] if line["way"] == way}
        assert lines["state as loaded"]["largest"] == lines["next batch"]["largest"] == 0
        # Sums over two devices are taken in another order, and that alone is different.
        assert 0 < lines["gradients of the next step"]["largest"] < 1e-5
        assert 0 < lines["parameters at the end"]["largest"] < 1e-2


def test_a_mesh_that_does_not_divide_is_refused_before_anything_is_trained(dataset):
    with pytest.raises(SpecError, match="kv = 1 does not divide over model=2"):
        check(small_experiment(dataset.spec), steps=4, onto=["model=2"], dataset=dataset)

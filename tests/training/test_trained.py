"""A run is opened as what its manifest says it is, or not at all."""

import json
import shutil

import pytest

from glu_lab.errors import RecordError
from glu_lab.training import loop
from glu_lab.training.loop import train
from glu_lab.training.trained import TrainedRun
from tests.training.small import retrained


@pytest.fixture
def copied(finished, tmp_path):
    folder, _ = finished
    return shutil.copytree(folder, tmp_path / "run")


def test_a_config_edited_to_another_activation_is_refused(copied):
    """Trained with one φ, served with another: every shape fits, the function does not."""
    config = copied / "config.json"
    tree = json.loads(config.read_text())
    tree["model"]["ffn"]["branches"][0]["activation"] = "gelu_erf"
    config.write_text(json.dumps(tree))
    with pytest.raises(RecordError, match="activation"):
        TrainedRun(copied)


def test_a_run_without_its_manifest_is_refused(copied):
    (copied / "manifest.json").unlink()
    with pytest.raises(RecordError, match=r"manifest\.json is missing"):
        TrainedRun(copied)


@pytest.mark.parametrize("folder", ["empty", "gone"])
@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (
            None,
            "no checkpoint yet: the first is written at step 4, and the run has not come so far",
        ),
        (
            {"status": "diverged", "error": "non-finite at step 2: x"},
            "diverged before its first .*2: x",
        ),
        (
            {"status": "failed", "error": "Trace\nValueError: boom"},
            "the run failed: ValueError: boom",
        ),
        ({"status": "complete", "error": None}, "is complete, but its checkpoints are gone"),
    ],
)
def test_a_run_without_weights_says_where_it_stands_and_what_to_do(copied, folder, summary, said):
    shutil.rmtree(copied / "checkpoints")
    if folder == "empty":
        (copied / "checkpoints").mkdir()
    (copied / "summary.json").unlink()
    if summary:
        (copied / "summary.json").write_text(json.dumps(summary))
    for step in (None, 4):
        with pytest.raises(RecordError, match=said) as caught:
            TrainedRun(copied, step)
        assert "None" not in str(caught.value)


def test_another_identity_is_refused_before_data_are_prepared(copied, experiment, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("data were prepared for a run that is refused")

    monkeypatch.setattr("glu_lab.data.load", never)
    assert loop.train is train
    with pytest.raises(RecordError, match=r"training\.batch_size"):
        train(retrained(experiment, batch_size=8), copied)

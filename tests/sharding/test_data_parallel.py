"""Training on four devices is training on one; each in a process with that many devices."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import dataclasses, json, sys
from pathlib import Path

import jax

jax.config.update("jax_compilation_cache_dir", sys.argv[2] + "/xla")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from glu_lab.data import load
from glu_lab.errors import SpecError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.training.loop import train
from glu_lab.training.trained import TrainedRun
from tests.training.small import (
    metrics_lines, retrained, small_experiment, text_data, write_corpus
)

root, shared, devices = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
assert jax.device_count() == devices
corpus = shared / "documents.jsonl"
if not corpus.exists():
    write_corpus(corpus)
data = text_data(corpus, logical_shards=4)
dataset = load(data, cache_dir=shared / "cache")
experiment = small_experiment(data)
out = {}
summary = train(experiment, root / "run", dataset=dataset)
out["summary"] = summary
out["losses"] = [line["loss"] for line in metrics_lines(root / "run") if line["kind"] == "train"]
if devices == 4:
    # Not divisible: 6 rows, and 8 rows in 4 parts of 2, over 4 devices.
    for change in ({"batch_size": 6}, {"batch_size": 8, "microbatches": 4}):
        try:
            train(retrained(experiment, **change), root / "bad", dataset=dataset)
        except SpecError as error:
            out.setdefault("errors", []).append(str(error))
    out["written"] = (root / "bad").exists()
    try:
        odd = dataclasses.replace(experiment, eval_batch_size=5)
        train(odd, root / "bad", dataset=dataset)
    except SpecError as error:
        out["errors"].append(str(error))
    fixed = dataclasses.replace(
        experiment, execution=dataclasses.replace(experiment.execution, mesh="data=1,model=4")
    )
    try:
        train(fixed, root / "bad", dataset=dataset)
    except SpecError as error:
        out["errors"].append(str(error))
if len(sys.argv) > 4:
    # A run of four devices, named in its mesh, is read and resumed on this one.
    other = Path(sys.argv[4])
    out["sample"] = TrainedRun(other).sample("document", tokens=4, temperature=0.0)
print(json.dumps(out))
"""


def start(root, shared, devices, *more):
    root.mkdir()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(
            [os.environ["XLA_FLAGS"], f"--xla_force_host_platform_device_count={devices}"]
        ),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(root), str(shared), str(devices), *more],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_four_devices_train_like_one(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    four = start(tmp_path / "four", shared, 4)
    one = start(tmp_path / "one", shared, 1, str(tmp_path / "four" / "run"))
    # The same batches and dropout masks; only the order of the sums over rows differs.
    assert four["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert four["summary"]["log_perplexity"] == pytest.approx(
        one["summary"]["log_perplexity"], rel=1e-5
    )
    assert four["summary"]["tokens_seen"] == one["summary"]["tokens_seen"]
    assert four["summary"]["identity_hash"] == one["summary"]["identity_hash"]
    assert four["summary"]["execution_hash"] != one["summary"]["execution_hash"]
    assert len(one["sample"]) == 1 and one["sample"][0].startswith("document")

    batch, parts, evaluation, layout = four["errors"]
    assert "training.batch_size / training.microbatches = 6" in batch
    assert "4 and 8" in batch and "data=4 × fsdp=1" in batch
    assert "training.batch_size / training.microbatches = 2" in parts
    assert "eval_batch_size = 5" in evaluation
    assert "vocab = 310 does not divide over model=4" in layout and "heads = 2" in layout
    assert "kv = 1" in layout and "together admit model = 1." in layout
    assert not four["written"]

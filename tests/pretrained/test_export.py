"""A run's model as transformers loads it, and back."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

from glu_lab.cli.main import main
from glu_lab.errors import LayoutError, RecordError, UnknownNameError
from glu_lab.layouts.verify import verify
from glu_lab.models import Transformer
from glu_lab.pretrained import open_pretrained
from glu_lab.pretrained.export import export
from glu_lab.spec.schema import manifest_schema
from glu_lab.training.loop import train
from glu_lab.training.trained import TrainedRun
from tests.training.small import small_experiment, small_model, text_data, write_corpus

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Kind → folder of a trained run of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "documents.jsonl")
    out = {}
    for kind, objective in (("decoder", "causal_lm"), ("encoder_decoder", "span_corruption")):
        data = text_data(corpus, objective=objective)
        experiment = small_experiment(data, model=small_model(kind))
        model = experiment.model
        if kind == "encoder_decoder":
            model = dataclasses.replace(
                model,
                attention=dataclasses.replace(model.attention, scale_scores=False),
                logits_scale=model.d_model**-0.5,
            )
        experiment = dataclasses.replace(
            experiment,
            model=model,
            training=dataclasses.replace(experiment.training, steps=2),
        )
        train(experiment, folder / kind)
        out[kind] = folder / kind
    return out


@pytest.mark.parametrize(("kind", "to"), [("decoder", "llama"), ("encoder_decoder", "t5")])
def test_what_is_exported_is_the_run_s_model_bit_for_bit(runs, tmp_path, kind, to):
    done = export(runs[kind], tmp_path / "out", to)
    assert done.step == 2
    assert done.proof.largest == 0.0
    trained = TrainedRun(runs[kind])
    again = open_pretrained(tmp_path / "out").params()
    for (path, got), (_, want) in zip(
        jax.tree.leaves_with_path(again), jax.tree.leaves_with_path(trained.params), strict=True
    ):
        assert got.tobytes() == np.asarray(want).tobytes(), jax.tree_util.keystr(path)


@pytest.mark.parametrize(("kind", "to"), [("decoder", "llama"), ("encoder_decoder", "t5")])
def test_its_manifest_says_what_every_tensor_is_and_holds(runs, tmp_path, kind, to):
    export(runs[kind], tmp_path / "out", to, revision="abc")
    document = json.loads((tmp_path / "out" / "manifest.json").read_text())
    jsonschema.validate(document, manifest_schema())
    assert not document["not_converted"]
    tensors = {tensor["name"]: tensor for tensor in document["checkpoint"]["tensors"]}
    name = {
        "llama": "model.layers.1.self_attn.k_proj.weight",
        "t5": "decoder.block.1.layer.1.EncDecAttention.k.weight",
    }[to]
    stack = {"llama": "attention", "t5": "cross_attention"}[to]
    assert tensors[name]["parameter"] == f"decoder/layers/{stack}/k"
    assert tensors[name]["pattern"] == "(kv head) embed -> embed kv head"
    assert document["training"]["dropout"]["residual_branch"] == 0.1
    assert document["provenance"]["source"]["step"] == 2
    assert not verify(tmp_path / "out").differences


def test_transformers_loads_it_and_computes_the_same(runs, tmp_path):
    """Float32: 1e-5 of the range for two layers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    export(runs["decoder"], tmp_path / "out", "llama")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    ).eval()
    trained = TrainedRun(runs["decoder"])
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 300, (2, 9)), jnp.int32)
    batch = {
        "tokens": tokens,
        "segments": jnp.ones_like(tokens),
        "positions": jnp.broadcast_to(jnp.arange(9), (2, 9)),
    }
    got = Transformer(trained.experiment.model).apply({"params": trained.params}, batch)
    with torch.no_grad():
        want = reference(torch.tensor(np.asarray(tokens)).long()).logits.numpy()
    assert np.abs(np.asarray(got) - want).max() <= 1e-5 * np.ptp(want)


def test_an_architecture_that_does_not_compute_it_is_refused_before_anything_is_written(
    runs, tmp_path
):
    with pytest.raises(LayoutError, match="qwen2 does not compute this model: attention.qkv_bias"):
        export(runs["decoder"], tmp_path / "out", "qwen2")
    with pytest.raises(UnknownNameError, match="did you mean 'llama'"):
        export(runs["decoder"], tmp_path / "out", "lama")
    assert not (tmp_path / "out").exists()


def test_a_target_that_exists_is_kept(runs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(RecordError, match="exists"):
        export(runs["decoder"], tmp_path / "out", "llama")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_the_command_tells_what_it_wrote(runs, tmp_path, capsys):
    code = main(["export", str(runs["decoder"]), str(tmp_path / "out"), "--to", "llama", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["step"], told["largest_difference"]) == (0, 2, 0.0)
    assert told["bytes"] == sum(
        array.nbytes for array in jax.tree.leaves(open_pretrained(tmp_path / "out").params())
    )
    (tmp_path / "empty").mkdir()
    assert main(["export", str(tmp_path / "empty"), str(tmp_path / "no"), "--to", "llama"]) == 2
    assert "is no run of `glu-lab train`" in capsys.readouterr().err


def test_verify_holds_a_run_against_the_hashes_that_its_checkpoint_records(runs, tmp_path):
    found = verify(runs["decoder"])
    assert (found.differences, found.hashed) == ((), found.tensors)
    run = tmp_path / "run"
    shutil.copytree(runs["decoder"], run)
    (step,) = (run / "checkpoints").glob("[0-9]*")
    document = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    text = json.dumps(document)
    digest = document["custom_metadata"]["sha256"]["params/embedding"]
    (step / "_CHECKPOINT_METADATA").write_text(text.replace(digest, "0" * 64))
    assert [d.what for d in verify(run).differences] == ["hash"]

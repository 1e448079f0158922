"""Whole checkpoints as transformers saves them: the same logits, and the same tensors back."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import FileFormatError, LayoutError, SpecError, UnknownNameError
from glu_lab.files.tensors import open_tensors
from glu_lab.models import Transformer
from glu_lab.pretrained import check_model, content_sha256, open_pretrained
from glu_lab.pretrained.agreement import differences
from glu_lab.pretrained.hugging_face import read_model, write_config
from glu_lab.pretrained.weights import write_tensors
from tests.models import small

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("tests.models.hugging_face")
from tests.pretrained.models import CASES, build  # noqa: E402


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Case → (folder, model); each is written once."""
    made = {}

    def save(case):
        if case not in made:
            folder = tmp_path_factory.mktemp(case)
            model = build(case)
            model.save_pretrained(folder)
            made[case] = folder, model
        return made[case]

    return save


def theirs(model, batch):
    with hf.float64(), torch.no_grad():
        if "tokens" in batch:
            return model(input_ids=torch.tensor(np.asarray(batch["tokens"])).long()).logits.numpy()
        return model(
            input_ids=torch.tensor(np.asarray(batch["encoder_tokens"])).long(),
            attention_mask=torch.tensor(np.asarray(batch["encoder_segments"])).long(),
            decoder_input_ids=torch.tensor(np.asarray(batch["decoder_tokens"])).long(),
        ).logits.numpy()


def ours(model, params, batch):
    with jax.enable_x64(True):
        transformer = Transformer(model, numerics=small.F64)
        params = jax.tree.map(jnp.asarray, params)
        apply = jax.jit(lambda p, b: transformer.apply({"params": p}, b))
        return np.asarray(apply(params, batch))


def batch_of(model):
    return small.lm_batch() if model.kind == "decoder" else small.pair_batch()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(saved, case):
    folder, reference = saved(case)
    checkpoint = open_pretrained(folder)
    batch = batch_of(checkpoint.model)
    want = theirs(reference, batch)
    assert want.dtype == np.float64
    got = ours(checkpoint.model, checkpoint.params("float64"), batch)
    # 1e-10 of the largest: sums in another order, six digits below a step of float32.
    assert np.abs(got - want).max() <= 1e-10 * np.abs(want).max()


@pytest.mark.parametrize("case", CASES)
def test_tensors_come_back_bit_for_bit(saved, case):
    folder, _ = saved(case)
    checkpoint = open_pretrained(folder)
    written = write_tensors(checkpoint.family, checkpoint.params("float64"), checkpoint.model)
    with open_tensors(folder) as file:
        assert set(written) == set(file)
        for name in file:
            assert written[name].tobytes() == file.read(name).tobytes(), name


@pytest.mark.parametrize("case", CASES)
def test_the_config_that_is_written_is_one_of_the_same_function(saved, case):
    folder, reference = saved(case)
    model = open_pretrained(folder).model
    config = write_config(model, reference.config.model_type)
    with hf.float64():
        rebuilt = type(reference)(type(reference.config)(**config)).double().eval()
    rebuilt.load_state_dict(reference.state_dict())
    batch = batch_of(model)
    want = theirs(reference, batch)
    # Another implementation of attention may sum in another order.
    assert np.abs(theirs(rebuilt, batch) - want).max() <= 1e-12 * np.abs(want).max()


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling="),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, 'rope_type="yarn"'),
        ({"sliding_window": 8}, "sliding_window=8 is under"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"logit_softcapping": 30.0}, "not handled: logit_softcapping=30.0"),
        ({"hidden_act": "gelu_10"}, "unknown value of hidden_act"),
        ({"hidden_act": None}, "does not state hidden_act"),
        ({"rms_norm_eps": None}, "does not state rms_norm_eps"),
        ({"hidden_size": "12"}, "hidden_size must be a whole number"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"model_type": "mistral", "mlp_bias": True}, "mistral has no attribute mlp_bias"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_a_spec_cannot_say_is_refused_by_name(saved, change, told):
    folder, _ = saved("llama")
    with pytest.raises((LayoutError, SpecError), match=told.replace("(", r"\(")):
        read_model(config_of(folder) | change)


def test_attributes_that_change_no_function_are_passed_over(saved):
    folder, _ = saved("llama")
    config = config_of(folder)
    more = {"torch_dtype": "bfloat16", "bos_token_id": 7, "use_cache": False, "sliding_window": 64}
    assert read_model(config | more) == read_model(config)


def _copy(folder, target, tensors=None, config=None):
    from safetensors.numpy import load_file, save_file

    loaded = load_file(folder / "model.safetensors")
    save_file({**loaded, **(tensors or {})}, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config_of(folder) | (config or {})))
    return target


def test_a_tensor_that_the_model_has_no_place_for_is_named(saved, tmp_path):
    extra = {"model.layers.0.self_attn.q_proj.bias": np.zeros(16)}
    folder = _copy(saved("llama")[0], tmp_path, extra)
    with pytest.raises(LayoutError, match=r"no place for 'model.layers.0.self_attn.q_proj.bias'"):
        open_pretrained(folder).params("float64")


def test_a_missing_tensor_is_named(saved, tmp_path):
    folder = _copy(saved("llama")[0], tmp_path, config={"attention_bias": True})
    with pytest.raises(LayoutError, match=r"has no 'model.layers.0.self_attn.q_proj.bias'"):
        open_pretrained(folder).params("float64")


def test_sizes_that_differ_from_the_config_are_named(saved, tmp_path):
    folder = _copy(saved("llama")[0], tmp_path, config={"vocab_size": 30})
    with pytest.raises(LayoutError, match=r"shape \(29, 12\).*vocab=30"):
        open_pretrained(folder).params("float64")


def test_a_second_copy_of_a_tied_embedding_must_equal_it(saved, tmp_path):
    source = saved("llama")[0]
    with open_tensors(source) as file:
        embedding = np.array(file.read("model.embed_tokens.weight"))
    assert open_pretrained(_copy(source, tmp_path, {"lm_head.weight": embedding})).params("float64")
    embedding[3, 4] += 1e-9
    folder = _copy(source, tmp_path, {"lm_head.weight": embedding})
    with pytest.raises(LayoutError, match=r"lm_head.weight' differs from 'model.embed_tokens"):
        open_pretrained(folder).params("float64")


def test_weights_that_are_not_finite_are_refused(saved, tmp_path):
    folder = _copy(saved("llama")[0], tmp_path, {"model.norm.weight": np.full(12, np.nan)})
    with pytest.raises(LayoutError, match=r"not finite: 'model.norm.weight'"):
        open_pretrained(folder).params("float64")


def test_weights_are_never_rounded_in_silence(saved):
    with pytest.raises(LayoutError, match="float64, which float32 would round"):
        open_pretrained(saved("llama")[0]).params("float32")


def test_tensors_without_a_config_are_of_no_function(saved, tmp_path):
    folder = _copy(saved("llama")[0], tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(FileFormatError, match="do not say which function"):
        open_pretrained(folder)


def test_an_architecture_that_is_not_read_is_named(saved, tmp_path):
    folder = _copy(saved("llama")[0], tmp_path, config={"model_type": "gemma"})
    with pytest.raises(UnknownNameError, match="unknown architecture of a hf model 'gemma'"):
        open_pretrained(folder)


def test_a_config_of_another_function_is_refused_with_each_difference(saved):
    checkpoint = open_pretrained(saved("llama")[0])
    check_model(dataclasses.replace(checkpoint.model, max_length=16), checkpoint)
    other = small.decoder("geglu_tanh", tie_embeddings=True)
    with pytest.raises(SpecError, match="activation: 'gelu_tanh' → 'silu'") as caught:
        check_model(other, checkpoint)
    assert "positions.rope_theta: 10000.0 → 500.0" in str(caught.value)
    with pytest.raises(SpecError, match="max_length=64 is over the 32"):
        check_model(dataclasses.replace(checkpoint.model, max_length=64), checkpoint)


def test_models_that_differ_in_training_alone_are_one_function():
    model = small.decoder()
    trained = dataclasses.replace(model, residual_dropout=0.1, depth_scaled_output=True)
    assert differences(model, trained) == []
    assert differences(model, dataclasses.replace(model, embedding_scale=2.0)) == [
        "embedding_scale: 1.0 → 2.0"
    ]


def test_a_model_that_an_architecture_does_not_compute_gets_no_config_of_it():
    model = small.decoder()
    normed = dataclasses.replace(model.attention, qk_norm=True)
    with pytest.raises(LayoutError, match="llama does not compute this model: attention.qk_norm"):
        write_config(dataclasses.replace(model, attention=normed), "llama")


def test_content_has_one_name_wherever_it_lies(saved, tmp_path):
    source = saved("llama")[0]
    folder = _copy(source, tmp_path)
    name = content_sha256(folder)
    (folder / "README.md").write_text("not part of the model")
    assert content_sha256(folder) == name
    (folder / "config.json").write_text(json.dumps(config_of(folder) | {"rms_norm_eps": 1e-6}))
    assert content_sha256(folder) != name


def test_the_loader_sees_what_the_config_of_an_older_transformers_says(saved):
    """Before rope_parameters there was rope_theta, and dtype was torch_dtype."""
    config = config_of(saved("llama")[0])
    new = read_model(config)
    del config["rope_parameters"]
    old = read_model(config | {"rope_theta": 500.0, "rope_scaling": None})
    assert old == new
    assert new.positions.rope_theta == 500.0

"""Our FFN on converted weights against the real modules of transformers, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers import ffn
from glu_lab.layouts import (
    LAYOUTS,
    branches_from_config,
    infer_spec,
    plan,
    to_canonical,
)
from glu_lab.layouts.lookup import layouts_of_model_type
from glu_lab.layouts.tables.activations import HUGGING_FACE
from glu_lab.spec.activation import Activation
from glu_lab.spec.numerics import Numerics
from tests.layers import oracle

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("tests.models.hugging_face")

F64 = Numerics.uniform("float64")
D, F, E = 6, 10, 3


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def module(path, name, *arguments):
    """A class of transformers, made with random float64 weights."""
    __import__(f"transformers.models.{path}")
    loaded = getattr(__import__(f"transformers.models.{path}", fromlist=[name]), name)
    with hf.float64():
        return hf.randomize(loaded(*arguments))


def stored(reference, prefix=""):
    return {f"{prefix}{name}": hf.array(value) for name, value in reference.state_dict().items()}


def rows_of_x(width=D):
    return np.random.default_rng(3).normal(size=(5, width))


def assert_equal(got, want):
    """1e-12 of the largest output: sums in another order."""
    assert got.dtype == want.dtype == np.float64
    assert np.abs(got - want).max() <= 1e-12 * np.abs(want).max()


def apply(params, x, spec):
    params = {name: jnp.asarray(value) for name, value in params.items()}
    return np.asarray(ffn.apply(params, jnp.asarray(x), spec, numerics=F64))


SMALL = dict(
    vocab_size=16,
    hidden_size=D,
    intermediate_size=F,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=4,
    pad_token_id=0,
)


def dense_cases():
    c = transformers
    T5 = dict(vocab_size=16, d_model=D, d_ff=F, num_layers=1, num_heads=2, d_kv=4)
    return {
        "llama": ("hf-llama", "llama.modeling_llama", "LlamaMLP", c.LlamaConfig(**SMALL)),
        "llama with biases": (
            "hf-llama",
            "llama.modeling_llama",
            "LlamaMLP",
            c.LlamaConfig(**SMALL, mlp_bias=True, hidden_act="gelu"),
        ),
        "mistral": (
            "hf-mistral",
            "mistral.modeling_mistral",
            "MistralMLP",
            c.MistralConfig(**SMALL),
        ),
        "qwen2": ("hf-qwen2", "qwen2.modeling_qwen2", "Qwen2MLP", c.Qwen2Config(**SMALL)),
        "smollm3": (
            "hf-smollm",
            "smollm3.modeling_smollm3",
            "SmolLM3MLP",
            c.SmolLM3Config(**SMALL),
        ),
        "gemma": ("hf-gemma", "gemma.modeling_gemma", "GemmaMLP", c.GemmaConfig(**SMALL)),
        "gemma 2": ("hf-gemma", "gemma2.modeling_gemma2", "Gemma2MLP", c.Gemma2Config(**SMALL)),
        "phi3": ("hf-phi3", "phi3.modeling_phi3", "Phi3MLP", c.Phi3Config(**SMALL)),
        "glm": ("hf-glm", "glm.modeling_glm", "GlmMLP", c.GlmConfig(**SMALL)),
        "glm4": ("hf-glm4", "glm4.modeling_glm4", "Glm4MLP", c.Glm4Config(**SMALL)),
        "modernbert": (
            "hf-modernbert",
            "modernbert.modeling_modernbert",
            "ModernBertMLP",
            c.ModernBertConfig(**SMALL),
        ),
        "modernbert with biases": (
            "hf-modernbert",
            "modernbert.modeling_modernbert",
            "ModernBertMLP",
            c.ModernBertConfig(**SMALL, mlp_bias=True),
        ),
        "nemotron": (
            "hf-nemotron",
            "nemotron.modeling_nemotron",
            "NemotronMLP",
            c.NemotronConfig(**SMALL),
        ),
        "starcoder2": (
            "hf-starcoder2",
            "starcoder2.modeling_starcoder2",
            "Starcoder2MLP",
            c.Starcoder2Config(**SMALL),
        ),
        "gpt_neox": (
            "hf-gpt-neox",
            "gpt_neox.modeling_gpt_neox",
            "GPTNeoXMLP",
            c.GPTNeoXConfig(**SMALL),
        ),
        "t5": (
            "hf-t5",
            "t5.modeling_t5",
            "T5DenseActDense",
            c.T5Config(**T5, feed_forward_proj="relu"),
        ),
        "t5 gelu": (
            "hf-t5",
            "t5.modeling_t5",
            "T5DenseActDense",
            c.T5Config(**T5, feed_forward_proj="gelu"),
        ),
        "t5 gated-gelu": (
            "hf-t5-gated",
            "t5.modeling_t5",
            "T5DenseGatedActDense",
            c.T5Config(**T5, feed_forward_proj="gated-gelu"),
        ),
        "t5 gated-silu": (
            "hf-t5-gated",
            "t5.modeling_t5",
            "T5DenseGatedActDense",
            c.T5Config(**T5, feed_forward_proj="gated-silu"),
        ),
    }


@pytest.mark.parametrize("case", dense_cases())
def test_dense_modules(case):
    from glu_lab.layouts import find

    name, path, symbol, config = dense_cases()[case]
    reference = module(path, symbol, config)
    layout, tensors = find(name), stored(reference)
    spec = infer_spec(layout, tensors, config=config.to_dict())
    assert (spec.d_model, spec.d_ff) == (D, F)
    params = to_canonical(layout, tensors, spec)
    x = rows_of_x()
    with hf.float64(), torch.no_grad():
        want = reference(torch.tensor(x)).numpy()
    assert_equal(apply(params, x, spec), want)


def test_gemmas_legacy_gelu_is_the_tanh_form():
    """The published config.json of Gemma 1 says "gelu"; the class reads it as the tanh form."""
    config = transformers.GemmaConfig(**SMALL, hidden_act="gelu")
    reference = module("gemma.modeling_gemma", "GemmaMLP", config)
    published = {**config.to_dict(), "hidden_act": "gelu", "hidden_activation": None}
    spec = infer_spec(LAYOUTS["hf-gemma"], stored(reference), config=published)
    assert spec.branches[0].activation == Activation("gelu_tanh")
    params = to_canonical(LAYOUTS["hf-gemma"], stored(reference), spec)
    x = rows_of_x()
    with hf.float64(), torch.no_grad():
        assert_equal(apply(params, x, spec), reference(torch.tensor(x)).numpy())


def test_gpt2():
    config = transformers.GPT2Config(n_embd=D, n_inner=F, n_head=2, resid_pdrop=0.0)
    reference = module("gpt2.modeling_gpt2", "GPT2MLP", F, config)
    spec = infer_spec(LAYOUTS["hf-gpt2"], stored(reference), config=config.to_dict())
    params = to_canonical(LAYOUTS["hf-gpt2"], stored(reference), spec)
    x = rows_of_x()
    with hf.float64(), torch.no_grad():
        assert_equal(apply(params, x, spec), reference(torch.tensor(x)).numpy())


def test_bert():
    config = transformers.BertConfig(hidden_size=D, intermediate_size=F, num_attention_heads=2)
    first = module("bert.modeling_bert", "BertIntermediate", config)
    last = module("bert.modeling_bert", "BertOutput", config)
    tensors = stored(first, "intermediate.") | stored(last.dense, "output.dense.")
    spec = infer_spec(LAYOUTS["hf-bert"], tensors, config=config.to_dict())
    assert spec.branches[0].activation == Activation("gelu_erf")
    x = rows_of_x()
    with hf.float64(), torch.no_grad():
        want = last.dense(first(torch.tensor(x))).numpy()
    assert_equal(apply(to_canonical(LAYOUTS["hf-bert"], tensors, spec), x, spec), want)


def test_phi4_multimodal_audio_gates_with_the_second_half():
    config = transformers.Phi4MultimodalAudioConfig(
        hidden_size=D, intermediate_size=F, dropout_rate=0.0
    )
    reference = module("phi4_multimodal.modeling_phi4_multimodal", "Phi4MultimodalAudioMLP", config)
    layout = LAYOUTS["phi4mm-audio"]
    tensors = {name: value for name, value in stored(reference).items() if "layer_norm" not in name}
    spec = infer_spec(layout, tensors, config=config.to_dict())
    x = rows_of_x()
    with hf.float64(), torch.no_grad():
        want = reference(torch.tensor(x)).numpy()
        normed = reference.layer_norm(torch.tensor(x)).numpy()
    assert_equal(apply(to_canonical(layout, tensors, spec), normed, spec), want)


def expert_output(reference, x, expert):
    """The module's output when every row goes to one expert with weight 1."""
    index = torch.full((len(x), 1), expert)
    with hf.float64(), torch.no_grad():
        return reference(torch.tensor(x), index, torch.ones(len(x), 1)).numpy()


@pytest.mark.parametrize(
    ("name", "path", "symbol", "config"),
    [
        (
            "mixtral-fused",
            "mixtral.modeling_mixtral",
            "MixtralExperts",
            lambda: transformers.MixtralConfig(**SMALL, num_local_experts=E),
        ),
        (
            "mixtral-fused",
            "qwen2_moe.modeling_qwen2_moe",
            "Qwen2MoeExperts",
            lambda: transformers.Qwen2MoeConfig(**SMALL, num_experts=E, moe_intermediate_size=F),
        ),
        (
            "hf-gpt-oss",
            "gpt_oss.modeling_gpt_oss",
            "GptOssExperts",
            lambda: transformers.GptOssConfig(**SMALL, num_local_experts=E),
        ),
    ],
    ids=["mixtral", "qwen2_moe", "gpt_oss"],
)
def test_experts(name, path, symbol, config):
    config = config()
    reference = module(path, symbol, config)
    layout, tensors = LAYOUTS[name], stored(reference, "experts.")
    spec = infer_spec(layout, tensors, config=config.to_dict())
    params = to_canonical(layout, tensors, spec)
    x = 10.0 * rows_of_x()  # beyond gpt-oss's clamps
    for expert in range(E):
        own = {key: value[expert] for key, value in params.items()}
        assert_equal(apply(own, x, spec), expert_output(reference, x, expert))


def test_dbrx_experts():
    config = transformers.DbrxConfig(
        d_model=D, ffn_config={"ffn_hidden_size": F, "moe_num_experts": E, "hidden_size": D}
    )
    reference = module("dbrx.modeling_dbrx", "DbrxExpertGLU", config.ffn_config)
    layout, tensors = LAYOUTS["dbrx"], stored(reference, "experts.mlp.")
    settings = {"ffn_config": {"ffn_act_fn": {"name": "silu"}}}
    spec = infer_spec(layout, tensors, config=settings, experts=E)
    assert spec.d_ff == F
    params = to_canonical(layout, tensors, spec)
    x = rows_of_x()
    for expert in range(E):
        w1, v1, w2 = (getattr(reference, name).view(E, F, D)[expert] for name in ("w1", "v1", "w2"))
        with hf.float64(), torch.no_grad():
            want = reference(torch.tensor(x), w1, v1, w2).numpy()
        assert_equal(apply({k: v[expert] for k, v in params.items()}, x, spec), want)


@pytest.mark.parametrize("word", sorted(HUGGING_FACE))
def test_each_activation_name_is_the_function_of_transformers(word):
    x = np.linspace(-6, 6, 1201)
    with hf.float64(), torch.no_grad():
        got = transformers.activations.ACT2FN[word](torch.tensor(x)).numpy()
    want = oracle.phi(Activation(HUGGING_FACE[word]), x, ())
    # Two of the classes write √(2/π) with ten digits.
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def model_cases():
    c = transformers
    # A layer number of two digits, and a neighbour for every name.
    small = {**SMALL, "num_hidden_layers": 11}
    return {
        "llama": (c.LlamaForCausalLM, c.LlamaConfig(**small)),
        "gemma": (c.GemmaForCausalLM, c.GemmaConfig(**small)),
        "phi3": (c.Phi3ForCausalLM, c.Phi3Config(**small)),
        "glm": (c.GlmForCausalLM, c.GlmConfig(**small)),
        "modernbert": (c.ModernBertForMaskedLM, c.ModernBertConfig(**small)),
        "nemotron": (c.NemotronForCausalLM, c.NemotronConfig(**small)),
        "starcoder2": (c.Starcoder2ForCausalLM, c.Starcoder2Config(**small)),
        "gpt_neox": (c.GPTNeoXForCausalLM, c.GPTNeoXConfig(**small)),
        "gpt2": (c.GPT2LMHeadModel, c.GPT2Config(n_embd=D, n_inner=F, n_head=2, n_layer=11)),
        "bert": (c.BertForMaskedLM, c.BertConfig(**small)),
        "opt": (c.OPTForCausalLM, c.OPTConfig(**small, ffn_dim=F, word_embed_proj_dim=D)),
        "gpt_oss": (c.GptOssForCausalLM, c.GptOssConfig(**small, num_local_experts=E)),
    }


@pytest.mark.parametrize("kind", model_cases())
def test_the_ffns_of_a_whole_model_are_found_by_its_model_type(kind):
    """No tensor under an FFN's own names is left over, and no other is taken."""
    model_class, config = model_cases()[kind]
    with torch.device("meta"):
        shapes = {
            name: torch.empty(value.shape, device="cpu").numpy()
            for name, value in model_class(config).state_dict().items()
        }
    settings = config.to_dict()
    (layout,) = (
        row
        for row in layouts_of_model_type(settings["model_type"])
        if not row.name.startswith("gguf")
    )
    spec = infer_spec(layout, shapes, config=settings)
    assert (spec.d_model, spec.d_ff) == (D, F)
    planned = plan(layout, LAYOUTS["glu-lab"], shapes, spec)
    (layers,) = planned.source.places().values()
    assert list(layers) == list(range(11))
    words = ("mlp", "fc1", "fc2", "intermediate", ".output.dense", "feed_forward")
    left = [n for n in planned.rest if any(w in n for w in words) and n not in planned.outside]
    assert [n for n in left if "norm" not in n.lower() and "attention" not in n] == []


def test_t5_models_keep_their_two_stacks_apart():
    config = transformers.T5Config(
        vocab_size=16, d_model=D, d_ff=F, num_layers=2, num_decoder_layers=3, num_heads=2, d_kv=4,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    shapes = {
        name: np.zeros(tuple(value.shape), np.float32) for name, value in model.state_dict().items()
    }
    layout = LAYOUTS["hf-t5-gated"]
    spec = infer_spec(layout, shapes, config=config.to_dict())
    planned = plan(layout, LAYOUTS["t5x"], shapes, spec)
    names = {output.key.name for output in planned.outputs}
    assert "encoder/layers_1/mlp/wi_0/kernel" in names and "decoder/layers_2/mlp/wo/kernel" in names
    assert len(names) == 3 * 5
    assert planned.settings == {"mlp_activations": ["gelu", "linear"]}


def test_files_that_transformers_writes_of_experts_are_of_the_named_rows(tmp_path):
    """In memory the experts are joined; files keep one tensor an expert."""
    from safetensors.numpy import load_file

    config = transformers.MixtralConfig(**SMALL, num_local_experts=E)
    model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layout = LAYOUTS["mixtral"]
    spec = infer_spec(layout, tensors, config=config.to_dict())
    own = {name: value for name, value in tensors.items() if ".experts." in name}
    params = to_canonical(layout, own, spec)
    assert params["wi"].shape == (2, E, D, 2, F)
    joined = model.model.layers[1].mlp.experts.gate_up_proj[2].detach().numpy()
    np.testing.assert_array_equal(params["wi"][1, 2, :, 0].T, joined[:F])
    np.testing.assert_array_equal(params["wi"][1, 2, :, 1].T, joined[F:])


def test_a_config_with_another_swiglu_limit_is_refused():
    config = transformers.GptOssConfig(**SMALL, num_local_experts=E).to_dict()
    assert branches_from_config(LAYOUTS["hf-gpt-oss"], config)
    from glu_lab.layouts import LayoutError

    with pytest.raises(LayoutError, match=r"swiglu_limit=5\.0 is not handled"):
        branches_from_config(LAYOUTS["hf-gpt-oss"], {**config, "swiglu_limit": 5.0})

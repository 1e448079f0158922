"""Published weights through this code and through transformers. `make weights` fetches them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.configs import load
from glu_lab.layers import ffn
from glu_lab.models import Transformer
from glu_lab.pretrained import check_model, open_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "weights" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = ROOT / "weights" / "all-MiniLM-L6-v2"
TEXT = (
    "To the Congress of the United States: Since the adjournment of the last session, 1,250,000 "
    "men have come home; the state of the Union is strong, and the people ask what it shall do."
)


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason=f"{path.name} is absent: make weights")


@pytest.fixture(scope="module")
def smollm2():
    pytest.importorskip("accelerate")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        SMOLLM2.parent, gguf_file=SMOLLM2.name, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    return reference, tokenizer


@pytest.fixture(scope="module")
def ours():
    experiment = load(f"{ROOT}/configs/smollm2_135m.py")
    checkpoint = open_pretrained(SMOLLM2)
    check_model(experiment.model, checkpoint)
    assert checkpoint.sha256 == experiment.initial.sha256
    return experiment, jax.tree.map(jnp.asarray, checkpoint.params())


@needs(SMOLLM2)
def test_smollm2_s_tokens_logits_and_losses_are_those_of_transformers(smollm2, ours):
    from glu_lab.data.tokenizer_files import load_tokenizer

    reference, tokenizer = smollm2
    experiment, params = ours
    ids = load_tokenizer(str(SMOLLM2), 49_152, 0).encode(TEXT)
    assert ids == tokenizer.encode(TEXT)
    tokens = jnp.asarray([ids])
    batch = {
        "tokens": tokens,
        "segments": jnp.ones_like(tokens),
        "positions": jnp.arange(len(ids))[None],
    }
    transformer = Transformer(experiment.model)
    got = np.asarray(jax.jit(lambda p, b: transformer.apply({"params": p}, b))(params, batch))[0]
    with torch.no_grad():
        want = reference(torch.tensor([ids])).logits[0].numpy()
    # Float32 through 30 layers on both sides.
    assert np.abs(got - want).max() <= 2e-4 * np.ptp(want)

    def losses(logits):
        logits = logits[:-1].astype(np.float64)
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_z = np.log(np.exp(shifted).sum(axis=-1))
        return log_z - shifted[np.arange(len(ids) - 1), ids[1:]]

    assert np.abs(losses(got) - losses(want)).max() <= 1e-4


@needs(SMOLLM2)
def test_smollm2_s_greedy_text_is_that_of_transformers(smollm2, ours):
    """Both with a cache of keys and values, over two prompts of different lengths."""
    from glu_lab.models.generate import Generator

    reference, tokenizer = smollm2
    experiment, params = ours
    prompts = [tokenizer.encode(text) for text in (TEXT, "The capital of France is")]
    got = Generator(Transformer(experiment.model)).generate(params, prompts, tokens=24, stop=2)
    for prompt, row in zip(prompts, got, strict=True):
        with torch.no_grad():
            want = reference.generate(
                torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=2
            )
        assert row == want[0, len(prompt) :].tolist()


@needs(MINILM)
@pytest.mark.parametrize("layer", range(6))
def test_minilm_s_mlp_is_the_one_of_transformers_with_the_exact_gelu(layer):
    from glu_lab.files.tensors import open_tensors
    from glu_lab.layouts import branches_from_config, find, to_canonical
    from glu_lab.spec.ffn import FFN
    from glu_lab.spec.numerics import Numerics
    from glu_lab.spec.variants import with_bias

    model = transformers.AutoModel.from_pretrained(MINILM, dtype=torch.float64).eval()
    config = model.config.to_dict()
    layout = find("hf-bert")
    spec = FFN(
        branches=with_bias(branches_from_config(layout, config), True),
        d_model=384,
        d_ff=1536,
        output_bias=True,
    )
    assert str(spec.branches[0].activation) == "gelu_erf"
    prefix = f"encoder.layer.{layer}."
    with open_tensors(MINILM / "model.safetensors") as file:
        names = [f"{prefix}{part}.dense.{kind}" for part in ("intermediate", "output")
                 for kind in ("weight", "bias")]  # fmt: skip
        bare = {name.removeprefix(prefix): np.float64(file.read(name)) for name in names}
    params = to_canonical(layout, bare, spec)
    rows = np.random.default_rng(0).normal(size=(64, 384))
    block = model.encoder.layer[layer]
    with torch.no_grad():
        hidden = block.intermediate(torch.tensor(rows))
        want = block.output.dense(hidden).numpy()
    with jax.enable_x64(True):
        f64 = Numerics.uniform("float64")
        arrays = jax.tree.map(jnp.asarray, params)

        def difference(spec):
            got = np.asarray(ffn.apply(arrays, jnp.asarray(rows), spec, numerics=f64))
            return np.abs(got - want).max() / np.abs(want).max()

        assert difference(spec) <= 1e-12
        from glu_lab.spec.activation import Activation
        from glu_lab.spec.ffn import Branch

        tanh = spec.replace(branches=(Branch(activation=Activation("gelu_tanh"), bias=True),))
        assert difference(tanh) > 1e-6

"""Whole models in GGUF, against what transformers' own reader of GGUF makes of the same file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import LayoutError, UnknownNameError
from glu_lab.models import Transformer
from glu_lab.pretrained import open_pretrained
from glu_lab.pretrained.weights import write_tensors
from tests.models import small

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

H, G, K, D, F, V = 4, 2, 4, 16, 20, 29


def write(path, architecture="llama", *, metadata=(), tensors=(), without=(), seed=0):
    """A GGUF file of random float32 tensors, as llama.cpp names them."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    numbers = {
        "block_count": 2, "context_length": 32, "embedding_length": D, "feed_forward_length": F,
        "attention.head_count": H, "attention.head_count_kv": G, "rope.dimension_count": K,
        "vocab_size": V,
    }  # fmt: skip
    for name, value in numbers.items():
        if name not in without:
            writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 500.0)
    for name, value in dict(metadata).items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](f"{architecture}.{name}", value)
    shapes = {"token_embd": (V, D), "output_norm": (D,), "output": (V, D)}
    for layer in range(2):
        for name, shape in {
            "attn_norm": (D,), "ffn_norm": (D,), "attn_q": (H * K, D), "attn_k": (G * K, D),
            "attn_v": (G * K, D), "attn_output": (D, H * K), "ffn_gate": (F, D), "ffn_up": (F, D),
            "ffn_down": (D, F),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}"] = shape
    for name, shape in shapes.items():
        if name in without:
            continue
        drawn = rng.normal(size=shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        drawn = drawn + (len(shape) == 1)
        writer.add_tensor(f"{name}.weight", drawn.astype(np.float32))
    for name, shape in dict(tensors).items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def biases(width_of=((("q"), H * K), ("k", G * K), ("v", G * K))):
    return {f"blk.{i}.attn_{p}.bias": (n,) for i in range(2) for p, n in width_of}


FILES = {
    "llama": dict(architecture="llama"),
    "llama-tied": dict(architecture="llama", without=("output",)),
    "qwen2": dict(architecture="qwen2", tensors=biases()),
}


@pytest.mark.parametrize("name", FILES)
def test_logits_are_those_of_transformers(tmp_path, name):
    """Float32 on both sides: 2e-5 of the range, some 200 units of rounding for two layers."""
    path = write(tmp_path / "model.gguf", **FILES[name])
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).eval()
    checkpoint = open_pretrained(path)
    batch = small.lm_batch()
    transformer = Transformer(checkpoint.model)
    params = jax.tree.map(jnp.asarray, checkpoint.params())
    got = np.asarray(transformer.apply({"params": params}, batch))
    with torch.no_grad():
        want = reference(torch.tensor(np.asarray(batch["tokens"])).long()).logits.numpy()
    assert np.abs(got - want).max() <= 2e-5 * np.ptp(want)


def test_queries_and_keys_are_unpaired(tmp_path):
    """llama.cpp turns (half, pair) of each head into (pair, half): written out by hand here."""
    path = write(tmp_path / "model.gguf")
    checkpoint = open_pretrained(path)
    params = checkpoint.params()
    with gguf_tensors(path) as stored:
        k = stored["blk.1.attn_k.weight"]
    turned = np.empty_like(k)
    for head in range(G):
        for i in range(K // 2):
            for half in range(2):
                turned[head * K + half * (K // 2) + i] = k[head * K + 2 * i + half]
    np.testing.assert_array_equal(
        params["decoder"]["layers"]["attention"]["k"][1], turned.T.reshape(D, G, K)
    )


class gguf_tensors:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(str(path))

    def __enter__(self):
        return {t.name: np.array(t.data) for t in self.reader.tensors}

    def __exit__(self, *_):
        del self.reader


@pytest.mark.parametrize("name", FILES)
def test_tensors_come_back_bit_for_bit(tmp_path, name):
    path = write(tmp_path / "model.gguf", **FILES[name])
    checkpoint = open_pretrained(path)
    written = write_tensors(checkpoint.family, checkpoint.params(), checkpoint.model)
    with gguf_tensors(path) as stored:
        assert set(written) == set(stored)
        for tensor, array in stored.items():
            assert written[tensor].tobytes() == array.tobytes(), tensor


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (dict(metadata={"rope.scaling.factor": 2.0}), "rope.scaling.factor=2.0 is not handled"),
        (dict(metadata={"expert_count": 8}), "expert_count=8 is not handled"),
        (dict(metadata={"logit_scale": 0.5}), "not handled: logit_scale=0.5"),
        (dict(without=("block_count",)), "does not state block_count"),
        (dict(without=("vocab_size",)), "neither llama.vocab_size nor a list of tokens"),
        (dict(tensors={"rope_freqs.weight": (K // 2,)}), "no place for 'rope_freqs.weight'"),
        (dict(without=("blk.1.attn_norm",)), "has no 'blk.1.attn_norm.weight'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_a_spec_cannot_say_is_refused_by_name(tmp_path, fields, told):
    path = write(tmp_path / "model.gguf", **fields)
    with pytest.raises(LayoutError, match=told.replace(".", r"\.")):
        open_pretrained(path).params()


def test_an_architecture_that_is_not_read_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", "falcon")
    with pytest.raises(UnknownNameError, match="unknown architecture of a gguf model 'falcon'"):
        open_pretrained(path)

"""The 2017 model against torch's own post-norm Transformer, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers.params import initialize
from glu_lab.layers.positions import sinusoidal
from glu_lab.models import Transformer, parameters
from tests.models import small

torch = pytest.importorskip("torch")

H, K, D = 3, small.K, small.D


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def random_params(model):
    """Every parameter drawn, biases and norms too."""
    params = initialize(parameters(model), jax.random.key(0), jnp.float64)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree,
        [
            leaf + 0.2 * jax.random.normal(key, leaf.shape, jnp.float64)
            for leaf, key in zip(leaves, keys, strict=True)
        ],
    )


def tensor(array):
    return torch.tensor(np.asarray(array))


def fill_attention(module, tree):
    """torch packs q, k, v as (3·H·K, D)."""
    weights = [np.asarray(tree[n]).reshape(D, H * K).T for n in "qkv"]
    biases = [np.asarray(tree[f"{n}_bias"]).reshape(H * K) for n in "qkv"]
    module.in_proj_weight.copy_(tensor(np.concatenate(weights)))
    module.in_proj_bias.copy_(tensor(np.concatenate(biases)))
    module.out_proj.weight.copy_(tensor(np.asarray(tree["o"]).reshape(H * K, D).T))
    module.out_proj.bias.copy_(tensor(tree["o_bias"]))


def fill_layer(layer, tree, cross):
    fill_attention(layer.self_attn, tree["attention"])
    norms = ["attention_norm", "ffn_norm"]
    if cross:
        fill_attention(layer.multihead_attn, tree["cross_attention"])
        norms.insert(1, "cross_attention_norm")
    for number, name in enumerate(norms, start=1):
        norm = getattr(layer, f"norm{number}")
        norm.weight.copy_(tensor(tree[name]["scale"]))
        norm.bias.copy_(tensor(tree[name]["bias"]))
    ffn = tree["ffn"]
    layer.linear1.weight.copy_(tensor(ffn["wi"][:, 0].T))
    layer.linear1.bias.copy_(tensor(ffn["bi_0"]))
    layer.linear2.weight.copy_(tensor(ffn["wo"].T))
    layer.linear2.bias.copy_(tensor(ffn["bo"]))


def torch_stack(kind, tree, layers):
    cross = kind is torch.nn.TransformerDecoderLayer
    modules = []
    for i in range(layers):
        layer = kind(D, H, small.F, dropout=0.0, batch_first=True, layer_norm_eps=1e-5).double()
        with torch.no_grad():
            fill_layer(layer, jax.tree.map(lambda leaf: leaf[i], tree["layers"]), cross)  # noqa: B023
        modules.append(layer.eval())
    return modules


def test_logits_are_those_of_torchs_post_norm_layers():
    model = small.original()
    params = random_params(model)
    batch = small.pair_batch()
    batch["encoder_segments"] = batch["encoder_segments"].at[0, 6:].set(0)
    transformer = Transformer(model, numerics=small.F64)
    got = jax.jit(lambda p, b: transformer.apply({"params": p}, b))(params, batch)

    def embed(tokens):
        return tensor(np.asarray(params["embedding"])[tokens] * D**0.5) + tensor(
            sinusoidal(tokens.shape[1], D)
        )

    source, target = np.asarray(batch["encoder_tokens"]), np.asarray(batch["decoder_tokens"])
    padding = tensor(batch["encoder_segments"]) == 0
    causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1]).double()
    with torch.no_grad():
        memory, out = embed(source), embed(target)
        for layer in torch_stack(torch.nn.TransformerEncoderLayer, params["encoder"], 2):
            # With a gradient mode on and a mask given, torch takes its plain path.
            memory = layer(memory, src_key_padding_mask=padding)
        for layer in torch_stack(torch.nn.TransformerDecoderLayer, params["decoder"], 2):
            out = layer(out, memory, tgt_mask=causal, memory_key_padding_mask=padding)
    want = out.numpy() @ np.asarray(params["embedding"]).T
    assert np.abs(np.asarray(got) - want).max() <= 1e-11 * np.abs(want).max()


def test_sinusoids_are_those_of_the_paper():
    table = sinusoidal(50, 8)
    for position in (0, 1, 49):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert table[position, 2 * i] == pytest.approx(np.sin(angle), abs=1e-14)
            assert table[position, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-14)

"""Initial weights: shared between models by name, and as spread out as the theory says."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers.params import Parameter, count, initialize, leaves
from glu_lab.models import init_params, parameters
from glu_lab.spec import Initializer, variant
from glu_lab.spec.model import Attention, Model, Positions
from tests.models import small


@functools.lru_cache
def flat(model, seed=0):
    params = init_params(model, jax.random.key(seed))
    return {
        "/".join(k.key for k in path): np.asarray(value)
        for path, value in jax.tree_util.tree_leaves_with_path(params)
    }


def test_variants_share_every_weight_but_the_ffns_and_there_what_has_one_shape():
    relu, swiglu = flat(small.decoder("relu")), flat(small.decoder("swiglu"))
    assert relu.keys() == swiglu.keys()
    for path in relu:
        # The gated variant's first branch is the dense one's only branch.
        shared = swiglu[path][..., :1, :] if path.endswith("/wi") else swiglu[path]
        np.testing.assert_array_equal(relu[path], shared, err_msg=path)
    narrow = flat(small.decoder("swiglu", d_ff=13))
    for path in relu:
        if "/ffn/" not in path:
            np.testing.assert_array_equal(relu[path], narrow[path], err_msg=path)


def test_a_deeper_model_begins_with_the_shallower_ones_layers():
    two, three = flat(small.decoder(layers=2)), flat(small.decoder(layers=3))
    for path in two:
        shared = three[path][:2] if "/layers/" in path else three[path]
        np.testing.assert_array_equal(two[path], shared, err_msg=path)


@pytest.mark.slow
def test_layers_branches_stacks_and_seeds_are_independent_draws():
    params, other = flat(small.t5("swiglu")), flat(small.t5("swiglu"), seed=1)
    wi, encoder = params["decoder/layers/ffn/wi"], params["encoder/layers/ffn/wi"]
    for one, two in (
        (wi[0], wi[1]),
        (wi[0, :, 0], wi[0, :, 1]),
        (wi[0], encoder[0]),
        (params["decoder/layers/attention/q"], params["decoder/layers/cross_attention/q"]),
        (params["decoder/layers/attention/k"], params["decoder/layers/attention/v"]),
        (wi, other["decoder/layers/ffn/wi"]),
    ):
        # 4σ of the correlation of n independent pairs.
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 4 / math.sqrt(one.size)
        assert not np.array_equal(one, two)


def test_parameter_dtype_is_the_stated_one():
    params = jax.eval_shape(lambda: init_params(small.decoder(), jax.random.key(0), jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}


def wide(**fields):
    """Wide enough that a standard deviation is measured to about 1 %."""
    D, H, K = 96, 4, 32
    base = dict(
        kind="encoder_decoder",
        vocab_size=500,
        d_model=D,
        num_layers=3,
        num_encoder_layers=2,
        attention=Attention(
            num_heads=H,
            num_kv_heads=H,
            head_dim=K,
            scale_scores=False,
            q_init=Initializer(scale=1 / K),
        ),
        ffn=variant("swiglu", d_model=D, d_ff=160),
        positions=Positions(kind="relative", num_buckets=400, max_distance=2000),
        tie_embeddings=False,
    )
    return Model(**(base | fields))


@pytest.mark.slow
def test_spread_is_t5s():
    """Mesh-TensorFlow's T5: every matrix by its fan-in, q smaller by √K more, embedding 1."""
    D, F, H, K = 96, 160, 4, 32
    expected = {
        "embedding": 1.0,
        "logits": D**-0.5,
        "relative/bias": D**-0.5,
        "attention/q": (D * K) ** -0.5,
        "attention/k": D**-0.5,
        "attention/v": D**-0.5,
        "attention/o": (H * K) ** -0.5,
        "ffn/wi": D**-0.5,
        "ffn/wo": F**-0.5,
    }
    found = set()
    for path, value in flat(wide()).items():
        ending = next((name for name in expected if path.endswith(name)), None)
        if ending is None:
            assert path.endswith("norm/scale"), path
            np.testing.assert_array_equal(value, 1)
            continue
        found.add(ending)
        # The standard deviation of n normal draws is known to 1/√(2n); 5σ.
        assert value.std() == pytest.approx(expected[ending], rel=5 / math.sqrt(2 * value.size)), (
            path
        )
        assert abs(value.mean()) < 5 * expected[ending] / math.sqrt(value.size)
    assert found == expected.keys()


@pytest.mark.slow
def test_depth_scaling_divides_the_output_projections_alone():
    plain, scaled = flat(wide()), flat(wide(depth_scaled_output=True))
    residuals = {"encoder": 2 * 2, "decoder": 3 * 3}
    for path in plain:
        stack = path.split("/")[0]
        outputs = ("attention/o", "cross_attention/o", "ffn/wo")
        factor = residuals[stack] ** -0.5 if path.endswith(outputs) else 1.0
        np.testing.assert_allclose(scaled[path], plain[path] * factor, rtol=1e-6, err_msg=path)
    stated = Initializer(scale=0.02, fan="none")
    ffn = variant("swiglu", d_model=96, d_ff=160, wo_init=stated)
    wo = flat(wide(ffn=ffn, depth_scaled_output=True))["decoder/layers/ffn/wo"]
    assert wo.std() == pytest.approx(0.02 / 3, rel=0.02)


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
@pytest.mark.parametrize(
    ("fan", "std"),
    [
        ("in", math.sqrt(2 / 200)),
        ("out", math.sqrt(2 / 300)),
        ("avg", math.sqrt(2 / 250)),
        ("none", 2),
    ],
)
def test_a_distribution_has_the_stated_spread_and_support(distribution, fan, std):
    table = {
        "w": Parameter(
            shape=(200, 300),
            axes=("embed", "mlp"),
            inputs=("embed",),
            outputs=("mlp",),
            init=Initializer(distribution=distribution, scale=2.0, fan=fan),
        )
    }
    draw = np.asarray(initialize(table, jax.random.key(0))["w"])
    assert draw.std() == pytest.approx(std, rel=0.02)
    largest = np.abs(draw).max() / std
    low, high = {"normal": (3.5, 6), "truncated_normal": (2.2, 2.2745), "uniform": (1.72, 1.7321)}[
        distribution
    ]
    assert low < largest < high


T5_BASE = dict(
    kind="encoder_decoder",
    vocab_size=32_128,
    d_model=768,
    num_layers=12,
    num_encoder_layers=12,
    attention=Attention(num_heads=12, num_kv_heads=12, head_dim=64),
    positions=Positions(kind="relative"),
)


@pytest.mark.parametrize(
    ("text", "d_ff"),
    [
        *((name, 3072) for name in ("relu", "gelu_erf", "gelu_tanh", "silu", "relu2")),
        *(
            (name, 2048)
            for name in ("glu", "bilinear", "reglu", "geglu_erf", "geglu_tanh", "swiglu", "drelu")
        ),
    ],
)
def test_t5_base_has_222_903_552_parameters_whatever_the_variant(text, d_ff):
    model = Model(**T5_BASE, ffn=variant(text, d_model=768, d_ff=d_ff))
    assert count(parameters(model)) == 222_903_552


def test_smollm2_135m_has_134_515_008_parameters():
    model = Model(
        kind="decoder",
        vocab_size=49_152,
        d_model=576,
        num_layers=30,
        attention=Attention(num_heads=9, num_kv_heads=3, head_dim=64),
        ffn=variant("swiglu", d_model=576, d_ff=1536),
    )
    assert count(parameters(model)) == 134_515_008


def test_every_path_names_its_own_stream_of_numbers():
    """No two arrays of a large model share a 32-bit path number."""
    from glu_lab.layers.params import path_key

    paths = [path for path, _ in leaves(parameters(dataclasses.replace(small.original())))]
    keys = {tuple(np.asarray(jax.random.key_data(path_key(jax.random.key(0), p)))) for p in paths}
    assert len(keys) == len(paths)

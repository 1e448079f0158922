"""Parameter trees of the baselines as files: name, dtype, shape and logical axes of every array.

A change here changes what a checkpoint means. After an intended one, rewrite the files with

    GLU_LAB_UPDATE_GOLDEN=1 pytest tests/models/test_golden_trees.py
"""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from glu_lab.layers import ffn
from glu_lab.layers.params import leaves
from glu_lab.models import init_params, parameters
from glu_lab.spec import variant
from glu_lab.spec.model import Attention, Model, Positions
from tests.models import small

GOLDEN = Path(__file__).parents[1] / "golden" / "parameters"

MODELS = {
    "t5_base_relu": Model(
        kind="encoder_decoder",
        vocab_size=32_128,
        d_model=768,
        num_layers=12,
        num_encoder_layers=12,
        attention=Attention(num_heads=12, num_kv_heads=12, head_dim=64, scale_scores=False),
        ffn=variant("relu", d_model=768, d_ff=3072),
        positions=Positions(kind="relative"),
    ),
    "t5_small_v1_1_geglu": Model(
        kind="encoder_decoder",
        vocab_size=32_128,
        d_model=512,
        num_layers=8,
        num_encoder_layers=8,
        attention=Attention(num_heads=6, num_kv_heads=6, head_dim=64, scale_scores=False),
        ffn=variant("geglu_tanh", d_model=512, d_ff=1024),
        positions=Positions(kind="relative"),
        tie_embeddings=False,
    ),
    "smollm2_135m": Model(
        kind="decoder",
        vocab_size=49_152,
        d_model=576,
        num_layers=30,
        attention=Attention(num_heads=9, num_kv_heads=3, head_dim=64),
        ffn=variant("swiglu", d_model=576, d_ff=1536),
    ),
    "original_2017": small.original(),
    "every_optional_array": small.decoder(
        attention=Attention(
            num_heads=4, num_kv_heads=2, head_dim=4, qkv_bias=True, output_bias=True, qk_norm=True
        ),
        text="xielu*swish_learned",
        ffn={"bias": True, "product_bias": True},
        tie_embeddings=False,
    ),
}

FFNS = {
    f"ffn_{name}": variant(text, d_model=8, d_ff=16, bias=bias)
    for name, text, bias in (
        ("dense", "relu", None),
        ("gated", "swiglu", None),
        ("gated_biased", "swiglu", True),
        ("gpt_oss", "gpt_oss", None),
        ("learned", "xielu", None),
    )
}


def tree(table, shapes):
    """path → [dtype, shape, axes], from the arrays that initialisation would make."""
    made = {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    }
    stated = dict(leaves(table))
    assert made.keys() == stated.keys()
    return {
        path: {
            "dtype": str(made[path].dtype),
            "shape": list(made[path].shape),
            "axes": list(stated[path].axes),
        }
        for path in stated
    }


def check(name, found):
    file = GOLDEN / f"{name}.json"
    if os.environ.get("GLU_LAB_UPDATE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(
            f"  {json.dumps(path)}: {json.dumps(row)}" for path, row in found.items()
        )
        file.write_text(f"{{\n{lines}\n}}\n")
    assert json.loads(file.read_text()) == found


@pytest.mark.parametrize("name", MODELS)
def test_a_models_parameter_tree_is_unchanged(name):
    model = MODELS[name]
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    check(name, tree(parameters(model), shapes))


@pytest.mark.parametrize("name", FFNS)
def test_an_ffns_parameter_tree_is_unchanged(name):
    spec = FFNS[name]
    shapes = jax.eval_shape(lambda: ffn.init(jax.random.key(0), spec, jnp.bfloat16))
    check(name, tree(ffn.parameters(spec), shapes))


def test_no_golden_file_is_left_without_a_test():
    assert {file.stem for file in GOLDEN.glob("*.json")} == {*MODELS, *FFNS}

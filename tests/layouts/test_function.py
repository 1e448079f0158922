"""Which function stored tensors are of: from a config, from the user, never from their shapes."""

import jax
import numpy as np
import pytest

from glu_lab.errors import GluLabError, LayoutError, UnknownNameError
from glu_lab.layouts import (
    LAYOUTS,
    branches_from_config,
    find,
    from_canonical,
    infer_spec,
    variants_of,
)
from glu_lab.layouts.tables.activations import JAX
from glu_lab.spec import variant
from glu_lab.spec.activation import Activation
from glu_lab.spec.variants import branches_of
from tests.layers import oracle
from tests.layouts import rows


@pytest.mark.parametrize(
    ("name", "config", "product"),
    [
        # The same word, four meanings.
        ("hf-llama", {"hidden_act": "gelu"}, "gelu_erf*linear"),
        ("hf-llama", {"hidden_act": "gelu_new"}, "gelu_tanh*linear"),
        ("hf-llama", {"hidden_act": "gelu_pytorch_tanh"}, "gelu_tanh*linear"),
        ("hf-llama", {"hidden_act": "quick_gelu"}, "quick_gelu*linear"),
        ("hf-gemma", {"hidden_act": "gelu"}, "gelu_tanh*linear"),
        ("hf-gemma", {"hidden_act": "gelu", "hidden_activation": "gelu"}, "gelu_erf*linear"),
        ("hf-gemma", {"hidden_act": "gelu", "hidden_activation": None}, "gelu_tanh*linear"),
        ("t5x", {"mlp_activations": ["gelu", "linear"]}, "gelu_tanh*linear"),
        ("t5x", {"mlp_activations": ("relu",)}, "relu"),
        ("te-jax", {"mlp_activations": ["linear", "gelu"]}, "gelu_tanh*linear"),
        ("te-jax", {"mlp_activations": ["gelu", "linear"]}, "gelu_tanh*linear"),
        ("hf-bert", {"hidden_act": "gelu"}, "gelu_erf"),
        ("hf-t5", {"feed_forward_proj": "gelu"}, "gelu_erf"),
        ("hf-t5-gated", {"feed_forward_proj": "gated-gelu"}, "gelu_tanh*linear"),
        ("hf-t5-gated", {"feed_forward_proj": "gated-gelu_python"}, "gelu_erf*linear"),
        ("megatron", {"activation": "geglu"}, "gelu_erf*linear"),
        ("megatron", {"activation": "geglu, bias_activation_fusion"}, "gelu_tanh*linear"),
        ("gguf", {"general": {"architecture": "gemma2"}}, "gelu_tanh*linear"),
        ("gguf", {"general": {"architecture": "llama"}}, "silu*linear"),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "silu"}}}, "silu*linear"),
        ("gpt-neox", {"activation": "glu"}, "sigmoid*linear"),
        # Fixed by the convention, whatever a config says.
        ("llama-pth", {}, "silu*linear"),
        ("gemma-einsum", {}, "gelu_tanh*linear"),
    ],
)
def test_a_configs_word_is_the_exact_function(name, config, product):
    assert branches_from_config(LAYOUTS[name], config) == branches_of(product)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("hf-llama", {}, "does not state hidden_act, which decides .* never has a default"),
        ("hf-llama", {"hidden_act": None}, "does not state hidden_act"),
        ("hf-llama", {"hidden_act": "mish"}, "unknown value of hidden_act for layout hf-llama"),
        ("hf-llama", {"hidden_act": "gelu_10"}, "unknown value"),
        ("hf-llama", {"hidden_act": "gelu_newer"}, "did you mean 'gelu_new'"),
        ("t5x", {"mlp_activations": "gelu"}, "must list the activation of each branch"),
        ("t5x", {"mlp_activations": ["gelu", "softplus"]}, "unknown value"),
        ("gguf-dense", {"general": {"architecture": "bert"}}, "trained with the erf form"),
        ("gpt-oss", {"swiglu_limit": 10.0}, "swiglu_limit=10.0 is not handled"),
        ("glu-lab", {"hidden_act": "silu"}, "no config says which; state the variant"),
    ],
)
def test_what_a_config_does_not_state_or_no_spec_says_is_refused(name, config, message):
    with pytest.raises(GluLabError, match=message):
        branches_from_config(LAYOUTS[name], config)


@pytest.mark.parametrize("word", sorted(JAX))
def test_each_jax_name_is_the_function_of_jax(word):
    x = np.linspace(-6, 6, 601)
    with jax.enable_x64(True):
        got = x if word == "linear" else np.asarray(getattr(jax.nn, word)(jax.numpy.asarray(x)))
    want = oracle.phi(Activation(JAX[word]), x, ())
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_tensors_alone_never_say_the_function():
    spec = variant("swiglu", d_model=3, d_ff=5)
    tensors = from_canonical(LAYOUTS["hf-llama"], rows.random_params(spec), spec)
    with pytest.raises(LayoutError, match=r"tensors do not say .*\(hidden_act decides\)"):
        infer_spec(LAYOUTS["hf-llama"], tensors)
    assert infer_spec(LAYOUTS["hf-llama"], tensors, variant="swiglu") == spec
    assert infer_spec(LAYOUTS["hf-llama"], tensors, config={"hidden_act": "silu"}) == spec
    # A convention that has one function needs no word.
    theirs = from_canonical(LAYOUTS["llama-pth"], rows.random_params(spec), spec)
    assert infer_spec(LAYOUTS["llama-pth"], theirs) == spec


def test_a_user_who_contradicts_the_config_is_told():
    spec = variant("swiglu", d_model=3, d_ff=5)
    tensors = from_canonical(LAYOUTS["hf-llama"], rows.random_params(spec), spec)
    with pytest.raises(LayoutError, match=r"config states 'gelu_erf\*linear', .* 'swiglu'"):
        infer_spec(LAYOUTS["hf-llama"], tensors, config={"hidden_act": "gelu"}, variant="swiglu")


@pytest.mark.parametrize("name", rows.NAMES)
def test_a_spec_is_read_off_tensors_with_its_sizes_and_biases(name):
    layout = LAYOUTS[name]
    for spec in rows.specs(layout, 3, 5 * rows.width(layout)):
        if any(branch.activation.row.learned for branch in spec.branches):
            continue
        for leading in rows.leadings(layout):
            tensors = from_canonical(
                layout, rows.random_params(spec, leading), spec, leading=leading
            )
            text = "*".join(str(branch.activation) for branch in spec.branches)
            if any(branch.offset for branch in spec.branches):
                text = "gpt_oss"
            got = infer_spec(
                layout,
                tensors,
                variant=text,
                leading=leading if name == "glu-lab" else None,
                experts=rows.SIZES["expert"] if name == "dbrx" else None,
            )
            assert got == spec


def test_sizes_that_shapes_leave_open_are_asked_for():
    spec = variant("swiglu", d_model=3, d_ff=5)
    layout = LAYOUTS["dbrx"]
    tensors = from_canonical(
        layout, rows.random_params(spec, ("expert",)), spec, leading=("expert",)
    )
    with pytest.raises(LayoutError, match="do not determine d_ff. Say how many experts"):
        infer_spec(layout, tensors, variant="swiglu")


@pytest.mark.parametrize("name", rows.NAMES)
def test_every_function_of_the_table_exists(name):
    layout = LAYOUTS[name]
    for text in variants_of(layout):
        if layout.function.each_branch:
            Activation.parse(text)
        else:
            branches = branches_of(text)
            assert layout.num_branches in (0, len(branches))


def test_unknown_names_carry_their_choices():
    with pytest.raises(UnknownNameError) as error:
        find("hf-lamma")
    assert "hf-llama" in error.value.choices and "hf-mistral" in error.value.choices

"""Tensors that do not fit: each is named, with what was expected and the nearest right choice."""

import numpy as np
import pytest

from glu_lab.errors import GluLabError, LayoutError, UnknownNameError
from glu_lab.layouts import LAYOUTS, find, from_canonical, plan, to_canonical
from glu_lab.layouts.transform import aliases
from glu_lab.spec import variant
from tests.layouts import rows

D, F = 3, 5
SWIGLU = variant("swiglu", d_model=D, d_ff=F)


def stored(name, text="swiglu", d_ff=F, bias=False, leading=(), prefix=None):
    spec = variant(text, d_model=D, d_ff=d_ff, bias=bias)
    return from_canonical(
        find(name), rows.random_params(spec, leading), spec, leading=leading, prefix=prefix
    )


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("hf-lama", "hf-llama"), ("hf_phi3", "hf-phi3"), ("MegaTron", "megatron"), ("t5", "t5x")],
)
def test_a_misspelt_layout_is_refused_with_the_nearest(given, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        find(given)


def test_a_missing_tensor_is_named():
    tensors = stored("hf-llama", leading=("layer",))
    del tensors["model.layers.2.mlp.up_proj.weight"]
    with pytest.raises(LayoutError, match="'model.layers.2.mlp.up_proj.weight' missing"):
        to_canonical(LAYOUTS["hf-llama"], tensors, SWIGLU)


def test_a_missing_expert_is_named():
    tensors = stored("mixtral", leading=("layer", "expert"))
    kept = {name: value for name, value in tensors.items() if "experts.0" not in name}
    with pytest.raises(LayoutError, match="expert 0 of layer . is missing; there are 1, up"):
        to_canonical(LAYOUTS["mixtral"], kept, SWIGLU)


def test_a_tensor_among_the_ffns_that_is_not_known_is_named():
    tensors = {**stored("hf-llama"), "gate_proj.weight_scale": np.ones(1)}
    with pytest.raises(LayoutError, match="does not know 'gate_proj.weight_scale', and drops"):
        to_canonical(LAYOUTS["hf-llama"], tensors, SWIGLU)
    inside = {
        **stored("hf-llama", leading=("layer",)),
        "model.layers.0.mlp.down_proj.lora_A.weight": np.ones(1),
    }
    with pytest.raises(LayoutError, match=r"down_proj\.lora_A\.weight"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], inside, SWIGLU)


def test_tensors_of_another_layout_name_it():
    with pytest.raises(LayoutError, match="These names fit .*hf-phi3, hf-glm"):
        to_canonical(LAYOUTS["qwen1"], stored("hf-phi3"), SWIGLU)
    with pytest.raises(LayoutError, match="Layouts that have 'gate_proj.weight': hf-llama"):
        to_canonical(
            LAYOUTS["hf-nemotron"], stored("hf-llama"), variant("relu2", d_model=D, d_ff=F)
        )


def test_what_is_no_part_of_the_ffn_has_no_place_in_its_parameters():
    tensors = stored("mixtral", leading=("expert",))
    with pytest.raises(LayoutError, match=r"without a place .*'gate\.weight' \(router\)"):
        to_canonical(LAYOUTS["mixtral"], {**tensors, "gate.weight": np.ones((2, D))}, SWIGLU)
    layered = stored("hf-llama", leading=("layer",))
    with pytest.raises(LayoutError, match=r"'model\.norm\.weight'"):
        to_canonical(LAYOUTS["hf-llama"], {**layered, "model.norm.weight": np.ones(D)}, SWIGLU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.T, r"has shape \(3, 5\), expected \(F, D\) = \(5, 3\).*the orientation "
                        r"\(D, F\)"),
        (lambda t: t[:-1], r"has shape \(4, 3\), expected \(F, D\) = \(5, 3\); its axis F has "
                           r"length 4, not 5"),
        (lambda t: t[None], r"has shape \(1, 5, 3\), expected \(F, D\).*it has 3 dimensions"),
        (lambda t: np.concatenate([t, t]), r"has shape \(10, 3\)"),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_named_with_what_was_expected(change, message):
    tensors = stored("hf-llama")
    tensors["gate_proj.weight"] = change(tensors["gate_proj.weight"])
    with pytest.raises(LayoutError, match=message):
        to_canonical(LAYOUTS["hf-llama"], tensors, SWIGLU)


def test_a_shape_that_fits_another_layout_names_it():
    """Conv1D and nn.Linear under one name: the transpose is another layout."""
    tensors = stored("hf-gpt2", "gelu_tanh", bias=True)
    spec = variant("gelu_tanh", d_model=D, d_ff=F, bias=True)
    with pytest.raises(LayoutError, match="A tensor of this name has this shape in hf-gpt2"):
        to_canonical(LAYOUTS["hf-starcoder2"], tensors, spec)
    einsum = stored("gemma-einsum", "geglu_tanh")
    spec = variant("geglu_tanh", d_model=D, d_ff=F)
    with pytest.raises(LayoutError, match="has this shape in gemma-einsum"):
        to_canonical(LAYOUTS["gemma-einsum-transposed"], einsum, spec)


def test_an_odd_number_of_packed_rows_is_refused():
    tensors = stored("hf-phi3")
    tensors["gate_up_proj.weight"] = tensors["gate_up_proj.weight"][:-1]
    with pytest.raises(LayoutError, match=r"expected \(N·F, D\) = \(10, 3\)"):
        to_canonical(LAYOUTS["hf-phi3"], tensors, SWIGLU)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hf-llama", "relu", "stores 2 branches; the Spec 'relu' has 1"),
        ("hf-llama", "drelu", "hf-llama does not compute 'drelu'; it computes gelu_erf"),
        ("llama-pth", "geglu_erf", "does not compute 'geglu_erf'; it computes swiglu"),
        ("hf-gpt-oss", "swiglu", "it computes gpt_oss"),
        ("mixtral", "gpt_oss", "does not compute 'gpt_oss'"),
        ("t5x", "geglu_erf", "each branch is one of linear, gelu_tanh"),
        ("t5x", "gpt_oss", "without clamps, scales or offsets"),
        ("hf-nemotron", "swish_learned", "does not compute 'swish_learned'"),
    ],
)
def test_a_function_that_the_source_does_not_compute_is_refused(name, text, message):
    spec = variant(text, d_model=D, d_ff=F)
    with pytest.raises(LayoutError, match=message):
        from_canonical(LAYOUTS[name], rows.random_params(spec), spec)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("hf-phi3", {"bias": True}, "has no place for branch biases. The layout never has biases; "
                                    "the Spec has b_0, b_1, output bias"),
        ("hf-llama", {"bias": False, "output_bias": True}, "has all of its biases or none. The "
                                                           r"layout may have biases \(config "
                                                           "attribute mlp_bias"),
        ("hf-llama", {"product_bias": True}, "has no place for a product bias"),
        ("transformerlens", {"bias": True}, "no place for branch biases. The layout always has"),
        ("x-transformers", {}, "always has 'ff.0.proj.bias'"),
        ("hf-llama", {"output_scale": 0.5}, "has no output scale; the Spec has output_scale=0.5"),
    ],
)  # fmt: skip
def test_what_a_spec_has_and_the_layout_cannot_store_is_refused(name, fields, message):
    spec = variant("swiglu", d_model=D, d_ff=F, **fields)
    with pytest.raises(LayoutError, match=message):
        from_canonical(LAYOUTS[name], rows.random_params(spec), spec)


def test_biases_that_the_spec_lacks_would_be_dropped():
    with pytest.raises(LayoutError, match="'down_proj.bias', .* would be dropped, since the Spec"):
        to_canonical(LAYOUTS["hf-llama"], stored("hf-llama", bias=True), SWIGLU)


def test_biases_that_the_tensors_lack_are_missing():
    with pytest.raises(LayoutError, match=r"'down_proj.bias', .* missing\. The layout may have"):
        to_canonical(
            LAYOUTS["hf-llama"], stored("hf-llama"), variant("swiglu", d_model=D, d_ff=F, bias=True)
        )


def test_quantised_blocks_are_refused_by_name():
    spec = variant("gpt_oss", d_model=D, d_ff=F)
    tensors = stored("hf-gpt-oss", "gpt_oss", bias=True, leading=("expert",))
    tensors["experts.gate_up_proj_blocks"] = np.ones((2, 2))
    with pytest.raises(LayoutError, match="gate_up_proj_blocks.*MXFP4-quantised; read it deq"):
        to_canonical(LAYOUTS["hf-gpt-oss"], tensors, spec)


def test_a_learned_factor_that_no_spec_has_is_refused():
    spec = variant("swiglu", d_model=D, d_ff=F, bias=True)
    tensors = stored("x-transformers", bias=True)
    with pytest.raises(LayoutError, match="mult_bias.*a learned factor on the product"):
        to_canonical(LAYOUTS["x-transformers"], {**tensors, "ff.0.mult_bias": np.ones(F)}, spec)


def test_two_prefixes_of_one_stack_are_ambiguous():
    one = stored("hf-llama", leading=("layer",))
    two = {name.removeprefix("model."): value for name, value in one.items()}
    with pytest.raises(LayoutError, match="stand at .*; name the prefix that is meant"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], {**one, **two}, SWIGLU)


def test_a_canonical_stack_says_which_axis_leads():
    params = rows.random_params(SWIGLU, ("layer",))
    with pytest.raises(LayoutError, match="expected .*; it has 4 dimensions"):
        from_canonical(LAYOUTS["hf-llama"], params, SWIGLU)
    with pytest.raises(
        LayoutError, match=r"leading axis .* say which with leading=: \('layer',\) "
    ):
        to_canonical(LAYOUTS["glu-lab"], params, SWIGLU)


def test_tied_tensors_are_noticed():
    shared = np.ones((F, D))
    tensors = {
        "gate_proj.weight": shared,
        "up_proj.weight": shared,
        "down_proj.weight": np.ones((D, F)),
        "view": shared[:, :],
        "part": shared[1:],
    }
    assert aliases(tensors) == (("gate_proj.weight", "up_proj.weight", "view"),)
    params = to_canonical(
        LAYOUTS["hf-llama"], {n: t for n, t in tensors.items() if "." in n}, SWIGLU
    )
    # Each becomes a part of its own.
    params["wi"][:, 0] = 0
    assert (params["wi"][:, 1] == 1).all()


def test_every_refusal_is_an_error_of_the_users_input():
    assert issubclass(LayoutError, GluLabError) and issubclass(LayoutError, ValueError)


def test_a_number_that_no_model_has_is_no_layer():
    """Python itself refuses to read a number of so many digits."""
    name = f"model.layers.{'9' * 5000}.mlp.gate_proj.weight"
    with pytest.raises(LayoutError, match="no tensor of an FFN is among"):
        plan(LAYOUTS["hf-llama"], LAYOUTS["hf-phi3"], {name: np.ones((F, D))}, SWIGLU)

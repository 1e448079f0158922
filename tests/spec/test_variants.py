"""The names and the grammar of activations and variants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec import FFN, VARIANTS, Activation, Branch, variant
from glu_lab.spec.activation import ACTIVATIONS, OTHER_NAMES
from glu_lab.spec.variants import ABLATION_VARIANTS, branches_of, parse_product, variant_name

finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def activations(draw):
    name = draw(st.sampled_from(sorted(ACTIVATIONS)))
    count = len(ACTIVATIONS[name].constants)
    constants = draw(st.one_of(st.just(()), st.tuples(*[finite] * count)))
    return Activation(name, constants)


@given(activations())
def test_an_activation_reads_back_from_its_text(activation):
    again = Activation.parse(str(activation))
    assert again == activation and hash(again) == hash(activation) and str(again) == str(activation)


@given(st.lists(activations(), min_size=1, max_size=4))
def test_a_product_reads_back_from_its_name(factors):
    spec = variant("*".join(map(str, factors)), d_model=4, d_ff=8)
    assert [branch.activation for branch in spec.branches] == factors
    assert branches_of(variant_name(spec)) == spec.branches


@given(st.text(max_size=20))
def test_any_text_is_a_product_or_a_spec_error(text):
    try:
        branches = branches_of(text)
    except SpecError:
        return
    assert branches and all(isinstance(branch, Branch) for branch in branches)


def test_equal_functions_are_one_activation():
    assert Activation.parse("swish(1.702)") == Activation("quick_gelu")
    assert Activation.parse("swish(1)") == Activation.parse(" swish ( 1.0 ) ") == Activation("silu")
    assert Activation.parse("swish") == Activation("silu")
    assert hash(Activation.parse("swish(1.702)")) == hash(Activation("quick_gelu"))
    assert Activation.parse("swish(1.5)") != Activation("silu")
    assert str(Activation("swish", (-0.0,))) == str(Activation("swish", (0.0,)))


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
@pytest.mark.parametrize("spell", [str, str.upper, lambda name: name.replace("_", "-")])
def test_a_librarys_word_is_refused_with_the_choices_however_it_is_spelt(name, spell):
    for build in (Activation, branches_of):
        with pytest.raises(SpecError) as caught:
            build(spell(name))
        for choice in OTHER_NAMES[name]:
            assert choice in str(caught.value)
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("gelu", ("gelu_erf", "gelu_tanh", "quick_gelu")),
        ("geglu", ("geglu_erf", "geglu_tanh")),
        ("swish", ("silu", "swish(1.5)", "swish_learned")),
        ("gelu*linear", ("gelu_erf", "gelu_tanh")),
    ],
)
def test_an_ambiguous_variant_is_refused_with_the_choices(name, choices):
    with pytest.raises(SpecError) as caught:
        variant(name, d_model=4, d_ff=8)
    for choice in choices:
        assert choice in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("swigl", "swiglu"),
        ("geglu_tan", "geglu_tanh"),
        ("reluu", "relu"),
        ("SwiGLU", "swiglu"),
        ("GEGLU_tanh", "geglu_tanh"),
        ("ReLU", "relu"),
        ("ReLU²", "relu2"),
        ("dReLU", "drelu"),
        ("GPT-OSS", "gpt_oss"),
        ("SwiGLUU", "swiglu"),
    ],
)
def test_an_unknown_variant_names_the_nearest(name, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        variant(name, d_model=4, d_ff=8)


@pytest.mark.parametrize("name", sorted({*VARIANTS, *ACTIVATIONS}))
def test_another_spelling_is_never_accepted_and_the_right_one_named(name):
    for spelt in {name.upper(), name.title(), name.replace("_", "-"), name.replace("_", "")}:
        if spelt == name:
            continue
        for text in (spelt, f"{spelt}*linear"):
            if "*" in text and name not in ACTIVATIONS:
                continue
            with pytest.raises(SpecError) as caught:
                branches_of(text)
            assert f"'{name}'" in str(caught.value) or f"{name}(" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("relu × linear", r"multiplied with '\*'; did you mean 'relu \* linear'"),
        ("silu⊙linear", r"did you mean 'silu\*linear'"),
        ("swiglu*linear", r"'swiglu' in 'swiglu\*linear' is a variant.*it is silu\*linear itself"),
        ("gated-gelu", "geglu_erf, geglu_tanh"),
        ("liglu", "is called 'bilinear' here"),
    ],
)
def test_what_papers_write_is_told_in_our_words(text, said):
    with pytest.raises(SpecError, match=said):
        variant(text, d_model=4, d_ff=8)


def test_an_unknown_activation_in_a_product_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown activation 'sillu'; did you mean 'silu'"):
        variant("sillu*linear", d_model=4, d_ff=8)


@pytest.mark.parametrize(
    "text", ["", "*", "silu*", "*linear", "silu**linear", "silu linear", "silu(", "swish(a)"]
)
def test_malformed_products_are_refused(text):
    with pytest.raises(SpecError):
        variant(text, d_model=4, d_ff=8)


@pytest.mark.parametrize(
    "text", ["silu(1)", "swish(1, 2)", "swish(inf)", "swish(nan)", "relu(0.1)*linear"]
)
def test_constants_that_do_not_fit_are_refused(text):
    with pytest.raises(SpecError):
        variant(text, d_model=4, d_ff=8)


@pytest.mark.parametrize("value", ["1.5", True, None, math.nan])
def test_constants_of_the_wrong_type_are_refused(value):
    with pytest.raises(SpecError, match="finite"):
        Activation("swish", (value,))


def test_the_table_says_what_the_papers_say():
    expected = {
        "relu": "relu",
        "gelu_erf": "gelu_erf",
        "gelu_tanh": "gelu_tanh",
        "silu": "silu",
        "relu2": "relu2",
        "glu": "sigmoid*linear",
        "bilinear": "linear*linear",
        "reglu": "relu*linear",
        "geglu_erf": "gelu_erf*linear",
        "geglu_tanh": "gelu_tanh*linear",
        "swiglu": "silu*linear",
        "drelu": "relu*relu",
        "gpt_oss": "quick_gelu*linear",
    }
    assert {name: row.product for name, row in VARIANTS.items()} == expected
    assert len(ABLATION_VARIANTS) == 12
    assert variant("swiglu", d_model=4, d_ff=8) == variant("silu*linear", d_model=4, d_ff=8)


def test_gpt_oss_is_clamped_offset_and_biased_as_published():
    gate, up = variant("gpt_oss", d_model=4, d_ff=8).branches
    assert gate.pre == (-math.inf, 7.0) and gate.offset == 0.0 and gate.bias
    assert up.pre == (-7.0, 7.0) and up.offset == 1.0 and up.bias
    assert variant("gpt_oss", d_model=4, d_ff=8).output_bias
    bare = variant("gpt_oss", d_model=4, d_ff=8, bias=False)
    assert not bare.output_bias and not bare.branches[0].bias
    assert variant_name(bare) == "gpt_oss"


def test_bias_means_every_branch_and_the_output():
    spec = variant("swiglu", d_model=4, d_ff=8, bias=True)
    assert [branch.bias for branch in spec.branches] == [True, True] and spec.output_bias
    assert not variant("swiglu", d_model=4, d_ff=8, bias=True, output_bias=False).output_bias


def test_widths_are_what_was_stated():
    assert variant("swiglu", d_model=4096, d_ff=11008).d_ff == 11008
    for width in (0, -1, 2.0, True, "8"):
        with pytest.raises(SpecError, match="d_ff must be an integer"):
            variant("relu", d_model=4, d_ff=width)


def test_a_name_that_leaves_something_unsaid_is_marked_custom():
    clamped = FFN(d_model=4, d_ff=8, branches=(Branch(activation=Activation("relu"), pre=(-1, 1)),))
    assert variant_name(clamped) == "custom:relu"


@pytest.mark.parametrize("clamp", [(1.0, 1.0), (2.0, -2.0), (math.nan, 1.0)])
def test_clamps_that_describe_nothing_are_refused(clamp):
    with pytest.raises(SpecError, match="low < high"):
        Branch(activation=Activation("relu"), pre=clamp)


def test_a_clamp_open_on_both_sides_is_no_clamp():
    assert Branch(activation=Activation("relu"), pre=(-math.inf, math.inf)).pre is None


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_dropout": 1.0},
        {"hidden_dropout": -0.1},
        {"output_scale": math.inf},
        {"hidden_dropout_shared": ("features",)},
        {"branches": ()},
    ],
)
def test_ffn_fields_out_of_range_are_refused(fields):
    base = {"d_model": 4, "d_ff": 8, "branches": parse_product("relu")}
    with pytest.raises(SpecError):
        FFN(**(base | fields))

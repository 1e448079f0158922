"""The ledger counts what a parameter tree holds and what the formula does."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glu_lab.budget import ledger
from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.spec import FFN, Activation, Branch, variant
from glu_lab.spec.activation import ACTIVATIONS


def tree(spec: FFN) -> dict[str, np.ndarray]:
    """A parameter tree written out array by array, as a user would allocate it."""
    d, f, n = spec.d_model, spec.d_ff, len(spec.branches)
    arrays = {"wi": np.zeros((d, n, f)), "wo": np.zeros((f, d))}
    for i, branch in enumerate(spec.branches):
        if branch.bias:
            arrays[f"bi{i}"] = np.zeros(f)
        for name in ACTIVATIONS[branch.activation.name].learned:
            arrays[f"{name}{i}"] = np.zeros(())
    if spec.product_bias:
        arrays["bh"] = np.zeros(f)
    if spec.output_bias:
        arrays["bo"] = np.zeros(d)
    return arrays


branches = st.builds(
    Branch,
    activation=st.sampled_from(sorted(ACTIVATIONS)).map(Activation),
    bias=st.booleans(),
    scale=st.sampled_from([1.0, 0.5]),
    pre=st.sampled_from([None, (-7.0, 7.0), (-math.inf, 7.0)]),
    post=st.sampled_from([None, (0.0, 6.0)]),
    offset=st.sampled_from([0.0, 1.0]),
)
ffns = st.builds(
    FFN,
    d_model=st.integers(1, 9),
    d_ff=st.integers(1, 9),
    branches=st.lists(branches, min_size=1, max_size=3).map(tuple),
    product_bias=st.booleans(),
    output_bias=st.booleans(),
    output_scale=st.sampled_from([1.0, 0.5]),
    hidden_dropout=st.sampled_from([0.0, 0.1]),
)


@given(ffns)
def test_parameters_are_those_of_an_allocated_tree(spec):
    assert ledger(spec).params == sum(array.size for array in tree(spec).values())


@given(ffns)
def test_arrays_are_named_and_shaped_as_the_layer_allocates_them(spec):
    allocated = {name: p.shape for name, p in ffn.parameters(spec).items()}
    counted = {item.name: item.shape for item in ledger(spec).parameters}
    slices = {f"wi[:,{i}]": (spec.d_model, spec.d_ff) for i in range(spec.num_branches)}
    assert allocated.pop("wi") == (spec.d_model, spec.num_branches, spec.d_ff)
    assert counted == slices | allocated


@given(ffns)
def test_macs_are_the_scalar_products_of_the_matmuls(spec):
    arrays = tree(spec)
    # Each weight of a projection is used once for one token.
    assert ledger(spec).macs_per_token == arrays["wi"].size + arrays["wo"].size


@given(ffns)
def test_items_add_up_and_name_each_part_once(spec):
    counted = ledger(spec)
    for items in (counted.parameters, counted.macs, counted.pointwise):
        assert len({item.name for item in items}) == len(items)
    sizes = {"D": spec.d_model, "F": spec.d_ff}
    for item in counted.parameters:
        assert item.shape == tuple(sizes[letter] for letter in item.symbols)
    assert counted.pointwise_per_token == sum(
        item.per_element * sizes[item.axis] for item in counted.pointwise
    )


@pytest.mark.parametrize(
    ("spec", "params", "macs"),
    [
        (variant("relu", d_model=4096, d_ff=16384), 134_217_728, 134_217_728),
        (variant("swiglu", d_model=4096, d_ff=11008), 135_266_304, 135_266_304),
        # gpt-oss's width, with a bias on both branches and on the output.
        (variant("gpt_oss", d_model=2880, d_ff=2880), 24_891_840, 24_883_200),
        # xIELU learns two scalars.
        (variant("xielu", d_model=8, d_ff=16), 2 * 8 * 16 + 2, 2 * 8 * 16),
    ],
)
def test_known_counts(spec, params, macs):
    assert (ledger(spec).params, ledger(spec).macs_per_token) == (params, macs)


def test_t5_base_has_the_same_parameters_at_3072_and_2048():
    classic = ledger(variant("relu", d_model=768, d_ff=3072)).params
    assert {
        ledger(variant(name, d_model=768, d_ff=2048)).params
        for name in ("glu", "bilinear", "reglu", "geglu_tanh", "swiglu", "drelu")
    } == {classic}


def test_pointwise_work_is_itemised():
    spec = variant("gpt_oss", d_model=3, d_ff=5, hidden_dropout=0.1, output_scale=0.5)
    per_element = {item.name: item.per_element for item in ledger(spec).pointwise}
    assert per_element == {
        "bias[0]": 1,
        "pre clamp[0]": 1,  # bounded above only
        "quick_gelu[0]": 5,
        "bias[1]": 1,
        "pre clamp[1]": 2,
        "offset[1]": 1,
        "product": 1,
        "dropout": 2,
        "output_bias": 1,
        "output_scale": 1,
    }
    assert ledger(spec).pointwise_per_token == 14 * 5 + 2 * 3


def test_a_linear_branch_costs_no_pointwise_work():
    assert ledger(variant("linear", d_model=3, d_ff=5)).pointwise == ()


def test_only_an_ffn_is_counted():
    with pytest.raises(SpecError, match="counts a glu_lab.spec.FFN, got str"):
        ledger("swiglu")  # pyright: ignore[reportArgumentType]


@given(st.integers(10**20, 10**30), st.integers(10**20, 10**30))
@settings(max_examples=10)
def test_counts_stay_exact_beyond_machine_words(d, f):
    assert ledger(variant("swiglu", d_model=d, d_ff=f)).params == 3 * d * f

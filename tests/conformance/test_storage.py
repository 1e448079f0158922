"""Cells of storage layouts: the function through the layout's own packing, and faults in it."""

import dataclasses

import numpy as np
import pytest

from glu_lab.conformance import storage
from glu_lab.conformance.cases import DTYPES, SPECS, specs_of
from glu_lab.conformance.cells import NOT_RUN
from glu_lab.errors import LayoutError
from glu_lab.layouts import LAYOUTS, fit, from_canonical, read_layouts
from glu_lab.oracle import ffn as oracle

INTERLEAVED = "megatron-interleave-32"


def results(layout, dtype="float64"):
    return {name: storage.run(layout, build, dtype) for name, build in SPECS.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_stores_some_spec_and_every_one_it_stores_passes(name):
    found = results(LAYOUTS[name])
    stored = {spec: result for spec, result in found.items() if result.status != "not_stored"}
    assert stored
    assert {result.status for result in stored.values()} == {"passed"}, stored
    for result in found.values():
        # Nothing is skipped without a reason.
        if result.status == "not_stored":
            assert result.status in NOT_RUN and name in result.detail
        else:
            assert result.compared.share <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_stored_dtype_is_kept(dtype):
    for name in ("hf-phi3", INTERLEAVED, "glu-lab"):
        assert storage.run(LAYOUTS[name], SPECS["swiglu"], dtype).status == "passed"


def stored(name, spec_name):
    layout = LAYOUTS[name]
    spec = SPECS[spec_name](storage.D_MODEL, storage.D_FF)
    rng = np.random.default_rng(0)
    params = {key: rng.normal(size=shape) for key, shape in oracle.shapes(spec).items()}
    tensors = from_canonical(layout, params, spec)
    return layout, spec, params, tensors, rng.normal(size=(4, storage.D_MODEL))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("hf-phi3", {"branches": (1, 0)}),  # value first
        ("hf-phi3", {"axes": "(mlp branch) embed"}),  # interleaved
        (INTERLEAVED, {"interleave": 1}),
        (INTERLEAVED, {"axes": "(branch mlp) embed", "interleave": 1}),  # concatenated
        ("x-transformers", {"branches": (0, 1)}),
    ],
)
def test_a_layout_that_says_the_wrong_packing_is_another_function(name, fault):
    """The shapes are all the same, so that only the values can tell."""
    layout, spec, params, tensors, x = stored(name, "swiglu+bias" if "x-" in name else "swiglu")
    settings = fit(layout, spec).settings
    want = oracle.forward(params, x, spec)
    right = storage.evaluate(layout, tensors, spec, settings, x, {})
    np.testing.assert_allclose(right, want, rtol=1e-12, atol=1e-12)
    rows = tuple(
        dataclasses.replace(row, **fault) if row.holds == "wi" else row for row in layout.tensors
    )
    wrong = dataclasses.replace(layout, tensors=rows)
    got = storage.evaluate(wrong, tensors, spec, settings, x, {})
    assert got.shape == want.shape and np.abs(got - want).max() > 0.1


def test_a_conversion_that_exchanges_branches_fails_the_cell(monkeypatch):
    """Both ways alike, so that the round trip alone would pass."""
    real = storage.from_canonical

    def exchanged(layout, params, spec, **how):
        return real(layout, {**params, "wi": params["wi"][..., ::-1, :]}, spec, **how)

    back = storage.to_canonical

    def exchanged_back(layout, tensors, spec, **how):
        params = back(layout, tensors, spec, **how)
        return {**params, "wi": np.ascontiguousarray(params["wi"][..., ::-1, :])}

    monkeypatch.setattr(storage, "from_canonical", exchanged)
    result = storage.run(LAYOUTS["hf-llama"], SPECS["swiglu"], "float32")
    assert result.status == "failed" and "wi came back with" in result.detail
    monkeypatch.setattr(storage, "to_canonical", exchanged_back)
    result = storage.run(LAYOUTS["hf-llama"], SPECS["swiglu"], "float32")
    assert result.status == "failed" and result.compared.share > 1e6


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda back: {**back, "wo": back["wo"].astype(np.float64)}, "wo float32"),
        (lambda back: {n: v for n, v in back.items() if n != "wo"}, "came back as ['wi']"),
        (lambda back: {**back, "wo": np.nextafter(back["wo"], np.float32(9))}, "other values"),
    ],
)
def test_what_does_not_come_back_bit_for_bit_fails(monkeypatch, change, detail):
    real = storage.to_canonical
    monkeypatch.setattr(storage, "to_canonical", lambda *a, **how: change(real(*a, **how)))
    result = storage.run(LAYOUTS["hf-llama"], SPECS["swiglu"], "float32")
    assert result.status == "failed" and detail in result.detail


def test_an_error_of_a_conversion_is_the_cells_status(monkeypatch):
    def broken(*arguments, **how):
        raise LayoutError("no such tensor")

    monkeypatch.setattr(storage, "to_canonical", broken)
    result = storage.run(LAYOUTS["hf-llama"], SPECS["swiglu"], "float32")
    assert (result.status, result.detail) == ("raised", "LayoutError: no such tensor")


def test_settings_that_name_another_function_fail():
    """What the owner's config is told decides what the owner's code computes."""
    layout, spec, params, tensors, x = stored("hf-llama", "geglu_erf")
    settings = fit(layout, spec).settings
    assert settings == {"hidden_act": "gelu"}
    want = oracle.forward(params, x, spec)
    wrong = storage.evaluate(layout, tensors, spec, {"hidden_act": "gelu_new"}, x, {})
    assert 1e-6 < np.abs(wrong - want).max() < 0.1  # tanh for erf


def test_layers_and_experts_are_told_apart():
    assert storage.leading_axes(LAYOUTS["t5x-scanned"]) == ("layer",)
    assert storage.leading_axes(LAYOUTS["mixtral"]) == ("expert",)
    assert storage.leading_axes(LAYOUTS["hf-llama"]) == ()
    spec = SPECS["swiglu"](storage.D_MODEL, storage.D_FF)
    rng = np.random.default_rng(0)
    params = {n: rng.normal(size=(2, *shape)) for n, shape in oracle.shapes(spec).items()}
    layout = LAYOUTS["mixtral-fused"]
    tensors = from_canonical(layout, params, spec, leading=("expert",))
    x = rng.normal(size=(4, storage.D_MODEL))
    settings = fit(layout, spec).settings
    for expert in (0, 1):
        got = storage.evaluate(layout, tensors, spec, settings, x, {"expert": expert})
        want = oracle.forward({n: v[expert] for n, v in params.items()}, x, spec)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


OWN = """
[[layout]]
name = "mine"
summary = "both branches, the linear half first, transposed"
num_branches = 2

[layout.function]
variant = "relu2*silu"

[[layout.tensors]]
name = "w_in"
holds = "wi"
axes = "(branch mlp) embed"
branches = [1, 0]

[[layout.tensors]]
name = "w_out"
holds = "wo"
axes = "mlp embed"
"""


def test_a_users_layout_stores_a_users_variant(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    layout = read_layouts(path)["mine"]
    (build, *_) = specs_of(["relu2*silu"]).values()
    assert storage.run(layout, build, "bfloat16").status == "passed"
    assert storage.run(layout, SPECS["swiglu"], "bfloat16").status == "not_stored"

"""The shape ledger names what is held in memory between an FFN's input and output."""

import numpy as np
import pytest

from glu_lab.budget import shape_ledger
from glu_lab.errors import SpecError, UnknownNameError
from glu_lab.spec import FFN, Activation, Branch, variant

MIB = 2**20


def sizes(shapes) -> dict[str, int]:
    return {tensor.name: tensor.bytes for tensor in shapes.tensors}


def test_swiglu_holds_four_hidden_tensors():
    shapes = shape_ledger(variant("swiglu", d_model=4096, d_ff=11008), rows=8192)
    assert sizes(shapes) == {
        "x": 64 * MIB,
        "a0": 172 * MIB,  # gate
        "v0": 172 * MIB,  # silu(gate)
        "a1": 172 * MIB,  # up, which is its own φ value
        "H": 172 * MIB,
        "y": 64 * MIB,
    }
    assert shapes.intermediate_bytes == 688 * MIB
    assert [t.name for t in shapes.tensors if t.saved] == ["x", "a0", "v0", "a1", "H"]
    assert shapes.saved_bytes == (64 + 688) * MIB


def test_a_classic_ffn_holds_two_hidden_tensors():
    shapes = shape_ledger(variant("relu", d_model=4096, d_ff=16384), rows=8192)
    assert sizes(shapes) == {"x": 64 * MIB, "a0": 256 * MIB, "v0": 256 * MIB, "y": 64 * MIB}
    assert shapes.intermediate_bytes == 512 * MIB


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float64", 8), ("float16", 2)])
def test_bytes_follow_the_dtype(dtype, itemsize):
    shapes = shape_ledger(variant("bilinear", d_model=3, d_ff=5), rows=7, dtype=dtype)
    assert sizes(shapes) == {
        name: 7 * width * itemsize
        for name, width in [("x", 3), ("a0", 5), ("a1", 5), ("H", 5), ("y", 3)]
    }


def test_clamps_and_offsets_make_tensors_of_their_own():
    shapes = shape_ledger(variant("gpt_oss", d_model=4, d_ff=8), rows=2)
    assert [t.name for t in shapes.tensors] == ["x", "a0", "c0", "v0", "a1", "c1", "f1", "H", "y"]
    assert shapes["f1"].formula == "c1 + 1"
    # The linear branch's clamped value is read by nobody: its factor is one more tensor.
    assert not shapes["c1"].saved
    assert shapes["a1"].needed_by == "clamp mask of c1"


def test_dropout_keeps_the_dropped_product_and_the_mask_but_not_the_product():
    shapes = shape_ledger(variant("swiglu", d_model=4, d_ff=8, hidden_dropout=0.25), rows=6)
    assert shapes["mask"].bytes == 6 * 8  # one byte an element, whatever the dtype
    assert {t.name for t in shapes.tensors if not t.saved} == {"H", "y"}


@pytest.mark.parametrize(
    ("shared", "shape"),
    [(("position",), (3, 1, 8)), (("batch",), (1, 2, 8)), (("batch", "position"), (1, 1, 8))],
)
def test_a_shared_mask_has_the_size_of_what_is_drawn(shared, shape):
    spec = variant("swiglu", d_model=4, d_ff=8, hidden_dropout=0.25, hidden_dropout_shared=shared)
    mask = shape_ledger(spec, rows=6, sequences=3)["mask"]
    assert (mask.shape, mask.row_elements) == (shape, None)
    assert mask.bytes == mask.elements == np.prod(shape)


def test_what_is_saved_is_enough_for_every_gradient():
    """Computes all gradients from the tensors marked as saved, and checks them numerically."""
    rng = np.random.default_rng(0)
    spec = FFN(
        d_model=3,
        d_ff=4,
        branches=(
            Branch(activation=Activation("tanh"), bias=True, scale=0.7, pre=(-0.5, 0.9)),
            Branch(activation=Activation("relu2"), post=(0.0, 0.6), offset=1.0),
        ),
        output_scale=0.5,
    )
    x, wi, bias = rng.normal(size=(5, 3)), rng.normal(size=(2, 3, 4)), rng.normal(size=4)
    wo, dy = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))

    def forward(wi, bias, wo):
        t = {"x": x, "a0": 0.7 * (x @ wi[0] + bias), "a1": x @ wi[1]}
        t["c0"] = np.clip(t["a0"], -0.5, 0.9)
        t["v0"] = np.tanh(t["c0"])
        t["v1"] = np.maximum(t["a1"], 0) ** 2
        t["f1"] = np.clip(t["v1"], 0.0, 0.6) + 1.0
        t["H"] = t["v0"] * t["f1"]
        t["y"] = 0.5 * (t["H"] @ wo)
        return t

    made = forward(wi, bias, wo)
    shapes = shape_ledger(spec, rows=5, dtype="float64")
    assert [t.name for t in shapes.tensors] == ["x", "a0", "c0", "v0", "a1", "v1", "f1", "H", "y"]
    for tensor in shapes.tensors:
        assert made[tensor.name].shape == tensor.shape
        assert made[tensor.name].nbytes == tensor.bytes
    saved = {t.name: made[t.name] for t in shapes.tensors if t.saved}  # a KeyError is a failure

    d_wo = 0.5 * saved["H"].T @ dy
    d_h = 0.5 * dy @ wo.T
    inside = (saved["a0"] > -0.5) & (saved["a0"] < 0.9)
    d_a0 = d_h * saved["f1"] * (1 - np.tanh(saved["c0"]) ** 2) * inside
    unclamped = (saved["v1"] > 0.0) & (saved["v1"] < 0.6)
    d_a1 = d_h * saved["v0"] * unclamped * 2 * np.maximum(saved["a1"], 0)
    d_wi = np.stack([0.7 * saved["x"].T @ d_a0, saved["x"].T @ d_a1])
    d_bias = 0.7 * d_a0.sum(0)

    def loss(wi, bias, wo):
        return np.sum(forward(wi, bias, wo)["y"] * dy)

    for index, (array, gradient) in enumerate([(wi, d_wi), (bias, d_bias), (wo, d_wo)]):
        direction = rng.normal(size=array.shape)
        step = 1e-6
        arguments = [wi, bias, wo]
        arguments[index] = array + step * direction
        above = loss(*arguments)
        arguments[index] = array - step * direction
        # Central differences in float64: error about step² + 1e-16/step, well under 1e-7.
        assert (above - loss(*arguments)) / (2 * step) == pytest.approx(
            np.sum(gradient * direction), abs=1e-7
        )


def test_bad_requests_are_refused():
    spec = variant("relu", d_model=2, d_ff=2)
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        shape_ledger(spec, dtype="bfloat")
    with pytest.raises(SpecError, match="rows must be an integer ≥ 1, got 0"):
        shape_ledger(spec, rows=0)
    with pytest.raises(SpecError, match="rows=5 is not a whole number of positions in 2"):
        shape_ledger(spec, rows=5, sequences=2)
    with pytest.raises(UnknownNameError, match="Choices: x, a0, v0, y"):
        shape_ledger(spec)["H"]

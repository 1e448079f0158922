"""The oracle itself: other writings of the formula, complex steps and central differences."""

import math
import subprocess
import sys

import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import packing
from glu_lab.spec import variant
from tests.layers import oracle as first_writing
from tests.oracle.cases import (
    SPECS,
    TEXTS,
    D,
    F,
    everything,
    plain,
    random_mask,
    random_params,
    random_rows,
)

STEP = 1e-30  # of a complex step: its square is no float64, so that nothing is truncated


def case(name, rows=3):
    spec = SPECS[name]
    keep = random_mask(spec, rows) if spec.hidden_dropout else None
    return spec, random_params(spec), random_rows(rows, D), keep


def moved(params, name, direction, step):
    return {**params, name: params[name] + step * direction}


def test_the_oracle_loads_neither_jax_nor_the_code_that_it_judges():
    program = (
        "import sys, glu_lab.oracle.ffn, glu_lab.oracle.packing; "
        "print([m for m in sys.modules if m.split('.')[0] in ('jax', 'flax') "
        "or m.startswith(('glu_lab.layers', 'glu_lab.activations'))])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("name", SPECS)
def test_forward_is_the_formula_as_written_elsewhere(name):
    spec, params, x, keep = case(name)
    want = first_writing.ffn(params, x, spec, keep=1 if keep is None else keep)
    # Two orders of summation of at most 6 terms.
    np.testing.assert_allclose(oracle.forward(params, x, spec, keep=keep), want, atol=1e-13)


def test_gpt_oss_is_the_scalar_loop():
    """One sum at a time with Python's own numbers, clamps written as min and max."""
    spec, params, x, _ = case("gpt_oss")
    x = 5 * x
    y = oracle.forward(params, x, spec)
    clamped = 0
    for t in range(len(x)):
        hidden = []
        for f in range(F):
            gate, up = (
                sum(x[t, d] * params["wi"][d, i, f] for d in range(D)) + params[f"bi_{i}"][f]
                for i in (0, 1)
            )
            clamped += gate > 7 or abs(up) > 7
            gate, up = min(gate, 7.0), max(min(up, 7.0), -7.0)
            hidden.append(gate / (1 + math.exp(-1.702 * gate)) * (up + 1))
        for d in range(D):
            want = sum(hidden[f] * params["wo"][f, d] for f in range(F)) + params["bo"][d]
            assert y[t, d] == pytest.approx(want, rel=1e-12, abs=1e-12)
    assert clamped > 3


@pytest.mark.parametrize("name", SPECS)
def test_every_gradient_is_the_complex_step_element_by_element(name):
    spec, params, x, keep = case(name)
    upstream = random_rows(3, D, seed=5)
    by_x, grads = oracle.backward(params, x, spec, upstream, keep=keep)
    assert {n: g.shape for n, g in grads.items()} == oracle.shapes(spec)

    def loss(params, x):
        return np.sum(oracle.forward(params, x, spec, keep=keep) * upstream)

    def steps(array, with_step):
        out = np.zeros(np.shape(array))
        for index in np.ndindex(out.shape):
            one = np.zeros(out.shape)
            one[index] = 1.0
            out[index] = np.imag(with_step(one)) / STEP
        return out

    # Nothing is truncated; what is left is the rounding of sums of at most 30 terms.
    for key, value in params.items():
        want = steps(value, lambda one, key=key: loss(moved(params, key, one, 1j * STEP), x))
        np.testing.assert_allclose(grads[key], want, rtol=1e-12, atol=1e-13, err_msg=key)
    want = steps(x, lambda one: loss(params, x + 1j * STEP * one))
    np.testing.assert_allclose(by_x, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", SPECS)
def test_every_gradient_is_the_central_difference_along_a_direction(name):
    """Real numbers alone: a fault of the complex continuation could hide one of the gradient."""
    spec, params, x, keep = case(name)
    upstream, step = random_rows(3, D, seed=5), 1e-6
    by_x, grads = oracle.backward(params, x, spec, upstream, keep=keep)
    rng = np.random.default_rng(11)

    def loss(params, x):
        return float(np.sum(oracle.forward(params, x, spec, keep=keep) * upstream))

    for key, value in params.items():
        along = rng.normal(size=value.shape)
        rise = loss(moved(params, key, along, step), x) - loss(moved(params, key, along, -step), x)
        # Truncation h² and rounding u/h: 1e-10 of the loss; no kink of these seeds is that near.
        want = pytest.approx(rise / (2 * step), rel=1e-6, abs=1e-7)
        assert float(np.sum(grads[key] * along)) == want, key
    along = rng.normal(size=x.shape)
    rise = loss(params, x + step * along) - loss(params, x - step * along)
    assert float(np.sum(by_x * along)) == pytest.approx(rise / (2 * step), rel=1e-6, abs=1e-7)


def test_second_derivatives_come_out_of_a_complex_step_of_the_gradients():
    spec, params, x, _ = case("swiglu")
    upstream, along = random_rows(3, D, seed=5), random_rows(3, D, seed=6)

    def by_wi(x):
        return oracle.backward(params, x, spec, upstream)[1]["wi"]

    exact = np.imag(by_wi(x + 1j * STEP * along)) / STEP
    difference = (by_wi(x + 1e-5 * along) - by_wi(x - 1e-5 * along)) / 2e-5
    np.testing.assert_allclose(exact, difference, rtol=1e-7, atol=1e-8)


def test_output_and_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    spec = variant("swiglu", d_model=D, d_ff=F, bias=True)
    params, x, upstream = random_params(spec), random_rows(3, D), random_rows(3, D, seed=5)
    held = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    rows = torch.tensor(x, requires_grad=True)
    gate = torch.nn.functional.linear(rows, held["wi"][:, 0].T, held["bi_0"])
    up = torch.nn.functional.linear(rows, held["wi"][:, 1].T, held["bi_1"])
    y = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, held["wo"].T, held["bo"])
    y.backward(torch.tensor(upstream))
    by_x, grads = oracle.backward(params, x, spec, upstream)
    # Orders of summation of at most 6 terms.
    np.testing.assert_allclose(oracle.forward(params, x, spec), y.detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(by_x, rows.grad.numpy(), atol=1e-13)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, held[name].grad.numpy(), atol=1e-13, err_msg=name)


@pytest.mark.parametrize("name", SPECS)
def test_jacobian_is_the_complex_step_of_each_row(name):
    spec, params, x, _ = case(name)
    got = oracle.jacobian(params, x, spec)
    for d in range(D):
        want = np.imag(oracle.forward(params, x + 1j * STEP * np.eye(D)[d], spec)) / STEP
        np.testing.assert_allclose(got[:, d, :], want, rtol=1e-12, atol=1e-13)


def test_jacobian_of_a_gated_pair_has_the_two_paths():
    """[W_g diag(U ⊙ φ′(G)) + W_u diag(φ(G))] W_o, with σ(G)(1 + G σ(−G)) for SiLU's φ′."""
    spec, params, x, _ = case("swiglu")
    gate, up, down = params["wi"][:, 0], params["wi"][:, 1], params["wo"]
    for t, row in enumerate(x):
        G, U = row @ gate, row @ up
        sigma = 1 / (1 + np.exp(-G))
        slope = sigma * (1 + G * (1 - sigma))
        want = (gate @ np.diag(U * slope) + up @ np.diag(G * sigma)) @ down
        np.testing.assert_allclose(oracle.jacobian(params, x, spec)[t], want, atol=1e-13)


def test_masks_drop_scale_and_may_be_shared():
    spec = plain("silu").replace(hidden_dropout=0.75)
    params, x = random_params(spec), random_rows(2, 3, D)
    keep = np.array([True, False, True, False, False, True])
    whole = oracle.forward(params, x, spec, keep=np.broadcast_to(keep, (2, 3, F)))
    np.testing.assert_array_equal(oracle.forward(params, x, spec, keep=keep), whole)
    thinned = {"wi": params["wi"][..., keep], "wo": 4 * params["wo"][keep]}
    want = oracle.forward(thinned, x, spec.replace(d_ff=3, hidden_dropout=0.0))
    np.testing.assert_allclose(whole, want, atol=1e-13)
    _, grads = oracle.backward(params, x, spec, np.ones_like(x), keep=keep)
    assert not np.any(grads["wo"][~keep]) and not np.any(grads["wi"][..., ~keep])


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize("text", TEXTS)
def test_slices_of_channels_sum_to_the_whole(text, parts):
    spec = everything(text)
    params, x, upstream = random_params(spec), random_rows(3, D), random_rows(3, D, seed=5)
    keep = random_mask(spec, 3)
    whole = oracle.forward(params, x, spec, keep=keep)
    split = oracle.parallel_forward(params, x, spec, parts, keep=keep)
    np.testing.assert_allclose(split, whole, rtol=1e-12, atol=1e-13)
    by_x, grads = oracle.backward(params, x, spec, upstream, keep=keep)
    split_x, split_grads = oracle.parallel_backward(params, x, spec, upstream, parts, keep=keep)
    np.testing.assert_allclose(split_x, by_x, rtol=1e-12, atol=1e-13)
    assert split_grads.keys() == grads.keys()
    for name, gradient in grads.items():
        np.testing.assert_allclose(
            split_grads[name], gradient, rtol=1e-12, atol=1e-13, err_msg=name
        )


def test_the_output_bias_is_added_once_however_many_slices():
    spec = variant("swiglu", d_model=D, d_ff=F, bias=True, output_scale=0.5)
    params = {name: np.zeros(shape) for name, shape in oracle.shapes(spec).items()}
    params["bo"] = np.arange(4.0)
    y = oracle.parallel_forward(params, np.ones((2, D)), spec, 3)
    np.testing.assert_array_equal(y, np.broadcast_to(0.5 * np.arange(4.0), (2, D)))


def test_a_rank_holds_its_channels_of_every_branch():
    spec = plain("swiglu")
    params = random_params(spec)
    ranks = oracle.shard(params, spec, 2)
    np.testing.assert_array_equal(ranks[1]["wi"], params["wi"][:, :, 3:])
    np.testing.assert_array_equal(ranks[1]["wo"], params["wo"][3:])


@pytest.mark.parametrize("block", [1, 3, 6])
def test_a_packed_projection_is_the_same_function_under_its_own_order_alone(block):
    """[up; gate] multiplied first and read after, beside two products."""
    spec, params, x, _ = case("swiglu")
    packed = packing.pack(params["wi"], order=(1, 0), block=block)
    projected = packing.unpack(x @ packed, order=(1, 0), block=block)
    y = oracle.hidden(params, [projected[:, 0], projected[:, 1]], spec) @ params["wo"]
    want = oracle.forward(params, x, spec)
    np.testing.assert_allclose(y, want, atol=1e-13)
    gate_first = packing.unpack(packed, order=(0, 1), block=block)
    wrong = oracle.forward({**params, "wi": gate_first}, x, spec)
    assert wrong.shape == want.shape and np.abs(wrong - want).max() > 0.1


def test_on_the_bound_of_a_clamp_the_gradient_is_zero():
    spec = variant("gpt_oss", d_model=1, d_ff=1, bias=False)
    params = {"wi": np.array([[[7.0], [-7.0]]]), "wo": np.ones((1, 1))}
    by_x, grads = oracle.backward(params, [[1.0]], spec, [[1.0]])
    assert not np.any(by_x) and not np.any(grads["wi"])


def test_narrow_arrays_are_widened_before_anything_is_computed():
    spec = plain("swiglu")
    narrow = {n: v.astype(np.float16) for n, v in random_params(spec).items()}
    x = random_rows(3, D).astype(np.float16)
    exact = {n: v.astype(np.float64) for n, v in narrow.items()}
    got = oracle.forward(narrow, x, spec)
    np.testing.assert_array_equal(got, oracle.forward(exact, x.astype(np.float64), spec))


def test_spread_grows_where_terms_cancel():
    """Y is 0 in both rows; only a sum of large terms has something to lose."""
    spec = variant("linear", d_model=2, d_ff=1)
    params = {"wi": np.array([[[1.0]], [[-1.0]]]), "wo": np.ones((1, 2))}
    x = np.array([[0.0, 0.0], [3.0, 3.0]])
    np.testing.assert_array_equal(oracle.forward(params, x, spec), np.zeros((2, 2)))
    # √(3² + 3²): two terms of size 3.
    spread = oracle.spread(params, x, spec)
    np.testing.assert_allclose(spread, [[0, 0], [18**0.5, 18**0.5]], rtol=1e-15)
    # Terms of one sign: 3² + 3², the sum's own 6², and 6² of the hidden state.
    same = {**params, "wi": np.ones((2, 1, 1))}
    np.testing.assert_allclose(oracle.spread(same, x, spec)[1], [90**0.5] * 2, rtol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(spec="swiglu"), "computes an FFN Spec, got str"),
        (dict(params={}), r"has parameters \['wi', 'wo'\], got \[\]"),
        (dict(params={"wi": np.zeros((D, 1, F)), "wo": np.zeros((F, D))}), r"'wi' must have shape"),
        (dict(x=np.zeros((3, D + 1))), f"width d_model={D}, got shape"),
        (dict(x=np.zeros(())), f"width d_model={D}, got shape"),
        (dict(keep=np.ones((2, F))), r"must spread to \(3, 6\), got \(2, 6\)"),
        (dict(keep=np.ones((1, 1, 1, F))), r"must spread to \(3, 6\)"),
        (dict(upstream=np.zeros((3, D + 1))), "upstream gradient must have shape"),
    ],
)
def test_what_does_not_fit_the_spec_is_refused(change, message):
    spec = plain("swiglu")
    given = dict(params=random_params(spec), x=random_rows(3, D), spec=spec, keep=None)
    given = {"upstream": np.zeros((3, D)), **given, **change}
    with pytest.raises(SpecError, match=message):
        oracle.backward(**given)


@pytest.mark.parametrize("parts", [4, 0, -1, 2.0, True])
def test_slices_that_do_not_divide_are_refused_with_those_that_do(parts):
    spec = plain("swiglu")
    with pytest.raises(SpecError, match="choose from 1, 2, 3, 6"):
        oracle.parallel_forward(random_params(spec), random_rows(3, D), spec, parts)

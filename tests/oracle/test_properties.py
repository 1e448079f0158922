"""What holds of every variant, on the layers and on the oracle; and what breaks it."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import UnknownNameError
from glu_lab.layers import ffn
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import properties
from glu_lab.oracle.properties import ORACLE, PROPERTIES, Subject, measure
from glu_lab.spec import VARIANTS, variant
from glu_lab.spec.numerics import Numerics
from tests.oracle.cases import D, F, random_params, random_rows

F64 = Numerics.uniform("float64")
TEXTS = (*VARIANTS, "silu*silu", "swish_learned*linear", "xielu")


@functools.cache
def compiled(spec):
    """The layers' output and pull-back: one compilation a Spec, since shapes never change."""

    def both(params, x, upstream):
        y, pull = jax.vjp(lambda p, x: ffn.apply(p, x, spec, numerics=F64), params, x)
        by_params, by_x = pull(upstream)
        return y, by_x, by_params

    return jax.jit(both)


def run(params, x, spec, upstream):
    with jax.enable_x64(True):
        held = {name: jnp.asarray(value) for name, value in params.items()}
        return compiled(spec)(held, jnp.asarray(x), jnp.asarray(upstream))


LAYERS = Subject(
    forward=lambda params, x, spec: run(params, x, spec, np.zeros_like(x))[0],
    backward=lambda params, x, spec, upstream: run(params, x, spec, upstream)[1:],
)


def case(text, d_model=D, d_ff=F, seed=1):
    spec = variant(text, d_model=d_model, d_ff=d_ff, bias=True)
    return random_params(spec, seed), random_rows(3, d_model, seed=seed), spec


def holds(name, subject, params, x, spec):
    value = measure(name, subject, params, x, spec)
    assert value is not None, f"{name} says nothing of {spec}"
    return value <= 1


@pytest.mark.parametrize("text", TEXTS)
def test_every_property_holds_of_the_layers(text):
    params, x, spec = case(text)
    shares = {name: measure(name, LAYERS, params, x, spec) for name in PROPERTIES}
    said = {name: value for name, value in shares.items() if value is not None}
    assert all(value <= 1 for value in said.values()), said
    gated, pieces = len(spec.branches) > 1, properties.degree(spec) is not None
    silent = {"region": not pieces, "branch_exchange": not gated}
    assert said.keys() == {name for name in PROPERTIES if not silent.get(name)}


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_of_the_layers_are_the_oracles(text):
    params, x, spec = case(text)
    upstream = random_rows(3, D, seed=5)
    by_x, grads = LAYERS.backward(params, x, spec, upstream)
    want_x, want = oracle.backward(params, x, spec, upstream)
    # Two orders of at most three sums of 6 terms.
    np.testing.assert_allclose(by_x, want_x, rtol=1e-12, atol=1e-13)
    for name, gradient in want.items():
        np.testing.assert_allclose(grads[name], gradient, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("text", [text for text in TEXTS if len(case(text)[2].branches) > 1])
def test_exchange_changes_the_output_but_for_equal_branches(text):
    params, x, spec = case(text)
    y = oracle.forward(params, x, spec)
    swapped = properties.exchanged(params, spec, (1, 0))
    moved = np.abs(oracle.forward(swapped, x, spec) - y).max()
    if text in ("bilinear", "drelu", "silu*silu"):
        assert moved <= 1e-14
    else:
        assert moved > 1e-3


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("text", TEXTS)
def test_every_property_holds_of_the_oracle_in_a_narrow_network_too(text, name):
    for d_model, d_ff, seed in [(4, 6, 2), (6, 3, 3), (5, 1, 5)]:
        value = measure(name, ORACLE, *case(text, d_model, d_ff, seed))
        assert value is None or value <= 1


def test_polynomial_regions_are_those_of_the_relu_family():
    degrees = {name: properties.degree(variant(name, d_model=2, d_ff=2)) for name in VARIANTS}
    known = {name: value for name, value in degrees.items() if value is not None}
    assert known == {"relu": 1, "relu2": 2, "bilinear": 2, "reglu": 2, "drelu": 2}


def faulty(forward=None, backward=None):
    """The oracle with a fault added to its output or its gradients, of the same arguments."""

    def changed_forward(params, x, spec):
        y = oracle.forward(params, x, spec)
        return forward(y, params, x, spec) if forward else y

    def changed_backward(params, x, spec, upstream):
        by_x, grads = oracle.backward(params, x, spec, upstream)
        return backward(by_x, grads, params, x, spec, upstream) if backward else (by_x, grads)

    return Subject(changed_forward, changed_backward)


def without_up_path(by_x, grads, params, x, spec, upstream):
    """The gradient of one who takes the linear branch of ReGLU for a constant."""
    gate = oracle.affine(params, x, spec)[0]
    up_path = (upstream @ params["wo"].T * np.maximum(gate, 0)) @ params["wi"][:, 1].T
    return by_x - up_path, grads


def bent(y, params, x, spec):
    return y + 1e-6 * np.sin(3 * x)


FAULTS = {
    "permutation: a position is added": (
        "permutation",
        faulty(lambda y, params, x, spec: y + 1e-9 * np.arange(len(y))[:, None]),
    ),
    "jacobian: rows meet by one part in 10³⁰": (
        "jacobian",
        faulty(backward=lambda dx, grads, *_: (dx + 1e-30 * dx.sum(axis=0), grads)),
    ),
    "jacobian: one path of two": ("jacobian", faulty(backward=without_up_path)),
    "kernel_one_convolution: neighbours": (
        "kernel_one_convolution",
        faulty(lambda y, params, x, spec: y + 1e-9 * np.roll(y, 1, axis=0)),
    ),
    "region: a little curvature": ("region", faulty(bent)),
    "region: no curvature": ("region", faulty(lambda y, params, x, spec: 0 * y)),
    "collapse: a little curvature": ("collapse", faulty(bent)),
    "outer_products: a row counts twice": (
        "outer_products",
        faulty(
            backward=lambda dx, grads, params, x, spec, upstream: (
                dx,
                {**grads, "wo": grads["wo"] + 1e-9 * np.outer(np.ones(F), x[0])},
            )
        ),
    ),
    "branch_exchange: φ on the product": (
        "branch_exchange",
        Subject(
            lambda params, x, spec: (
                np.maximum(math.prod(oracle.affine(params, x, spec)), 0) @ params["wo"]
            ),
            oracle.backward,
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_breaks_its_property(fault):
    name, subject = FAULTS[fault]
    assert holds(name, ORACLE, *case("reglu"))
    assert not holds(name, subject, *case("reglu"))


def test_a_slot_that_is_favoured_breaks_the_exchange_of_equal_branches():
    def favoured(y, params, x, spec):
        return oracle.forward({**params, "bi_0": params["bi_0"] + 1e-9}, x, spec)

    assert not holds("branch_exchange", faulty(favoured), *case("drelu"))


def test_phi_that_is_not_removed_breaks_the_collapse():
    def with_phi(y, params, x, spec):
        return oracle.forward(params, x, variant("silu", d_model=D, d_ff=F, bias=True))

    assert not holds("collapse", faulty(with_phi), *case("silu"))


@pytest.mark.parametrize(("d_model", "d_ff"), [(6, 3), (3, 6)])
def test_the_collapsed_map_has_the_rank_of_its_narrowest_layer(d_model, d_ff):
    """Also in the layers, which compute it with no φ; with φ the narrow one's outputs span more."""
    params, x, spec = case("linear", d_model, d_ff)
    full = properties._jacobian(LAYERS, params, x, spec)
    assert np.linalg.matrix_rank(full[0, :, 0, :]) == 3
    np.testing.assert_allclose(full[0, :, 0, :], full[2, :, 2, :], rtol=1e-13, atol=1e-14)
    y = oracle.forward(params, random_rows(40, d_model), spec) - params["bo"]
    assert np.linalg.matrix_rank(y - y.mean(axis=0)) == 3


def test_across_a_kink_a_relu_is_not_affine():
    """The region's step is what makes it so: a step twenty times longer crosses kinks."""
    params, x, spec = case("relu")
    step = properties.within_region(params, x, spec, 2)
    inside, bound = properties.differences(ORACLE, params, x, step, spec, 2)
    assert np.abs(inside).max() <= bound
    across, bound = properties.differences(ORACLE, params, x, 20 * step, spec, 2)
    assert np.abs(across).max() > 1e6 * bound


def test_a_wider_kernel_couples_neighbours_and_width_one_does_not():
    x, kernel = random_rows(5, D), np.random.default_rng(0).normal(size=(3, D, F))
    moved = x.copy()
    moved[2] += 1.0
    wide = properties.convolution(moved, kernel) - properties.convolution(x, kernel)
    one = properties.convolution(moved, kernel[1:2]) - properties.convolution(x, kernel[1:2])
    np.testing.assert_array_equal(np.any(wide, axis=1), [False, True, True, True, False])
    np.testing.assert_array_equal(np.any(one, axis=1), [False, False, True, False, False])


def test_the_convolution_is_torchs():
    torch = pytest.importorskip("torch")
    x, kernel = random_rows(5, D), np.random.default_rng(0).normal(size=(3, D, F))
    for width in (kernel, kernel[1:2]):
        weight = torch.tensor(width.transpose(2, 1, 0).copy())
        rows = torch.tensor(x.T[None].copy())
        want = torch.nn.functional.conv1d(rows, weight, padding=len(width) // 2)[0].T.numpy()
        np.testing.assert_allclose(properties.convolution(x, width), want, atol=1e-13)


def test_exchange_needs_equal_scalars_of_equal_activations():
    params, x, spec = case("swish_learned*swish_learned")
    assert holds("branch_exchange", ORACLE, params, x, spec)
    same = {**params, "phi_1_beta": params["phi_0_beta"]}
    assert properties._alike(same, spec, 0, 1) and not properties._alike(params, spec, 0, 1)
    assert holds("branch_exchange", ORACLE, same, x, spec)


def test_a_bias_on_one_branch_alone_makes_equal_branches_differ():
    params, x, spec = case("drelu")
    first, second = spec.branches
    bare = spec.replace(branches=(first, dataclasses.replace(second, bias=False)))
    kept = {name: params[name] for name in oracle.shapes(bare)}
    assert holds("branch_exchange", ORACLE, kept, x, bare)
    assert not properties._alike(kept, bare, 0, 1)


def test_an_unknown_property_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'permutation'"):
        measure("permutations", ORACLE, *case("relu"))

"""The lab's own fused gate: the formula, and its derivative, in every number format."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from glu_lab.conformance.failures.checks import CHECKS
from glu_lab.conformance.failures.functions import FusedGate
from glu_lab.conformance.failures.fused import gated
from glu_lab.conformance.failures.rows.release import by_difference, with_narrow_path
from glu_lab.errors import SpecError
from glu_lab.spec import variant

SPEC = variant("swiglu", d_model=2, d_ff=1)
CLAMPED = variant("gpt_oss", d_model=2, d_ff=1, bias=False)


def test_a_clamped_gate_is_its_formula_at_twenty_and_minus_twenty():
    """min(20, 7)·σ(1.702·7)·(max(−20, −7) + 1)."""
    hidden = gated(CLAMPED)(jnp.float32(20), jnp.float32(-20))
    assert float(hidden) == pytest.approx(7 * special.expit(1.702 * 7) * -6, rel=1e-6)


@pytest.mark.parametrize("spec", [SPEC, CLAMPED], ids=["swiglu", "gpt_oss"])
def test_the_pull_back_is_the_slope_of_the_forward_pass(spec):
    gate, up = np.random.default_rng(0).normal(size=(2, 50)) * 6
    with jax.enable_x64(True):
        kernel = gated(spec)

        def value(g, u):
            return np.asarray(kernel(jnp.asarray(g), jnp.asarray(u)))

        by_gate, by_up = jax.vjp(kernel, jnp.asarray(gate), jnp.asarray(up))[1](jnp.ones(50))
        # Central differences: truncation h² and rounding 1e-15/h, both about 1e-10.
        step = 1e-5
        want_gate = (value(gate + step, up) - value(gate - step, up)) / (2 * step)
        want_up = (value(gate, up + step) - value(gate, up - step)) / (2 * step)
    np.testing.assert_allclose(by_gate, want_gate, atol=1e-8)
    np.testing.assert_allclose(by_up, want_up, atol=1e-8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_right_kernel_passes_in_each_format_that_ships(dtype):
    for name in ("fused values", "rounding point"):
        found = CHECKS[name].run(FusedGate(function=gated(SPEC), spec=SPEC, dtype=dtype))
        assert found.passes, found.text


def test_where_phi_is_rounded_shows_in_a_quarter_of_the_elements():
    first = FusedGate(function=gated(SPEC, rounded_first=True), spec=SPEC)
    found = CHECKS["rounding point"].run(first)
    assert not found.passes
    share = int(found.text.split("%")[0])
    assert 20 <= share <= 35


def test_a_strict_float32_test_does_not_find_a_fault_of_the_narrow_path():
    """At −8 in bfloat16, 1 − σ(8) is 0, and SiLU is −0.0027."""
    kernel = with_narrow_path(by_difference)
    assert float(kernel(jnp.bfloat16(-8), jnp.bfloat16(1))) == 0.0
    in_float32 = FusedGate(function=kernel, spec=SPEC, dtype="float32")
    shipped = FusedGate(function=kernel, spec=SPEC, dtype="bfloat16")
    assert CHECKS["fused values"].run(in_float32).passes
    found = CHECKS["fused values"].run(shipped)
    assert not found.passes and found.text.startswith("bfloat16, gate -")


def test_a_form_that_the_kernel_does_not_compute_is_refused():
    for spec in (
        variant("silu", d_model=2, d_ff=1),
        variant("swiglu", d_model=2, d_ff=1, bias=True),
        variant("swish_learned*linear", d_model=2, d_ff=1),
    ):
        with pytest.raises(SpecError, match="two branches without"):
            gated(spec)

"""Statistics of activations, against NumPy on the arrays themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.layers import ffn
from glu_lab.models import Transformer
from glu_lab.models.transformer import INTERMEDIATES
from glu_lab.spec import variant
from glu_lab.training.programs import dropout_key, program_key, programs
from glu_lab.training.telemetry import (
    exact_zero_fraction,
    first_non_finite,
    observe,
    report,
)
from tests.training.small import metrics_lines

#: A token-level layout as in the model: (B, S, D), (B, S, N, F) or (B, S, F).
SHAPES = {
    "input": (2, 5, 8),
    "pre_activation": (2, 5, 2, 12),
    "branches": (2, 5, 2, 12),
    "product": (2, 5, 12),
    "output": (2, 5, 8),
}


def values(name, scale=2.0):
    return scale * np.random.default_rng(len(name)).normal(size=SHAPES[name]).astype(np.float32)


def observed(name, x):
    return {k: np.asarray(v) for k, v in observe(name, jnp.asarray(x)).items()}


def test_exact_zeros_and_small_values_of_relu():
    x = values("branches")
    x[..., 0, :] = np.maximum(x[..., 0, :], 0)
    x[..., 1, :5] = 1e-4
    got = observed("branches", x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got["exact_zero"], (wide == 0).mean(axis=(0, 1, 3)), rtol=1e-6)
    np.testing.assert_allclose(got["small"], (abs(wide) < 1e-3).mean(axis=(0, 1, 3)), rtol=1e-6)
    np.testing.assert_allclose(got["rms"], np.sqrt((wide**2).mean(axis=(0, 1, 3))), rtol=1e-6)
    assert 0.3 < got["exact_zero"][0] < 0.7 and got["exact_zero"][1] == 0


def test_product_and_residual_sizes():
    for name in ("product", "input", "output"):
        x = values(name)
        got = observed(name, x)
        assert got["rms"] == pytest.approx(np.sqrt((x.astype(np.float64) ** 2).mean()), rel=1e-6)
        assert got["non_finite"] == 0


def test_moments_quantiles_and_correlation_of_pre_activations():
    x = values("pre_activation")
    x[..., 1, :] += 0.5 * x[..., 0, :] - 1.0
    got = observed("pre_activation", x)
    flat = np.moveaxis(x.astype(np.float64), 2, 0).reshape(2, -1)
    np.testing.assert_allclose(got["mean"], flat.mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["std"], flat.std(axis=1), rtol=1e-5)
    expected = np.quantile(flat, [0.01, 0.25, 0.5, 0.75, 0.99], axis=1).T
    np.testing.assert_allclose(got["quantiles"], expected, rtol=1e-5, atol=1e-6)
    assert got["correlation"] == pytest.approx(np.corrcoef(flat)[0, 1], rel=1e-5)


def test_saturated_units_pass_no_gradient():
    """Through the FFN itself, which hands out the slopes of its activations."""
    x = jnp.asarray(5 * values("input"))
    for text in ("glu", "reglu"):
        spec = variant(text, d_model=8, d_ff=12)
        params = ffn.init(jax.random.key(0), spec)
        seen = {}
        ffn.apply(params, x, spec, tap=lambda name, value, seen=seen: seen.update({name: value}))
        got = np.asarray(observe("slopes", seen["slopes"])["saturated"])
        wi = np.asarray(params["wi"], np.float64)
        gate = np.asarray(x, np.float64) @ wi[:, 0]
        if text == "glu":
            sigmoid = 1 / (1 + np.exp(-gate))
            expected = (sigmoid * (1 - sigmoid) < 1e-3).mean()
        else:
            expected = (gate <= 0).mean()
        assert 0.1 < expected < 0.9
        assert got[0] == pytest.approx(expected, abs=1e-6), text
        assert got[1] == 0  # A linear branch never saturates.


def test_a_falling_slope_is_not_saturated():
    slopes = np.full(SHAPES["branches"], -0.5, np.float32)
    slopes[..., 1, :3] = -1e-4
    assert observed("slopes", slopes)["saturated"].tolist() == [0.0, 0.25]


def test_non_finite_values_are_counted_per_branch():
    x = values("pre_activation")
    x[0, 0, 1, 3], x[1, 2, 1, 0] = np.nan, np.inf
    assert observed("pre_activation", x)["non_finite"].tolist() == [0, 2]


def test_one_branch_has_no_correlation():
    x = values("pre_activation")[:, :, :1]
    assert "correlation" not in observed("pre_activation", x)


def stack(layers, bad=None):
    """A report of one stack; `bad` is a (layer, tap) with a NaN."""
    taps = {}
    for tap in ("input", "pre_activation", "product", "output"):
        per_branch = [0, 0] if tap == "pre_activation" else 0
        taps[tap] = {"non_finite": [per_branch] * layers}
    if bad is not None:
        layer, tap = bad
        taps[tap]["non_finite"][layer] = [0, 3] if tap == "pre_activation" else 3
    return taps


def test_the_first_bad_place_in_forward_order_is_named():
    assert first_non_finite({"decoder": stack(3)}) is None
    assert first_non_finite({"decoder": stack(3, (2, "product"))}) == "decoder layer 2, FFN product"
    both = {"decoder": stack(2, (0, "input")), "encoder": stack(2, (1, "pre_activation"))}
    assert first_non_finite(both) == "encoder layer 1, FFN pre_activation"


@pytest.fixture(scope="module")
def last_step(finished, experiment, dataset):
    """The finished run's telemetry line, and its intermediates computed once more as arrays."""
    from tests.training.test_resume import state_of

    folder, _ = finished
    _, state, _ = state_of(folder, experiment, dataset)
    batches = iter(dataset.train_iterator(seed=0, batch_size=experiment.training.batch_size))
    batch = [next(batches) for _ in range(experiment.training.steps)][-1]
    key = dropout_key(jax.random.key(0), experiment.training.steps)
    _, sown = Transformer(experiment.model).apply(
        {"params": state["params"]},
        {name: jnp.asarray(x) for name, x in batch.items()},
        dropout_key=key,
        mutable=[INTERMEDIATES],
    )
    (line,) = [entry for entry in metrics_lines(folder) if entry["kind"] == "telemetry"]
    return line, sown[INTERMEDIATES]["decoder"]["layers"]["ffn"], state


def test_recorded_statistics_are_those_of_the_arrays(last_step):
    line, arrays, _ = last_step
    recorded = line["ffn"]["decoder"]
    product = np.asarray(arrays["product"], np.float64)
    assert product.shape[0] == 2
    zeros = (product == 0).mean(axis=(1, 2, 3))
    assert zeros.min() > 0.2  # ReGLU: about half of the gates are shut.
    np.testing.assert_allclose(recorded["product"]["exact_zero"], zeros, rtol=1e-6)
    rms = np.sqrt((product**2).mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(recorded["product"]["rms"], rms, rtol=1e-4)
    before = np.asarray(arrays["pre_activation"], np.float64)
    np.testing.assert_allclose(
        recorded["pre_activation"]["mean"], before.mean(axis=(1, 2, 4)), rtol=1e-3, atol=1e-5
    )
    gates = np.asarray(arrays["branches"], np.float64)[..., 0, :]
    np.testing.assert_allclose(
        np.asarray(recorded["branches"]["exact_zero"])[:, 0],
        (gates == 0).mean(axis=(1, 2, 3)),
        rtol=1e-6,
    )


def test_the_summary_has_the_mean_fraction_of_zeros(finished, last_step):
    line, arrays, _ = last_step
    product = np.asarray(arrays["product"])
    assert finished[1]["exact_zero_fraction"] == pytest.approx((product == 0).mean(), rel=1e-6)
    assert exact_zero_fraction(line["ffn"]) == finished[1]["exact_zero_fraction"]


def test_sizes_of_parameters_gradients_and_updates_are_there_for_each_layer(last_step):
    line, _, state = last_step
    assert set(line["rms"]) == {"parameter", "gradient", "update"}
    for kind in line["rms"].values():
        assert len(kind["decoder/layers/ffn/wi"]) == 2
        assert isinstance(kind["embedding"], float)
    wi = np.asarray(state["params"]["decoder"]["layers"]["ffn"]["wi"], np.float64)
    np.testing.assert_allclose(
        line["rms"]["parameter"]["decoder/layers/ffn/wi"],
        np.sqrt((wi**2).mean(axis=(1, 2, 3))),
        rtol=1e-6,
    )


def test_undefined_statistics_become_null(experiment, dataset):
    """A correlation with a constant branch has no value, and JSON has no NaN."""
    program = programs(program_key(experiment, dataset))
    state = program.init(program.put_key(0))
    wi = state["params"]["decoder"]["layers"]["ffn"]["wi"]
    constant = np.array(wi)
    constant[:, :, 0] = 0.0
    state["params"]["decoder"]["layers"]["ffn"]["wi"] = jax.device_put(constant, wi.sharding)
    batch = program.put_batch(
        next(iter(dataset.train_iterator(seed=0, batch_size=experiment.training.batch_size)))
    )
    sown = program.observe(state["params"], batch, dropout_key(program.put_key(0), 0))
    told = report(jax.device_get(sown))["decoder"]
    assert told["pre_activation"]["correlation"] == [None, None]
    assert told["product"]["exact_zero"] == [1.0, 1.0]

"""``glu-lab benchmark`` as a user types it; no speed is asserted."""

import pytest

from tests.cli.conftest import call


@pytest.mark.slow
def test_numbers_fit_together(tiny_config):
    result = call("benchmark", f"--config={tiny_config}", "--steps=2", "--json")
    assert result.code == 0, result.err
    measured = result.json
    for name, value in measured.items():
        if isinstance(value, dict) and "median" in value:
            assert value["low"] <= value["median"] <= value["high"], name
    # Six for each of the forward pass's products of 4 rows of 16 tokens. One token: two layers of
    # q and o (8·8), k and v (8·4), scores (2·16·8), ReGLU (3·8·12); and 310 logits.
    layer = 2 * 8 * 8 + 2 * 8 * 4 + 2 * 16 * 8 + 3 * 8 * 12
    assert measured["step_flops"] == 6 * 4 * 16 * (2 * layer + 8 * 310)
    speed = measured["step_flops"] / measured["step_seconds"]["median"]
    assert measured["flops_per_second"]["median"] == pytest.approx(speed)


def test_no_steps_are_refused(tiny_config):
    result = call("benchmark", f"--config={tiny_config}", "--steps=0")
    assert result.code == 2 and "steps must be ≥ 1" in result.err

"""The learning rate of a step, against the curves' closed forms."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.spec.experiment import Schedule
from glu_lab.training.schedule import learning_rate

T5 = Schedule(
    kind="inverse_sqrt", peak=0.01, warmup_steps=10_000, warmup="constant", decay_fraction=0.1
)


@pytest.mark.parametrize("step", [0, 1, 5_000, 9_999, 10_000])
def test_t5_holds_its_rate_for_ten_thousand_steps(step):
    assert learning_rate(T5, step, 524_288) == pytest.approx(0.01, rel=1e-12)


@pytest.mark.parametrize("step", [10_001, 40_000, 250_000, 471_858])
def test_t5_then_falls_as_one_over_the_square_root_of_the_step(step):
    assert learning_rate(T5, step, 524_288) == pytest.approx(1 / math.sqrt(step), rel=1e-12)


def test_t5_falls_linearly_to_zero_over_the_last_tenth():
    steps = 524_288
    decay = round(0.1 * steps)
    first = steps - decay
    for step in (first, first + decay // 2, steps - 1):
        fraction = learning_rate(T5, step, steps) * math.sqrt(step)
        assert fraction == pytest.approx((steps - step) / (decay + 1), rel=1e-12)
    # The step after the last would have rate 0.
    assert learning_rate(T5, steps, steps) == 0.0


def test_the_2017_schedule():
    # Vaswani et al. 2017, equation 3: d^-0.5 · min(n^-0.5, n · w^-1.5), steps n counted from 1.
    schedule = Schedule(
        kind="inverse_sqrt",
        peak=(512 * 4_000) ** -0.5,
        warmup_steps=4_000,
        warmup="linear",
        decay_fraction=0.0,
    )
    for n in (1, 100, 4_000):
        expected = 512**-0.5 * min(n**-0.5, n * 4_000**-1.5)
        assert learning_rate(schedule, n - 1, 100_000) == pytest.approx(expected, rel=1e-12)
    # After the warm-up the step is counted from 0: less than 1/(2·4000) apart.
    assert learning_rate(schedule, 50_000, 100_000) == pytest.approx((512 * 50_000) ** -0.5)


def test_cosine_starts_at_the_peak_and_ends_at_its_fraction():
    schedule = Schedule(
        kind="cosine", peak=4e-3, warmup_steps=30, warmup="linear", final_fraction=0.1
    )
    assert learning_rate(schedule, 0, 300) == pytest.approx(4e-3 / 30)
    assert learning_rate(schedule, 29, 300) == pytest.approx(4e-3)
    assert learning_rate(schedule, 30, 300) == pytest.approx(4e-3)
    assert learning_rate(schedule, 165, 300) == pytest.approx(4e-3 * (0.1 + 0.9 / 2))
    assert learning_rate(schedule, 300, 300) == pytest.approx(4e-4)


def test_wsd_warms_up_stays_and_decays():
    schedule = Schedule(
        kind="wsd", peak=3e-3, warmup_steps=10, warmup="linear", decay_fraction=0.2,
        final_fraction=0.5,
    )  # fmt: skip
    rates = [learning_rate(schedule, step, 100) for step in range(101)]
    assert rates[4] == pytest.approx(1.5e-3)
    assert rates[10:80] == [pytest.approx(3e-3)] * 70
    assert rates[80] == pytest.approx(3e-3 * (0.5 + 0.5 * 20 / 21))
    assert rates[100] == pytest.approx(1.5e-3)


SCHEDULES = st.builds(
    Schedule,
    kind=st.sampled_from(["inverse_sqrt", "cosine", "wsd", "constant"]),
    peak=st.floats(1e-6, 1.0),
    warmup_steps=st.integers(0, 50),
    warmup=st.sampled_from(["linear", "constant"]),
    decay_fraction=st.floats(0.0, 0.5),
    final_fraction=st.floats(0.0, 1.0),
)


@given(SCHEDULES, st.integers(100, 400))
def test_every_rate_is_between_zero_and_the_peak_and_never_jumps(schedule, steps):
    rates = [learning_rate(schedule, step, steps) for step in range(steps + 1)]
    assert all(0 <= rate <= schedule.peak * (1 + 1e-12) for rate in rates)
    # The steepest step of any curve is one part of its warm-up, of its decay, of half a cosine, or
    # of the inverse square root right after the warm-up.
    decay = round(schedule.decay_fraction * steps)
    steepest = max(
        1 / max(schedule.warmup_steps, 1) if schedule.warmup == "linear" else 0.0,
        1 / (decay + 1),
        math.pi / 2 / (steps - schedule.warmup_steps),
        1 - math.sqrt(max(schedule.warmup_steps, 1) / (max(schedule.warmup_steps, 1) + 1)),
    )
    for before, after in itertools.pairwise(rates):
        # A decay multiplies a curve that may itself be falling.
        assert abs(after - before) <= 2 * steepest * schedule.peak + 1e-15

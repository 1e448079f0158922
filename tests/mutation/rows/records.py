"""Faults in what is measured and kept: telemetry, checkpoints, initial values, statistics."""

from tests.mutation.mutation import Mutation

_TELEMETRY = "glu_lab/training/telemetry.py"
_LOOP = "glu_lab/training/loop.py"
_CHECKPOINTS = "glu_lab/files/checkpoints.py"
_PARAMS = "glu_lab/layers/params.py"
_STATISTICS = "glu_lab/studies/statistics.py"
_T_TELEMETRY = "tests/training/test_telemetry.py"
_T_RESUME = "tests/training/test_resume.py"
_T_CHECKPOINTS = "tests/files/test_checkpoints.py"
_T_STATISTICS = "tests/studies/test_statistics.py"
_T_INIT = "tests/models/test_init.py"
_T_START = "tests/conformance/test_initialization.py"

ROWS = (
    Mutation(
        id="negative-slopes-saturate",
        area="telemetry",
        file=_TELEMETRY,
        old="_fraction(jnp.abs(x) < SATURATED, per_branch)",
        new="_fraction(x < SATURATED, per_branch)",
        why="every unit on a falling piece of φ counts as dead",
        tests=(f"{_T_TELEMETRY}::test_a_falling_slope_is_not_saturated",),
    ),
    Mutation(
        id="zeros-and-below",
        area="telemetry",
        file=_TELEMETRY,
        old='"exact_zero": _fraction(x == 0, per_branch)',
        new='"exact_zero": _fraction(x <= 0, per_branch)',
        why="SiLU is reported to be half sparse",
        tests=(f"{_T_TELEMETRY}::test_exact_zeros_and_small_values_of_relu",),
    ),
    Mutation(
        id="correlation-is-covariance",
        area="telemetry",
        file=_TELEMETRY,
        old='statistics["correlation"] = joint / (spread[0] * spread[1])',
        new='statistics["correlation"] = joint',
        why="gate–up correlation grows with the weights",
        tests=(f"{_T_TELEMETRY}::test_moments_quantiles_and_correlation_of_pre_activations",),
    ),
    Mutation(
        id="quantiles-not-between",
        area="telemetry",
        file=_TELEMETRY,
        old="mixed = low + weight * (high - low)",
        new="mixed = low",
        why="quantiles of few values jump",
        tests=(f"{_T_TELEMETRY}::test_moments_quantiles_and_correlation_of_pre_activations",),
    ),
    Mutation(
        id="worst-checkpoint-is-kept",
        area="checkpoints",
        file=_CHECKPOINTS,
        old="reverse=True",
        new="reverse=False",
        why="the best checkpoint is deleted and the worst one stays",
        tests=(f"{_T_CHECKPOINTS}::test_the_newest_and_the_best_are_kept",),
    ),
    Mutation(
        id="data-start-over",
        area="checkpoints",
        file=_LOOP,
        old='        self.iterator.set_state(loop["iterator"])\n',
        new="",
        why="a resumed run sees the first batches again",
        tests=(f"{_T_RESUME}::test_a_run_killed_after_a_checkpoint_ends_as_if_it_was_not[8]",),
    ),
    Mutation(
        id="window-starts-over",
        area="checkpoints",
        file=_LOOP,
        old='self.counters = Counters.from_json(loop["counters"])',
        new="self.counters = Counters()",
        why="the first loss after a resume is of a part of its window, and tokens are recounted",
        tests=(f"{_T_RESUME}::test_a_run_killed_after_a_checkpoint_ends_as_if_it_was_not[8]",),
    ),
    Mutation(
        id="nan-in-json",
        area="checkpoints",
        file="glu_lab/files/atomic.py",
        old="indent=2, allow_nan=False",
        new="indent=2, allow_nan=True",
        why="summaries that no other program can read",
        tests=("tests/files/test_atomic.py",),
    ),
    Mutation(
        id="truncated-normal-too-narrow",
        area="initial values",
        file=_PARAMS,
        old="_TRUNCATED_STD = 0.87962566103423978",
        new="_TRUNCATED_STD = 1.0",
        why="weights start 12 % smaller than stated",
        tests=(f"{_T_INIT}::test_a_distribution_has_the_stated_spread_and_support",),
    ),
    Mutation(
        id="fan-of-both",
        area="initial values",
        file="glu_lab/spec/ffn.py",
        old='"avg": (fan_in + fan_out) / 2',
        new='"avg": fan_in + fan_out',
        why="Glorot weights start √2 too small",
        tests=(f"{_T_INIT}::test_a_distribution_has_the_stated_spread_and_support",),
    ),
    Mutation(
        id="decoder-scaled-by-two-branches",
        area="initial values",
        file="glu_lab/models/tables.py",
        old="branches = layers * (3 if cross else 2)",
        new="branches = layers * 2",
        why="a decoder with cross-attention starts with too wide a residual stream",
        tests=(f"{_T_INIT}::test_depth_scaling_divides_the_output_projections_alone",),
    ),
    Mutation(
        id="weights-share-their-numbers",
        area="initial values",
        file=_PARAMS,
        old="hashlib.sha256(path.encode())",
        new='hashlib.sha256(path.rsplit("/", 1)[-1].encode())',
        why="encoder and decoder, self- and cross-attention start with equal weights",
        tests=(f"{_T_INIT}::test_every_path_names_its_own_stream_of_numbers",),
    ),
    Mutation(
        id="variance-of-a-population",
        area="statistics",
        file=_STATISTICS,
        old="for value in values) / (n - 1)",
        new="for value in values) / n",
        why="intervals over three seeds are a fifth too narrow: differences that are none",
        tests=(f"{_T_STATISTICS}::test_a_paired_difference_is_scipys",),
    ),
    Mutation(
        id="holm-does-not-step",
        area="statistics",
        file=_STATISTICS,
        old="if p_value > level / (len(ordered) - index):",
        new="if p_value > level:",
        why="eleven comparisons are judged like one",
        tests=(f"{_T_STATISTICS}::test_holm_steps_down",),
    ),
    Mutation(
        id="unpaired-seeds",
        area="statistics",
        file=_STATISTICS,
        old="return low > 0 or high < 0",
        new="return low > 0 or high > 0",
        why="a variant that is clearly better is called not separated, and ties are called apart",
        tests=(f"{_T_STATISTICS}::test_points_that_intervals_do_not_separate_are_not_ranked",),
    ),
    Mutation(
        id="theory-without-dropout",
        area="training-state records",
        file="glu_lab/conformance/propagation.py",
        old="* product / (1 - dropped) +",
        new="* product * (1 - dropped) +",
        why="an initialiser that is right is reported to be wrong under dropout",
        tests=(f"{_T_START}::test_biases_and_dropout_enter_by_their_mean_squares",),
    ),
    Mutation(
        id="theory-without-scale",
        area="training-state records",
        file="glu_lab/conformance/propagation.py",
        old="a = _clamped(branch.scale * std * nodes(), branch.pre)",
        new="a = _clamped(std * nodes(), branch.pre)",
        why="branches with a scale are predicted as though they had none",
        tests=(f"{_T_START}::test_theory_is_what_drawn_weights_give[scaled]",),
    ),
    Mutation(
        id="equal-numbers-pass-for-equal-bits",
        area="training-state records",
        file="glu_lab/conformance/comparisons.py",
        old="one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()",
        new="np.array_equal(one, two)",
        why="a state that lost its number format passes for the same bits",
        tests=("tests/conformance/test_continuity.py::test_equal_bits_pass_and_nothing_else",),
    ),
)

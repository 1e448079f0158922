"""Faults in what everything is held against."""

from tests.mutation.mutation import Mutation

_ORACLE = "glu_lab/oracle/functions.py"
_T_FUNCTIONS = "tests/oracle/test_functions.py"

ROWS = (
    Mutation(
        id="oracle-gelu-cubic",
        area="tolerances and oracle",
        file=_ORACLE,
        old="_GELU_CUBIC = 0.044715",
        new="_GELU_CUBIC = 0.044725",
        why="the reference itself is wrong, and everything is held against it",
        tests=(
            f"{_T_FUNCTIONS}::test_value_and_derivative_agree_with_fifty_digits_into_the_far_tails",
        ),
    ),
    Mutation(
        id="oracle-relu-slope",
        area="tolerances and oracle",
        file=_ORACLE,
        old="_positive(x, x * x, 0.0), lambda x: _positive(x, 2 * x, 0.0)",
        new="_positive(x, x * x, 0.0), lambda x: _positive(x, x, 0.0)",
        why="the reference's gradient of squared ReLU is half of it",
        tests=(f"{_T_FUNCTIONS}::test_derivative_is_the_complex_step_of_the_value",),
    ),
    Mutation(
        id="tolerance-of-a-sum",
        area="tolerances and oracle",
        file="glu_lab/oracle/tolerances.py",
        old='2.0, 0.5, "accumulate", True, True,',
        new='40.0, 0.5, "accumulate", True, True,',
        why="twenty times the rounding passes, and real faults with it",
        tests=("tests/oracle/test_tolerances.py",),
    ),
    Mutation(
        id="errors-of-one-sign",
        area="tolerances and oracle",
        file="glu_lab/oracle/tolerances.py",
        old="shares = np.abs(got - want) /",
        new="shares = (got - want) /",
        why="results that are too small pass by any amount",
        tests=("tests/oracle/test_tolerances.py::test_too_small_is_as_wrong_as_too_large",),
    ),
)

"""The table of seeded mutations."""

from tests.mutation.mutation import Mutation
from tests.mutation.rows import data, devices, function, oracle, records, specs, training

MUTATIONS: tuple[Mutation, ...] = (
    *function.ROWS,
    *training.ROWS,
    *records.ROWS,
    *specs.ROWS,
    *data.ROWS,
    *devices.ROWS,
    *oracle.ROWS,
)

#: A fault that has to be caught, or no other result means anything.
CONTROL = Mutation(
    id="control",
    area="control",
    file="glu_lab/spec/variants.py",
    old='"swiglu": _row("silu*linear", _GLU_PAPER)',
    new='"swiglu": _row("relu*linear", _GLU_PAPER)',
    why="SwiGLU would be ReGLU",
    tests=("tests/spec/test_variants.py::test_the_table_says_what_the_papers_say",),
)

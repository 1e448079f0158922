"""Faults in what devices hold and sum."""

from tests.mutation.mutation import Mutation

_BY_HAND = "glu_lab/sharding/by_hand.py"

ROWS = (
    Mutation(
        id="bias-once-a-block",
        area="psum placement",
        file=_BY_HAND,
        old="""    y = ffn.down(params, hidden, numerics)
    if sequence:
        y = jax.lax.psum_scatter(y, over, scatter_dimension=_POSITION, tiled=True)
    elif over:
        y = jax.lax.psum(y, over)
    # After the sum, so that the output bias is added once and not once a block.
    return ffn.finish(params, y, spec, numerics)
""",
        new="""    y = ffn.finish(params, ffn.down(params, hidden, numerics), spec, numerics)
    if sequence:
        y = jax.lax.psum_scatter(y, over, scatter_dimension=_POSITION, tiled=True)
    elif over:
        y = jax.lax.psum(y, over)
    return y
""",
        why="the output bias is added once by every device",
        tests=("tests/eight_devices/test_ffn_equality.py::test_swiglu_is_its_formula_in_numpy",),
    ),
    Mutation(
        id="gate-and-up-summed-apart",
        area="psum placement",
        file="glu_lab/layers/ffn.py",
        old="""    projected = jnp.einsum(
        "...d,dnf->...nf", x, params["wi"].astype(compute), preferred_element_type=accumulate
    )
""",
        new="""    wi = params["wi"].astype(compute)
    projected = jnp.stack(
        [
            jnp.einsum("...d,df->...f", x, wi[:, n], preferred_element_type=accumulate)
            for n in range(spec.num_branches)
        ],
        axis=-2,
    )
""",
        why="backward sums the gradient of the rows once a branch: twice the traffic",
        tests=(
            "tests/eight_devices/test_collectives.py::test_every_variant_is_at_the_minimum_by_rule",
        ),
    ),
    Mutation(
        id="rows-not-marked-as-varying",
        area="psum placement",
        file=_BY_HAND,
        old='x = jax.lax.pcast(x, over, to="varying")',
        new="x = x + 0",
        why="gradients of the rows would be summed once for each use of them",
        tests=("tests/eight_devices/test_by_hand.py::test_each_way_moves_the_rows_once",),
        survives="the rows are used once, in the one product of all branches, and JAX marks them "
        "there by itself: the same program",
    ),
    Mutation(
        id="partial-sums-averaged",
        area="psum placement",
        file=_BY_HAND,
        old="y = jax.lax.psum(y, over)",
        new="y = jax.lax.pmean(y, over)",
        why="outputs are smaller by the number of devices",
        tests=("tests/eight_devices/test_ffn_equality.py::test_swiglu_is_its_formula_in_numpy",),
    ),
    Mutation(
        id="masks-of-another-key",
        area="psum placement",
        file=_BY_HAND,
        old='keep["mask"] = ffn.keep_mask(dropout_key, x, spec, inside)',
        new='keep["mask"] = ffn.keep_mask(jax.random.fold_in(dropout_key, 1), x, spec, inside)',
        why="a run that moves onto a mesh drops other elements: it is another run",
        tests=(
            "tests/eight_devices/test_by_hand.py"
            "::test_masks_are_those_of_one_device_draw_for_draw[()]",
        ),
    ),
    Mutation(
        id="foreign-tokens-looked-up",
        area="psum placement",
        file="glu_lab/layers/embedding.py",
        old="mine = (here >= 0) & (here < piece.shape[0])",
        new="mine = here < piece.shape[0]",
        why="the sum over devices adds rows of other tokens",
        tests=("tests/eight_devices/test_embedding.py",),
    ),
    Mutation(
        id="weights-used-in-pieces",
        area="psum placement",
        file="glu_lab/spec/sharding.py",
        old="tuple(axis for axis in split if axis not in self.batch) for split in",
        new="split for split in",
        why="a device multiplies its rows with its own piece of a stored weight",
        tests=("tests/spec/test_sharding.py::test_layouts_as_stored_and_as_used",),
    ),
    Mutation(
        id="all-processes-are-the-first",
        area="psum placement",
        file="glu_lab/sharding/mesh.py",
        old="return start // (stop - start), rows // (stop - start)",
        new="return 0, rows // (stop - start)",
        why="every process feeds the rows of process 0",
        tests=("tests/eight_devices/test_mesh.py::test_which_rows_a_process_reads",),
    ),
    Mutation(
        id="minimum-without-layers",
        area="psum placement",
        file="glu_lab/sharding/audit.py",
        old="activations = self.rows * self.d_model * self.layers",
        new="activations = self.rows * self.d_model",
        why="the audit calls the least that is possible a multiple of it",
        tests=("tests/sharding/test_collectives_audit.py",),
    ),
)

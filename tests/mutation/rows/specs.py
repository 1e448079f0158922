"""Faults in budgets, Specs and layouts."""

from tests.mutation.mutation import Mutation

_COUNTING = "glu_lab/budget/counting.py"
_MATCHING = "glu_lab/budget/matching.py"
_VARIANTS = "glu_lab/spec/variants.py"
_AXES = "glu_lab/layouts/axes.py"
_WALK = "glu_lab/layouts/walk.py"
_T_COUNTING = "tests/budget/test_counting.py"
_T_MATCHING = "tests/budget/test_matching.py"
_T_VARIANTS = "tests/spec/test_variants.py"
_T_RESHARD = "tests/layouts/test_reshard.py"

ROWS = (
    Mutation(
        id="third-matrix-uncounted",
        area="budgets",
        file=_COUNTING,
        old="        for i in range(spec.num_branches)\n    ]\n    return (*up,",
        new="        for i in range(1)\n    ]\n    return (*up,",
        why="a gated FFN passes for as cheap as a classic one of its width",
        tests=(f"{_T_COUNTING}::test_macs_are_the_scalar_products_of_the_matmuls",),
    ),
    Mutation(
        id="output-bias-width",
        area="budgets",
        file=_COUNTING,
        old='items.append(item("bo", "D"))',
        new='items.append(item("bo", "F"))',
        why="biased baselines are counted too large, and their matches come out too wide",
        tests=(f"{_T_COUNTING}::test_parameters_are_those_of_an_allocated_tree",),
    ),
    Mutation(
        id="learned-scalars-uncounted",
        area="budgets",
        file=_COUNTING,
        old='item(f"phi_{i}_{learned}")\n        for i, branch in enumerate(spec.branches)',
        new='item(f"phi_{i}_{learned}")\n        for i, branch in enumerate(spec.branches[:0])',
        why="budgets that are equal on paper and not in memory",
        tests=(f"{_T_COUNTING}::test_parameters_are_those_of_an_allocated_tree",),
    ),
    Mutation(
        id="round-up-rounds-down",
        area="budgets",
        file=_MATCHING,
        old="return math.ceil(parts) * multiple",
        new="return math.floor(parts) * multiple",
        why="LLaMA's 11008 comes out as 10752",
        tests=(f"{_T_MATCHING}::test_one_continuous_width_under_each_rounding",),
    ),
    Mutation(
        id="ties-go-to-even",
        area="budgets",
        file=_MATCHING,
        old="return math.floor(parts + Fraction(1, 2)) * multiple",
        new="return round(parts) * multiple",
        why="a width that depends on the parity of its neighbour",
        tests=(f"{_T_MATCHING}::test_a_tie_goes_up",),
    ),
    Mutation(
        id="constant-counted-by-part",
        area="budgets",
        file=_MATCHING,
        old="continuous = (rho * spent - constant) / slope",
        new="continuous = rho * (spent - constant) / slope",
        why="a multiplier of the budget misses by the output bias",
        tests=(f"{_T_MATCHING}::test_a_whole_continuous_width_spends_the_budget_exactly",),
    ),
    Mutation(
        id="mask-of-four-bytes",
        area="budgets",
        file="glu_lab/budget/shapes.py",
        old="MASK_BYTES = 1",
        new="MASK_BYTES = 4",
        why="memory of dropout is planned four times too large",
        tests=("tests/budget/test_shapes.py",),
    ),
    Mutation(
        id="reglu-gates-with-the-linear-branch",
        area="specification",
        file=_VARIANTS,
        old='"reglu": _row("relu*linear", _GLU_PAPER)',
        new='"reglu": _row("linear*relu", _GLU_PAPER)',
        why="a name that stands for its branches in the wrong order",
        tests=(_T_VARIANTS,),
    ),
    Mutation(
        id="gpt-oss-without-offset",
        area="specification",
        file=_VARIANTS,
        old="pre=(-7.0, 7.0), offset=1.0)",
        new="pre=(-7.0, 7.0), offset=0.0)",
        why="gpt-oss is not the published function",
        tests=(f"{_T_VARIANTS}::test_gpt_oss_is_clamped_offset_and_biased_as_published",),
    ),
    Mutation(
        id="geglu-is-one-function",
        area="specification",
        file=_VARIANTS,
        old='"geglu": ("geglu_erf", "geglu_tanh")',
        new='"geglu": ("geglu_erf",)',
        why="an ambiguous name is answered as though it had one meaning",
        tests=(f"{_T_VARIANTS}::test_an_ambiguous_variant_is_refused_with_the_choices",),
    ),
    Mutation(
        id="seed-is-no-identity",
        area="specification",
        file="glu_lab/spec/identity.py",
        old='_NOT_IDENTITY = ("name", ',
        new='_NOT_IDENTITY = ("seed", "name", ',
        why="runs of two seeds share a name; one is resumed into the other",
        tests=(
            "tests/spec/test_codec.py"
            "::test_identity_holds_every_field_that_changes_a_result_and_no_other",
        ),
    ),
    Mutation(
        id="product-text-reads-backwards",
        area="specification",
        file=_VARIANTS,
        old="return tuple(Branch(activation=Activation.parse(part)) for part in parts)",
        new="return tuple(Branch(activation=Activation.parse(part)) for part in parts[::-1])",
        why="``relu2*linear`` builds linear times relu2",
        tests=(f"{_T_VARIANTS}::test_a_product_reads_back_from_its_name",),
    ),
    Mutation(
        id="interleaved-blocks",
        area="packing",
        file=_AXES,
        old="self.base + indices // self.width * self.high",
        new="self.base + indices // self.width * self.low",
        why="interleaved gate and up are read from the wrong rows, shapes right",
        tests=("tests/layouts/test_table.py::test_a_span_is_the_loop_over_its_indices",),
    ),
    Mutation(
        id="gate-and-up-names",
        area="packing",
        file="glu_lab/layouts/tables/hugging_face.py",
        old='    wi("gate_proj.weight", 0),\n    wi("up_proj.weight", 1),',
        new='    wi("gate_proj.weight", 1),\n    wi("up_proj.weight", 0),',
        why="every Llama is loaded with its branches exchanged, without an error",
        tests=("tests/layouts/test_formulas.py",),
    ),
    Mutation(
        id="torch-gelu-is-tanh",
        area="layouts",
        file="glu_lab/layouts/tables/activations.py",
        old='HUGGING_FACE = {\n    "gelu": "gelu_erf",',
        new='HUGGING_FACE = {\n    "gelu": "gelu_tanh",',
        why="a config's ``gelu`` is read as JAX means it",
        tests=("tests/layouts/test_function.py",),
    ),
    Mutation(
        id="product-order-ignored",
        area="layouts",
        file="glu_lab/layouts/function.py",
        old="if all(have[i] == branch for i, branch in zip(order, want, strict=True)):",
        new="if sorted(map(str, have)) == sorted(map(str, want)):",
        why="a Spec that names the linear branch first is stored with its branches exchanged",
        tests=(
            "tests/layouts/test_round_trip.py"
            "::test_a_product_in_another_order_is_stored_by_its_functions",
        ),
    ),
    Mutation(
        id="rank-of-the-source",
        area="layouts",
        file=_WALK,
        old="mlp=(start - rank * other, stop - rank * other),",
        new="mlp=(0, stop - start),",
        why="channels of several source ranks are written over one another",
        tests=(f"{_T_RESHARD}::test_megatrons_ranks_are_those_cut_by_hand",),
    ),
    Mutation(
        id="data-shards-rounded-down",
        area="layouts",
        file="glu_lab/layouts/reshard.py",
        old="size = -(-array.shape[0] // shards)",
        new="size = array.shape[0] // shards",
        why="the last rows of a tensor that does not divide are lost",
        tests=(f"{_T_RESHARD}::test_fsdp_shards_are_cut_as_torch_cuts_them",),
    ),
    Mutation(
        id="row-proof-of-one-side",
        area="layouts",
        file="glu_lab/layouts/proof.py",
        old="theirs = evaluate(target, read_target, counterparts[place], x, width)",
        new="theirs = evaluate(source, read_source, place, x, width)",
        why="the proof of a conversion compares the source with itself",
        tests=("tests/layouts/test_proof.py::test_a_wrong_output_fails",),
    ),
    Mutation(
        id="oracle-packing-order",
        area="packing",
        file="glu_lab/oracle/packing.py",
        old="order.index(branch) * block",
        new="order[branch] * block",
        why="a packed reference of three branches is read in the inverse order",
        tests=("tests/oracle/test_packing.py",),
    ),
)

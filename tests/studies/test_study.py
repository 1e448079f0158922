"""Axes, cells and matched budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.budget import ledger
from glu_lab.errors import BudgetError, SpecError, UnknownNameError
from glu_lab.spec.variants import ABLATION_VARIANTS
from glu_lab.studies import Study, axis, chain, coupled, expand, product, variants_matched, zip_
from glu_lab.studies.loading import load_study, parse_filters, select, with_overrides, with_seeds
from tests.studies.synthetic import base


def study(axes, **fields):
    axes = tuple(axes)
    return Study(
        **{
            "name": "s",
            "question": "?",
            "base": base(),
            "axes": axes,
            "baseline": axes[0].name,
            **fields,
        }
    )


def test_combinators_give_the_cells_that_their_names_say():
    a, b = axis("training.steps", [1, 2]), axis("training.batch_size", [8, 16])
    cells = [dict(point.overlay) for point in product(a, b)]
    pairs = [(s, n) for s in (1, 2) for n in (8, 16)]
    assert cells == [{"training.steps": s, "training.batch_size": n} for s, n in pairs]
    assert [dict(point.overlay) for point in zip_(a, b)] == [cells[0], cells[3]]
    assert chain(a, b) == (*a, *b)
    assert product(a, b)[0].name == "steps=1, batch_size=8"


def test_zip_refuses_unequal_lengths_and_product_a_key_in_two_axes():
    with pytest.raises(SpecError, match=r"\[2, 1\]"):
        zip_(axis("training.steps", [1, 2]), axis("training.batch_size", [8]))
    with pytest.raises(SpecError, match=r"training\.steps"):
        product(axis("training.steps", [1]), axis("training.steps", [2]))


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
def test_each_cell_is_there_exactly_once(steps, batches, seeds):
    grid = product(axis("training.steps", steps), axis("training.batch_size", batches))
    members = expand(study(grid, seeds=tuple(seeds)))
    cells = [
        (m.experiment.training.steps, m.experiment.training.batch_size, m.seed) for m in members
    ]
    assert sorted(cells) == sorted((s, b, n) for s in steps for b in batches for n in seeds)
    assert all(m.experiment.seed == m.seed for m in members)


def test_equal_functions_under_two_names_are_one_cell():
    names = coupled({n: {"model.ffn.variant": n} for n in ("quick_gelu", "swish(1.702)")})
    with pytest.raises(SpecError, match=r"'quick_gelu' and 'swish\(1.702\)' are the same cell"):
        expand(study(names))


def test_points_that_differ_only_in_execution_are_one_cell():
    with pytest.raises(SpecError, match="same cell"):
        expand(study(axis("execution.remat", ["none", "block"])))


@pytest.mark.parametrize("seeds", [(0, 0), (), ("0",), (True,)])
def test_seeds_are_distinct_integers(seeds):
    with pytest.raises(SpecError, match="seed"):
        study(axis("training.steps", [1]), seeds=seeds)


def test_every_variant_is_matched_exactly_with_ungated_3k_and_gated_2k():
    members = expand(study(variants_matched(ABLATION_VARIANTS, base(96)), seeds=(0,)))
    assert len(members) == 12
    for member in members:
        ffn = member.experiment.model.ffn
        assert ffn.d_ff == (96 if ffn.num_branches == 1 else 64)
        assert member.params == ledger(ffn).params == 2 * 32 * 96
        assert (member.param_delta, member.mac_delta) == (0, 0)


def test_a_matched_width_travels_with_its_variant_and_the_baseline_is_never_rounded():
    points = variants_matched(["relu", "swiglu"], base(97), round_to=8, rounding="up")
    assert [point.overlay["model.ffn.d_ff"] for point in points] == [97, 72]


def test_a_152m_model_beside_a_124m_one_is_refused_with_both_numbers():
    """GPT-2 small has 124M parameters; gated at the same width 3072 it has 28.3M more: 152M."""
    gpt2 = {
        "model.d_model": 768,
        "model.num_layers": 6,
        "model.num_encoder_layers": 6,
        "model.ffn.d_ff": 3072,
    }
    unmatched = with_overrides(study(axis("model.ffn.variant", ["gelu_tanh", "swiglu"])), gpt2)
    with pytest.raises(BudgetError) as caught:
        expand(unmatched)
    message = str(caught.value)
    assert "swiglu (d_ff 3072): 7,077,888" in message
    assert "baseline 4,718,592: +2,359,296 (+50.000%)" in message
    assert "12 FFNs the model has +28,311,552" in message


def test_all_offenders_are_listed():
    with pytest.raises(BudgetError) as caught:
        expand(study(axis("model.ffn.variant", ["relu", "swiglu", "silu", "reglu"])))
    assert "swiglu (" in str(caught.value)
    assert "reglu (" in str(caught.value)
    assert "silu (" not in str(caught.value)


def test_a_tolerance_is_the_decimal_that_is_written():
    # 101 against 100 channels: 1 % more parameters, no more.
    points = axis("model.ffn.d_ff", [100, 101])
    assert len(expand(study(points, tolerance=0.01, seeds=(0,)))) == 2
    with pytest.raises(BudgetError, match=r"\+1\.000%"):
        expand(study(points, tolerance=0.0099))


def test_each_policy_holds_its_own_quantity():
    same_width = axis("model.ffn.variant", ["relu", "swiglu"])
    assert len(expand(study(same_width, budget="width", seeds=(0,)))) == 2
    assert len(expand(study(same_width, budget="none", seeds=(0,)))) == 2
    biased = coupled(
        {
            "no bias": {"model.ffn.bias": False},
            "bias": {"model.ffn.bias": True},
        }
    )
    assert len(expand(study(biased, budget="macs", seeds=(0,)))) == 2
    with pytest.raises(BudgetError, match=r"bias \(d_ff 96\): 6,272 parameters"):
        expand(study(biased, budget="params"))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("model.num_layers", [2, 3]),
        ("model.attention.qkv_bias", [False, True]),
        ("model.tie_embeddings", [True, False]),
        ("model.vocab_size", [512, 513]),
    ],
)
def test_the_model_outside_its_ffns_has_the_same_parameters_too(key, values):
    with pytest.raises(BudgetError, match="outside its FFNs differs"):
        expand(study(axis(key, values)))


def test_what_changes_no_parameter_count_may_be_an_axis():
    for key, values in (("model.residual_dropout", [0.0, 0.1]), ("model.norm.eps", [1e-6, 1e-5])):
        assert len(expand(study(axis(key, values), seeds=(0,)))) == 2


def test_an_unknown_baseline_or_policy_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'swiglu'"):
        study(axis("model.ffn.variant", ["relu", "swiglu"]), baseline="swigl")
    with pytest.raises(UnknownNameError, match="did you mean 'params'"):
        study(axis("training.steps", [1]), budget="param")


def test_a_point_may_not_set_the_seed():
    with pytest.raises(SpecError, match=r"Study\.seeds"):
        study(axis("seed", [0, 1]))


def test_an_override_may_not_undo_an_axis():
    matched = study(variants_matched(["relu", "swiglu"], base()))
    assert with_overrides(matched, {"training.steps": 5}).base.training.steps == 5
    for key in ("model.ffn.d_ff", "model.ffn", "seed"):
        with pytest.raises(SpecError, match=key):
            with_overrides(matched, {key: 5})


def test_members_are_selected_by_name_and_a_misspelt_one_is_refused():
    members = expand(study(variants_matched(["relu", "swiglu"], base())))
    chosen = select(members, parse_filters(["variant=swiglu", "seed=0,2"]))
    assert [(m.point, m.seed) for m in chosen] == [("swiglu", 0), ("swiglu", 2)]
    with pytest.raises(UnknownNameError, match="did you mean 'swiglu'"):
        select(members, {"variant": "swigl"})
    with pytest.raises(UnknownNameError, match="did you mean 'variant'"):
        select(members, {"variants": "relu"})
    with pytest.raises(SpecError, match="twice"):
        parse_filters(["seed=0", "seed=1"])


def test_points_whose_names_hold_commas_are_selected_and_listed_readably():
    rates = axis("training.schedule.peak", [0.1, 0.2])
    points = product(variants_matched(["relu", "swiglu"], base()), rates)
    members = expand(study(points, baseline="relu, peak=0.1"))

    def chosen(text):
        return list(dict.fromkeys(m.point for m in select(members, {"point": text})))

    assert chosen("relu, peak=0.2") == ["relu, peak=0.2"]
    assert chosen("swiglu, peak=0.1,relu, peak=0.2") == ["relu, peak=0.2", "swiglu, peak=0.1"]
    nested = coupled({"a": {"training.steps": 1}, "a, b": {"training.steps": 2}})
    (found,) = {m.point for m in select(expand(study(nested, baseline="a")), {"point": "a, b"})}
    assert found == "a, b"
    with pytest.raises(UnknownNameError) as caught:
        chosen("relu, peak=0.2, swiglu, peak=0.3")
    assert "unknown point of the study 'swiglu, peak=0.3'" in str(caught.value)
    assert (
        "Choices: 'relu, peak=0.1', 'relu, peak=0.2', 'swiglu, peak=0.1', 'swiglu, peak=0.2'."
        in str(caught.value)
    )


def test_seeds_are_read_from_text():
    assert with_seeds(study(axis("training.steps", [1])), "4,5").seeds == (4, 5)
    with pytest.raises(SpecError, match="integers"):
        with_seeds(study(axis("training.steps", [1])), "4,a")


def test_a_study_is_loaded_from_its_folder_and_a_broken_file_is_named(tmp_path):
    file = tmp_path / "s" / "study.py"
    file.parent.mkdir()
    with pytest.raises(UnknownNameError, match="unknown study"):
        load_study(file.parent)
    file.write_text("x = 1")
    with pytest.raises(SpecError, match=r"study\.py defines no get_study"):
        load_study(file.parent)
    file.write_text("def get_study():\n    return 1 / 0\n")
    with pytest.raises(SpecError, match=r"study\.py failed: ZeroDivisionError"):
        load_study(file)
    file.write_text(
        "from glu_lab.studies import *\n"
        "from tests.studies.synthetic import base\n"
        "def get_study():\n"
        "    axes = variants_matched(['relu', 'drelu'], base())\n"
        "    return Study(name='t', question='?', base=base(), axes=axes, baseline='relu')\n"
    )
    assert len(expand(load_study(file.parent))) == 6


@pytest.mark.parametrize(("name", "points"), [("quickstart", 5), ("ablation", 12)])
def test_the_studies_of_this_repository_are_at_exactly_equal_budgets(name, points):
    from pathlib import Path

    members = expand(load_study(Path(__file__).parents[2] / "experiments" / name))
    assert len(members) == 3 * points
    assert {m.param_delta for m in members} == {0}
    assert {m.mac_delta for m in members} == {0}

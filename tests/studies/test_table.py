"""The results table: what enters a mean, what is refused, what each format says."""

import csv
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from glu_lab.errors import RecordError, UnknownNameError
from glu_lab.spec.variants import VARIANTS
from glu_lab.studies import Study, axis, expand, variants_matched
from glu_lab.studies.launch import plan
from glu_lab.studies.overlay import apply_overlay
from glu_lab.studies.published import PUBLISHED, published
from glu_lab.studies.render import render, to_rich
from glu_lab.studies.table import build_table, to_json
from tests.studies.synthetic import FakeData, base, write_run

LOSSES = {
    "relu": (2.00, 2.03, 1.98),
    "gelu_tanh": (2.01, 2.02, 1.98),
    "swiglu": (1.90, 1.935, 1.885),
}


def write_study(tmp_path, losses=LOSSES, skip=(), study=None, **changes):
    """A study's folder; `changes` by ``point_seed``, None for a run that failed to start."""
    study = study or Study(
        name="s",
        question="Which is best?",
        base=base(),
        axes=variants_matched(list(losses), base()),
        baseline="relu",
    )
    results = tmp_path / "s"
    for run in plan(study, expand(study), results, load_data=lambda data: FakeData()):
        key = f"{run.member.point}_{run.member.seed}"
        if key not in skip:
            values = {"log_perplexity": losses[run.member.point][run.member.seed]}
            write_run(results, run.member.experiment, **values | changes.get(key, {}))
    return results


def rows(results, **options):
    return {row.point: row for row in build_table(results, **options).rows}


def test_means_and_paired_differences_are_scipys(tmp_path):
    found = rows(write_study(tmp_path))
    ours, baseline = np.array(LOSSES["swiglu"]), np.array(LOSSES["relu"])
    assert found["swiglu"].log_perplexity == pytest.approx(ours.mean())
    assert found["swiglu"].log_perplexity_se == pytest.approx(stats.sem(ours))
    assert found["swiglu"].delta == pytest.approx((ours - baseline).mean())
    interval = stats.ttest_rel(ours, baseline).confidence_interval(0.95)
    assert found["swiglu"].delta_ci95 == pytest.approx((interval.low, interval.high))
    marks = {name: row.mark for name, row in found.items()}
    assert marks == {"relu": "baseline", "gelu_tanh": "not separated", "swiglu": "better"}


def test_what_is_no_result_is_shown_and_never_averaged(tmp_path):
    results = write_study(
        tmp_path,
        skip=("gelu_tanh_2",),
        swiglu_0={"status": "diverged", "log_perplexity": 9.0},
        swiglu_1={"status": "failed", "log_perplexity": None, "error": "Trace\nValueError: boom"},
    )
    table = build_table(results)
    found = {row.point: row for row in table.rows}
    swiglu = found["swiglu"]
    assert swiglu.log_perplexity == LOSSES["swiglu"][2]
    assert (swiglu.seeds, swiglu.status) == ((2,), "1 diverged, 1 failed, 1 complete")
    assert (swiglu.delta_ci95, swiglu.mark) == (None, "no interval")
    assert found["gelu_tanh"].seed_status == {0: "complete", 1: "complete", 2: "missing"}
    text = " ".join(table.statements)
    assert "Diverged, in no mean: swiglu seed 0." in text
    assert "Failed, in no mean: swiglu seed 1 (ValueError: boom)." in text
    assert "Missing, in no mean: gelu_tanh seed 2." in text
    assert "gelu_tanh and relu are paired on seeds 0, 1 only" in text


def test_a_point_of_which_every_run_diverged_keeps_its_row(tmp_path):
    gone = {"status": "diverged", "log_perplexity": None}
    results = write_study(tmp_path, swiglu_0=gone, swiglu_1=gone, swiglu_2=gone)
    row = rows(results)["swiglu"]
    assert (row.status, row.log_perplexity, row.delta, row.mark) == (
        "diverged",
        None,
        None,
        "no result",
    )
    assert (row.d_ff, row.ffn_params) == (64, 6144)


def test_json_holds_null_and_never_nan(tmp_path):
    gone = {"status": "diverged", "log_perplexity": math.nan}
    results = write_study(tmp_path, swiglu_0=gone, swiglu_1=gone, swiglu_2=gone)
    text = render(build_table(results), "json")
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert set(content) == {"baseline", "rows", "statements"}
    assert content["baseline"] == "relu"
    first, last = content["rows"][0], content["rows"][-1]
    assert {
        "variant",
        "d_ff",
        "params",
        "log_perplexity",
        "log_perplexity_se",
        "delta",
        "delta_ci95",
        "status",
    } <= set(first)
    assert (first["variant"], first["delta"], first["delta_ci95"]) == ("relu", 0.0, None)
    assert last["log_perplexity"] is last["delta"] is last["delta_ci95"] is None


def test_runs_on_different_data_or_steps_are_refused_together_and_can_be_separated(tmp_path):
    for steps in (100, 200):
        for name, d_ff in (("relu", 96), ("swiglu", 64)):
            overlay = {"model.ffn.variant": name, "model.ffn.d_ff": d_ff, "training.steps": steps}
            write_run(tmp_path / "r", apply_overlay(base(), overlay), log_perplexity=1 / steps)
    with pytest.raises(RecordError, match="--select steps=100") as caught:
        build_table(tmp_path / "r", baseline="relu")
    assert "steps 200: 2 runs" in str(caught.value)
    table = build_table(tmp_path / "r", baseline="relu", select={"steps": "200"})
    assert [row.log_perplexity for row in table.rows] == [1 / 200, 1 / 200]
    assert any(text.startswith("Left out by --select: ") for text in table.statements)
    with pytest.raises(UnknownNameError, match="300"):
        build_table(tmp_path / "r", baseline="relu", select={"steps": "300"})

    write_run(tmp_path / "d", base(), data_fingerprint="a" * 64)
    gated = apply_overlay(base(), {"model.ffn.variant": "swiglu", "model.ffn.d_ff": 64})
    write_run(tmp_path / "d", gated, data_fingerprint="b" * 64)
    with pytest.raises(RecordError, match="different data_fingerprint do not belong"):
        build_table(tmp_path / "d", baseline="relu")


def test_without_a_study_the_baseline_is_named_and_nothing_else_may_differ(tmp_path):
    write_run(tmp_path / "r", base())
    gated = {"model.ffn.variant": "swiglu", "model.ffn.d_ff": 64}
    write_run(tmp_path / "r", apply_overlay(base(), gated), log_perplexity=1.9)
    with pytest.raises(RecordError, match="--baseline with one of relu, swiglu"):
        build_table(tmp_path / "r")
    assert rows(tmp_path / "r", baseline="relu")["swiglu"].delta == pytest.approx(-0.1)
    with pytest.raises(UnknownNameError, match="did you mean 'swiglu'"):
        build_table(tmp_path / "r", baseline="swiglu_")
    other_rate = {**gated, "model.ffn.variant": "reglu", "training.schedule.peak": 0.5}
    write_run(tmp_path / "r", apply_overlay(base(), other_rate))
    with pytest.raises(RecordError, match=r"training\.schedule\.peak: 0\.01 → 0\.5"):
        build_table(tmp_path / "r", baseline="relu")


def test_two_runs_of_one_cell_are_refused_and_not_averaged(tmp_path):
    write_run(tmp_path / "r", base())
    write_run(tmp_path / "r", apply_overlay(base(), {"training.schedule.peak": 0.5}))
    with pytest.raises(RecordError, match=r"both relu with seed 0.*training\.schedule\.peak"):
        build_table(tmp_path / "r", baseline="relu")


def test_runs_that_are_no_members_are_left_out_and_named(tmp_path):
    results = write_study(tmp_path)
    stray = write_run(results, apply_overlay(base(), {"training.steps": 7}), log_perplexity=9.0)
    table = build_table(results)
    assert any("1 run folders here belong to no member" in text for text in table.statements)
    assert any(stray.name in text for text in table.statements)
    assert rows(results)["relu"].log_perplexity == pytest.approx(np.mean(LOSSES["relu"]))


def test_points_that_are_no_variants_are_rows_of_their_own(tmp_path):
    rates = axis("training.schedule.peak", [0.01, 0.02])
    study = Study(name="s", question="?", base=base(), axes=rates, baseline="peak=0.01")
    losses = {"peak=0.01": (2.0, 2.1, 2.2), "peak=0.02": (1.9, 2.0, 2.1)}
    text = render(build_table(write_study(tmp_path, losses, study=study)), "md")
    assert "| peak=0.01 | relu |" in text
    assert "| peak=0.02 | relu |" in text


def test_different_executions_and_token_counts_are_said(tmp_path):
    results = write_study(tmp_path, swiglu_0={"execution_hash": "x", "tokens_seen": 5})
    text = " ".join(build_table(results).statements)
    assert "tokens per second are not comparable" in text
    assert "Tokens seen differ between points of seed 0, from 5 to 100,000" in text


def test_published_numbers_stand_in_marked_columns_with_their_contract(tmp_path):
    table = build_table(write_study(tmp_path), published_name="glu_variants_2020")
    text = render(table, "md")
    assert "65,536 steps, arXiv 2002.05202 (paper-specific result)" in text
    relu, gelu, swiglu = (row.published for row in table.rows)
    assert (relu["65,536 steps"], relu["524,288 steps"]) == ("1.997 ± 0.005", "1.677")
    assert gelu["65,536 steps"] == "1.983 ± 0.005"
    assert swiglu["524,288 steps"] == "1.636"
    assert "128 sequences of 512 input and 114 output tokens" in text
    assert "Mesh-TensorFlow's gelu" in text
    assert "Not comparable with our columns" in text
    # The keys are the same without: null, for there is no such column.
    assert to_json(build_table(tmp_path / "s"))["rows"][0]["published"] is None


def test_published_tables_name_existing_variants_and_never_the_erf_form():
    for table in PUBLISHED.values():
        for column in table.columns.values():
            assert set(column) <= set(VARIANTS)
            assert not {"gelu_erf", "geglu_erf"} & set(column)
        assert table.status in table.footnote
    with pytest.raises(UnknownNameError, match="did you mean 'glu_variants_2020'"):
        published("glu_variants_2002")


def test_csv_has_one_line_a_row_and_latex_no_raw_specials(tmp_path):
    table = build_table(write_study(tmp_path))
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert [line["variant"] for line in lines] == list(LOSSES)
    assert float(lines[2]["log_perplexity"]) == pytest.approx(np.mean(LOSSES["swiglu"]))
    body = render(table, "latex").split(r"\begin{tabular}")[1]
    assert r"gelu\_tanh" in body
    assert "gelu_tanh" not in body.replace(r"\_", "")
    assert body.count(r"\\") == 1 + len(LOSSES)


@pytest.mark.parametrize("width", [72, 100, 240])
def test_in_a_narrow_terminal_no_cell_is_broken(tmp_path, width):
    table = build_table(write_study(tmp_path))
    screen = io.StringIO()
    Console(file=screen, width=width).print(to_rich(table, width))
    found = table.rows[2]
    assert found.delta is not None and found.delta_ci95 is not None
    low, high = found.delta_ci95
    cell = f"{found.delta:+.4f} [{low:+.4f}, {high:+.4f}]".replace("-", "−")
    assert cell in screen.getvalue()
    assert "not separated" in screen.getvalue()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'json'"):
        render(build_table(write_study(tmp_path)), "jsn")

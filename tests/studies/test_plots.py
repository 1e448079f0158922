"""Figures: what they show, without a look at pixels."""

import numpy as np
import pytest

from glu_lab.studies.plots import PALETTE, draw, forest, load_curves, loss_curves, smoothed
from glu_lab.studies.table import build_table
from tests.studies.test_table import LOSSES, write_study


@pytest.fixture
def study(tmp_path):
    results = write_study(tmp_path, swiglu_0={"status": "diverged", "log_perplexity": None})
    for directory in results.iterdir():
        if directory.is_dir():
            level = 3.0 + (directory.name.startswith("swiglu"))
            (directory / "metrics.jsonl").write_text(
                "".join(
                    f'{{"step": {step}, "kind": "train", "loss": {level}}}\n' for step in range(20)
                )
                + f'{{"step": 19, "kind": "eval", "log_perplexity": {level}}}\n'
                + '{"step": 20, "kind": "train", "loss": null}\n'
            )
    return results


def test_every_run_has_a_line_and_a_null_loss_no_point(study):
    figure = loss_curves(build_table(study), load_curves(study))
    whole, end = figure.axes
    for axes in (whole, end):
        thin = [line for line in axes.lines if line.get_alpha() == 0.35]
        assert len(thin) == 3 * len(LOSSES)
        assert {np.size(line.get_xdata()) for line in thin} == {20}
    assert len({line.get_color() for line in whole.lines}) == len(LOSSES)


def test_the_forest_shows_the_tables_differences_and_intervals(study):
    table = build_table(study)
    axes = forest(table).axes[0]
    points = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert np.concatenate(points).tolist() == [row.delta for row in table.rows[1:]]
    bars = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2.2]
    assert [tuple(bar) for bar in bars] == [row.delta_ci95 for row in table.rows[1:]]
    assert axes.texts[1].get_text().endswith("1 diverged, 2 complete")


def test_figures_are_written_as_png_and_svg_and_are_the_same_each_time(study, tmp_path):
    table, curves = build_table(study), load_curves(study)
    paths = draw(table, curves, tmp_path / "figures")
    assert [path.name for path in paths] == [
        "loss_curves.png",
        "loss_curves.svg",
        "paired_differences.png",
        "paired_differences.svg",
    ]
    first = [path.read_bytes() for path in paths]
    assert first[0].startswith(b"\x89PNG")
    assert b"<svg" in first[1]
    draw(table, curves, tmp_path / "figures")
    assert [path.read_bytes() for path in paths] == first


def test_nothing_to_draw_draws_nothing(tmp_path):
    results = write_study(tmp_path, skip=[f"{name}_{s}" for name in LOSSES for s in range(3)])
    stale = tmp_path / "figures" / "loss_curves.png"
    stale.parent.mkdir()
    stale.write_bytes(b"of an earlier study")
    assert draw(build_table(results), load_curves(results), tmp_path / "figures") == []
    assert not stale.exists()


def test_smoothing_keeps_a_constant_and_the_ends():
    assert smoothed([2.0] * 50) == [2.0] * 50
    line = [float(x) for x in range(100)]
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([1.0, 5.0]) == [1.0, 5.0]


def test_the_palette_is_distinct():
    assert len(set(PALETTE)) == len(PALETTE) == 7

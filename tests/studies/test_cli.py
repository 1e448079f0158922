"""``glu-lab sweep``, ``table`` and ``plot`` as a user types them."""

import argparse
import json
import re

import pytest

from glu_lab.cli import plot, sweep, table
from glu_lab.cli.main import parse
from glu_lab.errors import BudgetError, RecordError, SpecError
from glu_lab.files.atomic import write_json
from glu_lab.spec.codec import encode
from glu_lab.studies import launch, plots
from tests.studies.synthetic import FakeData, curve, summary
from tests.studies.test_table import write_study
from tests.training.small import content

STUDY = """\
from glu_lab.studies import Study, axis, variants_matched
from tests.studies.synthetic import base

def get_study():
    return Study(name="tiny", question="Which?", base=base(), baseline="relu",
                 axes=variants_matched(["relu", "swiglu"], base()))
"""


def call(name, module, *arguments):
    args: argparse.Namespace = parse(name, module, [str(argument) for argument in arguments])
    return module.run(args)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study on disk, with stand-ins for data and training."""
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    (folder / "study.py").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    calls = []

    def train(experiment, workdir, *, dataset, progress):
        calls.append(experiment)
        if experiment.name == "tiny/swiglu/s1" and train.fails:
            raise ValueError("boom")
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(workdir / "config.json", encode(experiment))
        level = 2.0 + 0.01 * experiment.seed - 0.1 * (experiment.model.ffn.num_branches == 2)
        lines = curve(level, experiment.training.steps, experiment.seed)
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
        result = summary(experiment, log_perplexity=level)
        write_json(workdir / "summary.json", result)
        return result

    train.fails = False
    train.calls = calls
    real = (launch.plan, launch.launch)
    monkeypatch.setattr(
        sweep, "plan", lambda *a, **k: real[0](*a, **k, load_data=lambda data: FakeData())
    )
    monkeypatch.setattr(sweep, "launch", lambda *a, **k: real[1](*a, **k, train=train))
    return train


def test_a_sweep_leaves_a_table_and_figures_and_a_second_one_trains_nothing(
    study, tmp_path, capsys
):
    assert call("sweep", sweep, "experiments/tiny") == 0
    written = {path.name for path in (tmp_path / "results" / "tiny").iterdir()}
    assert {"study.json", "table.md", "table.json", "figures"} <= written
    assert len(study.calls) == 6
    content = json.loads((tmp_path / "results" / "tiny" / "table.json").read_text())
    assert [row["variant"] for row in content["rows"]] == ["relu", "swiglu"]
    assert content["rows"][1]["delta"] == pytest.approx(-0.1)
    assert "swiglu" in capsys.readouterr().out
    assert call("sweep", sweep, "experiments/tiny") == 0
    assert len(study.calls) == 6


def test_a_failed_member_gives_exit_code_1_and_its_name(study, capsys):
    study.fails = True
    assert call("sweep", sweep, "experiments/tiny") == 1
    assert len(study.calls) == 6
    assert "Failed: swiglu · seed 1: ValueError: boom" in " ".join(capsys.readouterr().out.split())
    study.fails = False
    assert call("sweep", sweep, "experiments/tiny") == 0
    assert len(study.calls) == 7


def test_only_seeds_and_set_reach_the_runs(study, capsys):
    arguments = ("--only", "variant=swiglu", "--seeds", "5", "--set", "training.steps=20", "--json")
    assert call("sweep", sweep, "experiments/tiny", *arguments) == 0
    (experiment,) = study.calls
    assert (experiment.seed, experiment.training.steps) == (5, 20)
    content = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in content["runs"]] == ["complete"]
    assert [row["status"] for row in content["table"]["rows"]] == ["missing", "complete"]


@pytest.fixture
def no_figures(monkeypatch):
    """Where figures are not the subject, their drawing would take most of the time."""
    monkeypatch.setattr(plots, "draw", lambda *_: [])


def rows_of(tmp_path):
    content = json.loads((tmp_path / "results" / "tiny" / "table.json").read_text())
    return {row["point"]: row["seed_status"] for row in content["rows"]}


def test_a_partial_sweep_of_a_finished_study_keeps_every_row_and_seed(study, no_figures, tmp_path):
    assert call("sweep", sweep, "experiments/tiny") == 0
    whole = dict.fromkeys(["0", "1", "2"], "complete")
    before = (tmp_path / "results" / "tiny" / "table.md").read_text()
    for arguments in (
        ["--seeds", "0"],
        ["--only", "variant=swiglu"],
        ["--only", "variant=relu", "--seeds", "1"],
    ):
        assert call("sweep", sweep, "experiments/tiny", *arguments) == 0
        assert rows_of(tmp_path) == {"relu": whole, "swiglu": whole}
        assert (tmp_path / "results" / "tiny" / "table.md").read_text() == before
    assert len(study.calls) == 6
    # A further seed stands beside the others, and stays when the study is run as it is.
    assert call("sweep", sweep, "experiments/tiny", "--seeds", "5", "--only", "point=relu") == 0
    more = {**whole, "5": "complete"}
    assert rows_of(tmp_path) == {"relu": more, "swiglu": {**whole, "5": "missing"}}
    assert call("sweep", sweep, "experiments/tiny") == 0
    assert rows_of(tmp_path) == {"relu": more, "swiglu": whole}
    assert len(study.calls) == 7


def test_an_override_that_would_take_runs_out_of_the_table_is_refused(study, no_figures, tmp_path):
    assert call("sweep", sweep, "experiments/tiny") == 0
    before = content(tmp_path / "results")
    changed = ["experiments/tiny", "--set", "training.steps=20"]
    with pytest.raises(RecordError, match=r"6 runs .* its own settings; a sweep with --set tr"):
        call("sweep", sweep, *changed)
    assert content(tmp_path / "results") == before
    assert call("sweep", sweep, *changed, "--results", tmp_path / "other", "--seeds", "0") == 0
    assert call("sweep", sweep, *changed, "--results", tmp_path / "other", "--seeds", "1") == 0
    with pytest.raises(RecordError, match=r"made with --set training\.steps=20"):
        call("sweep", sweep, "experiments/tiny", "--results", tmp_path / "other")


@pytest.mark.parametrize("flag", ["--dry_run", "--dry-run"])
def test_a_dry_run_shows_budgets_and_writes_nothing(study, tmp_path, capsys, flag):
    assert call("sweep", sweep, "experiments/tiny", flag, "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(p["point"], p["d_ff"], p["ffn_param_delta"]) for p in points] == [
        ("relu", 96, 0),
        ("swiglu", 64, 0),
    ]
    assert study.calls == []
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("width", [40, 80])
def test_a_dry_run_cuts_no_name_in_a_narrow_terminal(study, tmp_path, capsys, monkeypatch, width):
    names = ["a_point_with_a_name_of_its_own_that_is_long", "another, peak=0.00012345, warm_up=700"]
    file = tmp_path / "experiments" / "tiny" / "study.py"
    points = f'coupled({{name: {{"training.steps": n}} for n, name in enumerate({names!r}, 7)}})'
    file.write_text(
        STUDY.replace('variants_matched(["relu", "swiglu"], base())', points)
        .replace("axis, variants_matched", "coupled")
        .replace('"relu"', repr(names[0]))
    )
    monkeypatch.setenv("COLUMNS", str(width))
    assert call("sweep", sweep, "experiments/tiny", "--dry_run") == 0
    out = capsys.readouterr().out
    assert "…" not in out and max(map(len, out.splitlines())) <= width
    # Other columns stand two blanks or more to the right; a folded name goes on below.
    shown = "".join(re.sub(r"\s{2,}\S.*", "", line.strip()) for line in out.splitlines())
    assert all("".join(name.split()) in "".join(shown.split()) for name in names), out


def test_an_unmatched_study_is_refused_before_any_training(study, tmp_path):
    file = tmp_path / "experiments" / "tiny" / "study.py"
    unmatched = STUDY.replace(
        'variants_matched(["relu", "swiglu"], base())',
        'axis("model.ffn.variant", ["relu", "swiglu"])',
    )
    file.write_text(unmatched)
    with pytest.raises(BudgetError, match=r"swiglu \(d_ff 96\)"):
        call("sweep", sweep, "experiments/tiny")
    assert study.calls == []
    assert not (tmp_path / "results").exists()


def test_the_table_is_printed_or_written(tmp_path, capsys):
    results = write_study(tmp_path)
    assert call("table", table, results, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["baseline"] == "relu"
    assert call("table", table, results, "--format", "md", "--output", tmp_path / "t.md") == 0
    assert (tmp_path / "t.md").read_text().startswith("# s: Which is best?")
    assert call("table", table, results, "--published", "glu_variants_2020") == 0
    assert "paper-specific" in capsys.readouterr().out
    with pytest.raises(SpecError, match="--output needs --format"):
        call("table", table, results, "--output", tmp_path / "t.md")


def test_plot_names_its_files_and_refuses_an_empty_study(tmp_path, capsys):
    results = write_study(tmp_path)
    assert call("plot", plot, results, "--output", tmp_path / "f") == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "f" / f"paired_differences.{suffix}") for suffix in ("png", "svg")
    ]
    with pytest.raises(RecordError, match="is not a folder of results"):
        call("plot", plot, tmp_path / "none")

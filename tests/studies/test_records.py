"""Run directories, read strictly."""

import json

import pytest

from glu_lab.errors import RecordError
from glu_lab.studies.records import find_runs, read_metrics, read_record
from tests.studies.synthetic import base, summary, write_run


def test_a_complete_run_reads_back(tmp_path):
    record = read_record(write_run(tmp_path, base(), log_perplexity=1.5, exact_zero_fraction=0.25))
    assert (record.status, record.variant, record.d_ff, record.seed) == ("complete", "relu", 96, 0)
    assert (record.log_perplexity, record.exact_zero_fraction) == (1.5, 0.25)
    assert record.bits_per_byte is None


def test_without_a_summary_a_run_is_unfinished_whatever_else_there_is(tmp_path):
    run = write_run(tmp_path, base(), metrics=True, with_summary=False)
    record = read_record(run)
    assert (record.status, record.variant, record.log_perplexity) == ("unfinished", "relu", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"summary\.json is not JSON"),
        ("[1]", r"summary\.json must hold a JSON object"),
        ('{"status": "complete"}', r"summary\.json lacks .*log_perplexity"),
    ],
)
def test_an_unreadable_summary_is_named(tmp_path, text, message):
    run = write_run(tmp_path, base())
    (run / "summary.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        read_record(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "done"}, "states status 'done'; expected one of complete"),
        ({"log_perplexity": None}, "says 'complete', but log_perplexity is None"),
        ({"log_perplexity": float("nan")}, "says 'complete', but log_perplexity is nan"),
        ({"params": None}, "but params is None"),
        ({"data_fingerprint": ""}, "but data_fingerprint is ''"),
        ({"seed": "0"}, "seed must be an integer"),
    ],
)
def test_a_summary_that_contradicts_itself_is_refused(tmp_path, changes, message):
    run = write_run(tmp_path, base())
    (run / "summary.json").write_text(json.dumps(summary(base(), **changes)))
    with pytest.raises(RecordError, match=message):
        read_record(run)


def test_a_diverged_run_has_no_number_where_none_is_defined(tmp_path):
    record = read_record(
        write_run(tmp_path, base(), status="diverged", log_perplexity=float("nan"))
    )
    assert (record.status, record.log_perplexity) == ("diverged", None)


def test_a_resumed_run_counts_each_step_once_and_a_cut_last_line_never(tmp_path):
    run = write_run(tmp_path, base())
    entries = [(1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5), (3, 3.5)]
    lines = [json.dumps({"step": s, "kind": "train", "loss": loss}) for s, loss in entries]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4, "ki')
    assert [(e["step"], e["loss"]) for e in read_metrics(run)] == [(1, 5.0), (2, 4.5), (3, 3.5)]


def test_a_bad_line_of_metrics_is_named(tmp_path):
    run = write_run(tmp_path, base())
    (run / "metrics.jsonl").write_text('{"step": 1, "kind": "train"}\nnonsense\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2 is not JSON"):
        read_metrics(run)
    (run / "metrics.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl:1 must be an object with 'step'"):
        read_metrics(run)


def test_the_wrong_folder_is_refused_with_the_right_one(tmp_path):
    run = write_run(tmp_path / "quickstart", base())
    (tmp_path / "quickstart" / "figures").mkdir()
    assert find_runs(tmp_path / "quickstart") == [run]
    with pytest.raises(RecordError, match="is one run; give the folder of its study"):
        find_runs(run)
    with pytest.raises(RecordError, match=r"holds 1 studies; give one of them: .*quickstart"):
        find_runs(tmp_path)
    with pytest.raises(RecordError, match=r"Did you mean .*quickstart"):
        find_runs(tmp_path / "quikstart")
    with pytest.raises(RecordError, match="holds no run"):
        find_runs(tmp_path / "quickstart" / "figures")

"""The rules of wording: what they find, what they let through, and that the reports are clean."""

from pathlib import Path

import pytest

from glu_lab.conformance.failures.reports import layout_reports, reports
from glu_lab.conformance.failures.wording import Report, scan

ROOT = Path(__file__).parents[2]


def rows_of(text, **fields):
    return {claim.row for claim in scan(Report("text", text, **fields))}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (20, "Channel 12 remembers facts about rivers."),
        (20, "The values of layer 3 contain world knowledge."),
        (20, "An MLP is the model's memory."),
        (20, "Facts are stored\nin the keys."),
        (21, "Tokens are routed by the gate."),
        (21, "The dense FFN acts as a mixture of experts."),
        (22, "Halving d_ff gives a speedup."),
        (22, "This FFN is memory-bound."),
        (22, "The whole model gets cheaper."),
        (22, "It cuts the end-to-end cost."),
        (22, "On a TPU it takes less."),
        (22, "The layer takes 8,064 MACs."),
        (22, "They need 1.2 GFLOP."),
    ],
)
def test_a_claim_is_found_and_named_by_its_row(row, sentence):
    assert rows_of(f"# Title\n\nA table follows.\n\n{sentence}\n") == {row}


@pytest.mark.parametrize(
    "sentence",
    [
        "How projects store the tensors of a feed-forward layer.",
        "Columns of W_i can be read as keys, an analogy.",
        "Measured on one H100: 1.3 times faster, 3 runs.",
        "Tokens per second are not comparable between them.",
        "One FFN takes 8,064 MACs per token.",
        "| variant | MACs/token, one FFN |\n|---|---|\n| relu | 8,064 |",
        "* not part of the FFN: `gate.*`, router",
        "`glu-lab plan` counts bytes and FLOPs.",
        "The weights lie in `experts.3.w1`, beside `router`.",
    ],
)
def test_what_was_computed_may_be_said(sentence):
    assert rows_of(sentence) == set()


def test_routing_may_be_spoken_of_where_there_are_experts():
    text = "The router sends each row to two experts."
    assert rows_of(text) == {21} and rows_of(text, dense=False) == set()


def test_a_number_of_the_ledger_stands_beside_what_it_counts():
    labels = {"8,064": "one FFN"}
    assert rows_of("MACs per token of the model: 8,064", ledger=labels) == {22}
    assert rows_of("MACs per token, one FFN: 8,064", ledger=labels) == set()
    # Another number that ends or begins alike is not it.
    assert rows_of("per token and layer 18,064 MACs, 8,064,000 MACs", ledger=labels) == set()


def test_the_library_s_reports_are_clean(tmp_path):
    made = reports(tmp_path)
    assert {report.name for report in made} == {
        "table.md", "table.latex",
        "layouts.md, of all", "layouts.md, of dense FFNs", "layouts.md, of experts",
    }  # fmt: skip
    for report in made:
        assert report.seems_right() and scan(report) == [], report.name


def test_sections_of_layouts_with_experts_are_told_from_the_others():
    parts = {report.name: report for report in layout_reports()}
    assert "## hf-llama\n" in parts["layouts.md, of dense FFNs"].text
    assert "## mixtral\n" in parts["layouts.md, of experts"].text
    # The page of experts does speak of routers: as if of dense FFNs it would not pass.
    found = scan(Report("as dense", parts["layouts.md, of experts"].text))
    assert {claim.row for claim in found} == {21}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("results/*/table.md")), ids=lambda p: p.parent.name
)
def test_the_tables_on_record_are_clean(path):
    text = path.read_text("utf-8")
    assert "MACs/token, one FFN" in text and scan(Report(str(path), text)) == []

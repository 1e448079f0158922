"""The report: named by its content, complete, readable without anything beside it."""

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from glu_lab.conformance import matrix, report
from glu_lab.conformance.measures import compare, ulp
from glu_lab.conformance.page import markdown, page
from glu_lab.oracle.tolerances import tolerance

CHOICE = ["spec=swiglu", "spec=gpt_oss", "eager", "by_hand_2", "float32", "many_rows", "normal"]


def walk():
    axes = matrix.narrow(matrix.make_axes(), CHOICE)
    planned = matrix.plan(axes, "full")
    done = matrix.run(axes, planned)
    return report.document(done, planned, report.identity(axes, "full", CHOICE))


@pytest.fixture(scope="module")
def found():
    return walk()


def passed(document):
    return next(row for row in document["rows"] if row["status"] == "passed")


@pytest.fixture(scope="module")
def layouts():
    axes = matrix.narrow(matrix.make_axes(), ["spec=swiglu", "hf-*"])
    planned = matrix.plan(axes, "quick")
    return report.document(
        matrix.run(axes, planned), planned, report.identity(axes, "quick", ["hf-*"])
    )


def test_two_runs_have_one_hash(found):
    again = walk()
    assert again == found
    assert again["sha256"] == report.content_hash(again)
    assert re.fullmatch("[0-9a-f]{64}", found["sha256"])


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["rows"].pop(),
        lambda d: passed(d).update(share=passed(d)["share"] * 1.001),
        lambda d: passed(d).update(status="failed"),
        lambda d: d["identity"].update(revision="another"),
        lambda d: d["identity"]["functions"]["swiglu"].update(sha256="0"),
        lambda d: d["tolerances"][passed(d)["tolerance"]].update(atol=1.0),
    ],
)
def test_the_hash_changes_with_every_part(found, change):
    other = copy.deepcopy(found)
    change(other)
    assert report.content_hash(other) != found["sha256"]


def test_a_document_read_from_json_has_the_hash_that_it_states(found):
    assert report.content_hash(json.loads(json.dumps(found))) == found["sha256"]


def test_a_row_has_errors_and_its_tolerance_with_the_reason(found):
    assert found["cells"] == len(found["rows"]) > 0
    for row in found["rows"]:
        assert {"spec", "execution", "dtype", "shape", "probe", "mode", "status"} <= row.keys()
        if row["status"] == "passed":
            assert 0 <= row["share"] <= 1 and row["absolute"] >= 0 and row["ulps"] >= 0
            bound = found["tolerances"][row["tolerance"]]
            assert bound["rtol"] > 0 and "u(float32)" in bound["reason"]


def test_the_report_says_what_was_measured_and_where(found):
    import jax

    identity = found["identity"]
    assert identity["functions"]["swiglu"]["formula"] == "silu(xW₁) ⊙ (xW₂)"
    assert identity["libraries"]["jax"] == jax.__version__
    assert identity["device"] == jax.devices()[0].device_kind
    assert {"revision", "glu_lab", "machine", "tier", "only"} <= identity.keys()
    assert not {"time", "date", "seconds"} & {*identity, *found, *found["rows"][0]}


def test_cells_without_devices_leave_the_evidence_incomplete(found):
    # This process has one device, and by_hand_2 needs two.
    assert found["not_run"]["devices"] > 0 and not found["failed"] and found["passed"]
    assert not report.is_complete(found)
    rows = [row for row in found["rows"] if row["status"] != "devices"]
    assert report.is_complete(report.sealed({**found, "rows": rows}))
    assert not report.is_complete(report.sealed({**found, "rows": []}))
    rows[0] = {**rows[0], "status": "raised"}
    assert not report.is_complete(report.sealed({**found, "rows": rows}))


def test_what_a_layout_does_not_store_has_its_reason(layouts):
    skipped = [row for row in layouts["rows"] if row["status"] == "not_stored"]
    assert len(skipped) == layouts["not_run"]["not_stored"] > 0
    for row in skipped:
        assert row["layout"] in layouts["reasons"][row["why"]]
    assert report.is_complete(layouts)


def test_worst_cells_come_first(found):
    rows = [dict(row) for row in found["rows"]]
    rows[-1] = {**rows[-1], "status": "raised", "detail": "x"}
    rows[-2] = {**rows[-2], "status": "failed", "share": "inf"}
    statuses = [row["status"] for row in report.worst_first(rows)]
    assert statuses[:2] == ["failed", "raised"] and statuses[-1] == "devices"
    shares = [row["share"] for row in report.worst_first(found["rows"]) if "share" in row]
    assert shares == sorted(shares, reverse=True)


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.seen, self.data, self.attributes = [], "", []
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        self._in_data = dict(attrs).get("id") == "data"

    def handle_data(self, data):
        if self._in_data:
            self.data += data
            self._in_data = False


def test_the_page_holds_every_cell_and_needs_nothing_from_elsewhere(layouts):
    text = page(layouts)
    elements = Elements(text)
    held = json.loads(elements.data)
    assert sorted(map(repr, held["rows"])) == sorted(map(repr, layouts["rows"]))
    assert held["reasons"] == layouts["reasons"]
    assert not {"src", "href", "srcset"} & {name for name, _ in elements.attributes}
    assert "http" not in re.sub(r"<script type=.*?</script>", "", text)
    assert layouts["sha256"] in text and f"{layouts['cells']:,} cells" in text
    assert f"{layouts['left_to_full']:,} left" in text or not layouts["left_to_full"]


def test_text_of_a_report_cannot_end_the_pages_script(found):
    rows = [{**found["rows"][0], "detail": "</script><b>"}]
    text = page(report.sealed({**found, "rows": rows}))
    assert "</script><b>" not in text
    assert json.loads(Elements(text).data)["rows"][0]["detail"] == "</script><b>"


def test_the_markdown_states_the_numbers_and_the_hash(found):
    text = markdown(found, "glu-lab conformance")
    assert found["sha256"] in text and f"{found['passed']:,} passed" in text
    assert "| eager |" in text and "needs" not in text.splitlines()[2]


def test_ulps_are_the_distance_of_the_dtypes_numbers():
    import numpy as np

    for dtype in ("float16", "float32", "float64"):
        values = np.array([1.0, 1.5, 2.0, 1000.0, 3e-5], dtype)
        np.testing.assert_array_equal(ulp(values.astype(np.float64), dtype), np.spacing(values))
    assert ulp(np.array([1.0]), "bfloat16") == 2.0**-7


def test_errors_are_the_largest_over_all_arrays():
    bound = tolerance("float32", "float32", 4)
    first = compare("output", [1.0, 2.0], [1.0, 2.0 + 2.0**-21], [1, 1], bound, "float32", 4)
    second = compare("d x", [0.0], [0.0], [1.0], bound, "float32", 4)
    both = second.join(first)
    assert (both.array, both.absolute) == ("output", 2.0**-21)
    assert both.ulps == 2 and both.relative == pytest.approx(2.0**-22, rel=1e-6)
    other = compare("d x", [float("nan"), 1.0], [1.0, 1.0], [1.0, 1.0], bound, "float32", 4)
    assert other.status == "nonfinite" and other.disagreements == 1
    assert both.join(other).status == "nonfinite"

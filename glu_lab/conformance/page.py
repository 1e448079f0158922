"""A report as one page: no scripts, fonts or styles from elsewhere."""

import html
import json
from collections.abc import Mapping
from typing import Any

from glu_lab.conformance.cells import NOT_RUN, PROBLEMS
from glu_lab.conformance.report import lines, worst_first

#: Axes that a reader can filter by, and the columns of the table.
_FILTERS = ("status", "spec", "execution", "layout", "dtype", "shape", "probe", "mode")
_NUMBERS = ("share", "array", "absolute", "relative", "ulps", "tolerance")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
tr.bad td { background: #fdd } tr.skip td { color: #777 }
select { font: inherit; max-width: 12rem } label { margin-right: 1rem; white-space: nowrap }
code { word-break: break-all }
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const filters = %(filters)s, numbers = %(numbers)s, problems = new Set(%(problems)s);
const skipped = new Set(%(skipped)s), most = 500;
const box = document.getElementById('filters'), body = document.getElementById('rows');
const cell = (row, text, number) => {
  const td = document.createElement('td');
  td.textContent = text ?? '';
  if (number) td.className = 'n';
  row.append(td);
};
const chosen = {};
for (const name of filters) {
  const values = [...new Set(data.rows.map(row => row[name]).filter(v => v !== undefined))];
  const label = document.createElement('label'), select = document.createElement('select');
  for (const value of ['', ...values]) select.add(new Option(value || 'any', value));
  select.onchange = () => { chosen[name] = select.value; show(); };
  label.append(name + ' ', select);
  box.append(label);
}
function show() {
  const rows = data.rows.filter(row => filters.every(n => !chosen[n] || row[n] === chosen[n]));
  document.getElementById('count').textContent =
    rows.length + ' cells' + (rows.length > most ? ', the first ' + most + ' are shown' : '');
  body.replaceChildren(...rows.slice(0, most).map(row => {
    const tr = document.createElement('tr');
    tr.className = problems.has(row.status) ? 'bad' : skipped.has(row.status) ? 'skip' : '';
    for (const name of filters) cell(tr, row[name]);
    for (const name of numbers) cell(tr, row[name], name !== 'array' && name !== 'tolerance');
    cell(tr, row.detail ?? data.reasons[row.why]);
    return tr;
  }));
}
show();
"""


def page(report: Mapping[str, Any]) -> str:
    """The report of `glu_lab.conformance.report.document` as HTML.

    Its numbers stand first, then the cells, worst ones first, to filter by every axis.
    """
    identity = report["identity"]
    about = {
        "device": f"{identity['devices']} × {identity['device']}, {identity['machine']}",
        "libraries": ", ".join(f"{n} {v}" for n, v in identity["libraries"].items()),
        "glu_lab": f"{identity['glu_lab']}, revision {identity['revision'] or 'unknown'}",
        "tier": identity["tier"]
        + (f", only {' '.join(identity['only'])}" * bool(identity["only"])),
        "sha256": report["sha256"],
    }
    summary = f"{report['cells']:,} cells: {report['passed']:,} passed, {report['failed']:,} failed"
    skipped = [f"{n:,} not run: {NOT_RUN[status]}" for status, n in report["not_run"].items()]
    if report["left_to_full"]:
        skipped.append(f"{report['left_to_full']:,} left to the full tier")
    by_execution = [
        _row(line.name, line.cells, line.passed, line.failed, line.not_run,
             "" if line.worst is None else line.worst["share"])
        for line in lines(report)
    ]  # fmt: skip
    tolerances = [
        _row(name, t["rtol"], t["atol"], t["reason"]) for name, t in report["tolerances"].items()
    ]
    functions = [_row(name, f["formula"]) for name, f in identity["functions"].items()]
    data = {"rows": worst_first(report["rows"]), "reasons": report["reasons"]}
    script = _SCRIPT % {
        "filters": json.dumps(_FILTERS),
        "numbers": json.dumps(_NUMBERS),
        "problems": json.dumps(list(PROBLEMS)),
        "skipped": json.dumps(list(NOT_RUN)),
    }
    # "</" would end the element, inside of a string too.
    held = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>Conformance: {html.escape(summary)}</title><style>{_STYLE}</style>",
            f"<h1>Conformance</h1><p><strong>{html.escape(summary)}</strong></p>",
            *(f"<p>{html.escape(text)}</p>" for text in skipped),
            _table(("", ""), [_row(*item) for item in about.items()]),
            "<h2>Executions</h2>",
            _table(
                ("execution", "cells", "passed", "failed", "not run", "largest share"),
                by_execution,
            ),
            "<h2>Cells, worst first</h2>",
            "<p>A share is an error divided by what rounding explains; at most 1 passes.</p>",
            '<p id="filters"></p><p id="count"></p>',
            _table((*_FILTERS, *_NUMBERS, "detail"), [], "rows"),
            "<h2>Tolerances</h2>",
            _table(("dtype and longest sum", "rtol", "atol", "reason"), tolerances),
            "<h2>Functions</h2>",
            _table(("Spec", "hidden state"), functions),
            f'<script type="application/json" id="data">{held}</script>',
            f"<script>{script}</script></html>",
            "",
        ]
    )


def _row(*values: Any) -> str:
    cells = []
    for value in values:
        number = isinstance(value, int | float)
        text = f"{value:,.4g}" if isinstance(value, float) else str(value)
        cells.append(f"<td{' class=n' if number else ''}>{html.escape(text)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _table(columns: tuple[str, ...], rows: list[str], name: str = "") -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = f'<tbody id="{name}">' if name else "<tbody>"
    return f"<table><thead><tr>{head}</tr></thead>{body}{''.join(rows)}</tbody></table>"


def markdown(report: Mapping[str, Any], command: str) -> str:
    """The report's numbers and worst cells as Markdown, without the rows.

    Args:
        report: from `glu_lab.conformance.report.document`.
        command: that made it.
    """
    from glu_lab.conformance.report import place_of

    identity = report["identity"]
    text = [
        "# Conformance\n",
        f"`{command}`: {report['cells']:,} cells, {report['passed']:,} passed, "
        f"{report['failed']:,} failed.",
        *(f"{n:,} were not run: {NOT_RUN[status]}." for status, n in report["not_run"].items()),
        f"\nsha256 `{report['sha256']}`, revision `{identity['revision']}`, "
        f"{identity['devices']} × {identity['device']} ({identity['machine']}), "
        + ", ".join(f"{n} {v}" for n, v in identity["libraries"].items())
        + ".\n",
        "A share is an error divided by what rounding explains; at most 1 passes.\n",
    ]
    for axis in ("execution", "dtype", "probe", "shape", "mode"):
        text += [
            f"| {axis} | cells | passed | failed | not run | largest share |",
            "|---|---|---|---|---|---|",
        ]
        for line in lines(report, axis):
            worst = "–" if line.worst is None else line.worst["share"]
            text.append(
                f"| {line.name} | {line.cells} | {line.passed} | {line.failed} | {line.not_run} | "
                f"{worst} |"
            )
        text.append("")
    text += [
        "Worst cells:\n",
        "| cell | status | share | array | absolute | relative | ulps |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in worst_first(report["rows"])[:20]:
        numbers = " | ".join(str(row.get(n, "–")) for n in _NUMBERS[:-1])
        text.append(f"| {place_of(row)} | {row['status']} | {numbers} |")
    return "\n".join(text) + "\n"

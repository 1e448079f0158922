"""A results table as text: terminal, Markdown, CSV, JSON, LaTeX."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

import rich.box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from glu_lab.errors import UnknownNameError
from glu_lab.studies.table import Row, Table, to_json

ABSENT = "–"

# Characters that rich puts between two columns of these tables.
_GAP = 3

_LEFT = ("point", "variant", "formula", "verdict", "status")

# Symbols that pdfLaTeX has no text glyph for.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "⊙": r"$\odot$",
    "σ": r"$\sigma$",
    "Φ": r"$\Phi$",
    "φ": r"$\varphi$",
    "β": r"$\beta$",
    "α": r"$\alpha$",
    "Δ": r"$\Delta$",
    "²": r"$^2$",
    "√": r"$\sqrt{}$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "π": r"$\pi$",
    "ₒ": r"$_o$",
    **{digit: f"$_{index}$" for index, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Headings and formatted cells of the readable formats.

    A column of which nothing is known in any row is left out, but for the results themselves.
    """
    columns: list[tuple[str, Callable[[Row], str | None]]] = [
        ("point", lambda row: row.point if row.point != row.variant else None),
        ("variant", lambda row: row.variant),
        ("formula", lambda row: row.formula or None),
        ("d_ff", lambda row: str(row.d_ff)),
        ("parameters", lambda row: _integer(row.params)),
        ("Δ parameters", lambda row: _signed(row.param_delta)),
        ("MACs/token, one FFN", lambda row: _integer(row.macs_per_token)),
        ("tokens/s", lambda row: _number(row.tokens_per_second, ",.0f")),
        ("log-perplexity", _log_perplexity),
        (f"paired Δ to {table.baseline} [95 %]", _delta),
        ("verdict", lambda row: row.mark),
        ("bits/byte", lambda row: _number(row.bits_per_byte, ".4f")),
        ("exact zeros", lambda row: _number(row.exact_zero_fraction, ".1%")),
        ("seeds", lambda row: str(len(row.seeds))),
        ("status", lambda row: row.status),
    ]
    for title, heading in table.published_headings.items():
        columns.append((heading, _published(title)))
    kept = [
        (heading, cell)
        for heading, cell in columns
        if heading == "log-perplexity" or any(cell(row) is not None for row in table.rows)
    ]
    if kept and kept[0][0] == "point":
        # Shown for all rows as soon as one point is not named by its variant.
        kept[0] = ("point", lambda row: row.point)
    return (
        [heading for heading, _ in kept],
        [[cell(row) or ABSENT for _, cell in kept] for row in table.rows],
    )


def grids(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, named: int, width: int
) -> list[RichTable]:
    """A table for a terminal; columns that do not fit stand in a further block below.

    Nothing is cut off: a cell wider than the terminal is folded.

    Args:
        headings: of the columns; headings of `_LEFT` stand left, others right.
        rows: cells.
        named: how many columns at the beginning say what a row is; every block has them.
        width: of the terminal, in characters.
    """
    # A heading may break at its spaces, a cell may not.
    widths = [
        max(*(len(row[i]) for row in rows), *map(len, heading.split()), min(len(heading), 16))
        for i, heading in enumerate(headings)
    ]
    blocks: list[list[int]] = []
    room = 0
    for index in range(named, len(headings)):
        if not blocks or room < widths[index] + _GAP:
            blocks.append(list(range(named)))
            room = width - sum(widths[i] + _GAP for i in range(named))
        blocks[-1].append(index)
        room -= widths[index] + _GAP
    made = []
    for block in blocks:
        grid = RichTable(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        wanted = sum(widths[i] + _GAP for i in block)
        for i in block:
            grid.add_column(
                Text(headings[i]),
                justify="left" if headings[i] in _LEFT else "right",
                # Rich shrinks the widest columns of a block that is too wide by itself.
                width=widths[i] if wanted <= width + _GAP else None,
                overflow="fold",
            )
        for row in rows:
            grid.add_row(*(Text(row[i]) for i in block))
        made.append(grid)
    return made


def to_rich(table: Table, width: int) -> Group:
    """The table for a terminal, by `grids`, with its statements.

    Args:
        table: the table.
        width: of the terminal, in characters.
    """
    headings, rows = cells(table)
    made = grids(headings, rows, named=headings.index("variant") + 1, width=width)
    lines = [*table.contract, *(f"• {text}" for text in table.statements), *table.footnotes]
    return Group(Text(_title(table), style="bold"), *made, *map(Text, lines))


def to_markdown(table: Table) -> str:
    """The table as GitHub Markdown, with its statements as a list."""
    headings, rows = cells(table)
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in [headings, *rows]]
    lines = [f"# {_title(table)}", ""]
    lines += [line for text in table.contract for line in (text, "")]
    lines.append("| " + " | ".join(escaped[0]) + " |")
    lines.append("|" + "---|" * len(headings))
    lines += ["| " + " | ".join(row) + " |" for row in escaped[1:]]
    lines.append("")
    lines += [f"- {statement}" for statement in table.statements]
    lines += [line for text in table.footnotes for line in ("", text)]
    return "\n".join(lines).rstrip() + "\n"


def to_csv(table: Table) -> str:
    """One line a row, numbers unrounded, empty where nothing is known."""
    rows = []
    for entry in to_json(table)["rows"]:
        low, high = entry.pop("delta_ci95") or (None, None)
        entry |= {"delta_ci95_low": low, "delta_ci95_high": high}
        entry["seeds"] = " ".join(map(str, entry["seeds"]))
        entry["seed_status"] = " ".join(f"{s}:{text}" for s, text in entry["seed_status"].items())
        for title, value in (entry.pop("published") or {}).items():
            entry[table.published_headings[title]] = value
        rows.append(entry)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def to_latex(table: Table) -> str:
    """A ``tabular`` for the booktabs package, with contract and statements as comments."""
    headings, rows = cells(table)
    comments = [_title(table), *table.contract, *table.statements, *table.footnotes]
    lines = [f"% {' '.join(comment.split())}" for comment in comments]
    lines.append(r"\begin{tabular}{" + "l" * len(headings) + "}")
    lines.append(r"\toprule")
    lines.append(" & ".join(map(_escape_latex, headings)) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(map(_escape_latex, row)) + r" \\" for row in rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def to_json_text(table: Table) -> str:
    """The JSON form; numbers unrounded, null where nothing is known."""
    return json.dumps(to_json(table), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


#: Formats that are plain text; ``rich`` needs a terminal.
WRITERS: Mapping[str, Callable[[Table], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json_text,
    "latex": to_latex,
}


def render(table: Table, form: str) -> str:
    """A table in one of `WRITERS`.

    Raises:
        UnknownNameError: for another format.
    """
    if form not in WRITERS:
        raise UnknownNameError("table format", form, WRITERS)
    return WRITERS[form](table)


def _title(table: Table) -> str:
    return f"{table.name}: {table.question}" if table.question else table.name


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _integer(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _signed(value: int | None) -> str | None:
    if value is None:
        return None
    return f"{value:+,}".replace("-", "−") if value else "0"


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _log_perplexity(row: Row) -> str | None:
    if row.log_perplexity is None:
        return None
    text = f"{row.log_perplexity:.4f}"
    return text if row.log_perplexity_se is None else f"{text} ± {row.log_perplexity_se:.4f}"


def _delta(row: Row) -> str | None:
    if row.delta is None or row.mark == "baseline":
        return None
    text = f"{row.delta:+.4f}"
    if row.delta_ci95 is not None:
        text += f" [{row.delta_ci95[0]:+.4f}, {row.delta_ci95[1]:+.4f}]"
    return text.replace("-", "−")


def _published(title: str) -> Callable[[Row], str | None]:
    return lambda row: row.published.get(title)

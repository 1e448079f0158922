"""Reports as titled tables: for a terminal, for a page, and kept by name in one file.

A report is a mapping ready for JSON. Several of them, one for each config, share a file
``NAME.json`` with a page ``NAME.md`` beside it, which is written anew from the file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from glu_lab.errors import RecordError
from glu_lab.files.atomic import write_json, write_text


class Section(NamedTuple):
    """One table.

    Attributes:
        title: a line above it.
        columns: their heads.
        rows: cells as text.
        note: a paragraph below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


#: Characters of a line where there is no terminal to say so.
_PIPE_WIDTH = 160

Render = Callable[[Mapping[str, Any]], Sequence[Section]]


def number(value: float | None, digits: int = 4) -> str:
    """A number of a few significant digits; a dash for none."""
    return "–" if value is None else f"{value:.{digits}g}"


def show(sections: Sequence[Section]) -> None:
    """Prints tables on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, _PIPE_WIDTH)
    for section in sections:
        console.print(section.title, style="bold", soft_wrap=True)
        if section.rows:
            table = Table(*section.columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
            for column in table.columns:
                column.overflow = "fold"
            for row in section.rows:
                table.add_row(*row)
            console.print(table)
        if section.note:
            console.print(section.note)
        console.print()


def page(title: str, about: str, reports: Mapping[str, Mapping[str, Any]], render: Render) -> str:
    """A page of Markdown with the tables of several reports."""
    lines = [f"# {title}", "", about]
    for name, report in reports.items():
        lines += ["", f"## {name}"]
        for section in render(report):
            lines += ["", f"**{section.title}**"]
            if section.rows:
                lines += ["", _line(section.columns), _line(["---"] * len(section.columns))]
                lines += [_line(row) for row in section.rows]
            if section.note:
                lines += ["", section.note]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def keep(
    place: Path, name: str, report: Mapping[str, Any], title: str, about: str, render: Render
) -> None:
    """Adds a report to ``place.json``, in place of one of its name, and rewrites ``place.md``.

    Raises:
        RecordError: when the file holds something else, or cannot be written.
    """
    file = place.with_name(f"{place.name}.json")
    reports: dict[str, Any] = {}
    if file.exists():
        try:
            reports = json.loads(file.read_text(encoding="utf-8"))
            assert isinstance(reports, dict) and all(isinstance(r, dict) for r in reports.values())
        except (OSError, ValueError, AssertionError) as error:
            raise RecordError(
                f"{file} does not hold reports by name ({error or type(error).__name__}); give "
                "another place, or remove it."
            ) from error
    reports[name] = dict(report)
    write_json(file, reports)
    write_text(place.with_name(f"{place.name}.md"), page(title, about, reports, render))

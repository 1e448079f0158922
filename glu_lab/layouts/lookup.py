"""The table of layouts by name."""

import re
from collections.abc import Mapping

from glu_lab.errors import LayoutError, UnknownNameError
from glu_lab.layouts.families import interleaved
from glu_lab.layouts.layout import Layout
from glu_lab.layouts.tables import TABLES

#: Every built-in layout by name, in the order in which they are listed.
LAYOUTS: dict[str, Layout] = {row.name: row for table in TABLES for row in table}

#: The canonical form itself.
CANONICAL = LAYOUTS["glu-lab"]

_FAMILY = re.compile(r"(?P<base>.+)-interleave-(?P<width>\w+)")


def find(name: str, extra: Mapping[str, Layout] | None = None) -> Layout:
    """A layout by its name or an alias.

    ``<layout>-interleave-<width>`` is the layout with its branches alternating in blocks of any
    width, for layouts that join branches in one dimension.

    Args:
        name: its name.
        extra: a user's own layouts, by name.

    Raises:
        UnknownNameError: with the nearest name.
        LayoutError: for a width that is not a number, or a layout that joins no branches.
    """
    known = {**LAYOUTS, **(extra or {})}
    named = {**{alias: row for row in known.values() for alias in row.aliases}, **known}
    if name in named:
        return named[name]
    family = _FAMILY.fullmatch(name)
    if family and family["base"] in named:
        if not re.fullmatch(r"[1-9][0-9]*", family["width"]):
            raise LayoutError(
                f"layout {name!r}: write the width of the blocks as a number, for example "
                f"{family['base']}-interleave-32."
            )
        return interleaved(named[family["base"]], int(family["width"]))
    raise UnknownNameError(
        "layout", name, named, "glu-lab layouts lists them; your own go into a TOML file."
    )


def layouts_of_model_type(model_type: str) -> tuple[Layout, ...]:
    """The layouts that a config's ``model_type`` is known to use."""
    return tuple(row for row in LAYOUTS.values() if model_type in row.model_types)

"""Layouts of users: TOML files into the same dataclasses, strictly, and back."""

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glu_lab.errors import GluLabError, LayoutError, UnknownNameError
from glu_lab.layouts.layout import Layout
from glu_lab.layouts.lookup import LAYOUTS
from glu_lab.spec.codec import decode

#: Fields that TOML writes as a table of texts.
_PAIRS = tuple[tuple[str, str], ...]


def read_layouts(path: str | Path) -> dict[str, Layout]:
    """The layouts of a TOML file, by name.

    Args:
        path: of a file with one ``[[layout]]`` a row.

    Raises:
        UnknownNameError: for a key that no field has, with the nearest.
        LayoutError: for a file that cannot be read or is no TOML, a missing or wrong value, or a
            name that is taken; the path stands in the message.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise LayoutError(f"cannot read the layouts of {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LayoutError(f"{path} is no TOML: {error}.") from None
    return layouts_from_toml(document, str(path))


def layouts_from_toml(document: Mapping[str, Any], where: str = "TOML") -> dict[str, Layout]:
    """The layouts of a parsed TOML document.

    Raises:
        As `read_layouts`.
    """
    for key in document:
        if key != "layout":
            raise UnknownNameError("config key", key, ("layout",), f"In {where}.")
    tables = document.get("layout", [])
    if not isinstance(tables, list) or not tables:
        raise LayoutError(f"{where} has no [[layout]].")
    taken = {name for row in LAYOUTS.values() for name in (row.name, *row.aliases)}
    made: dict[str, Layout] = {}
    for index, table in enumerate(tables):
        try:
            layout = decode(Layout, _as_pairs(Layout, table), f"layout[{index}]")
        except UnknownNameError:
            raise
        except GluLabError as error:
            raise LayoutError(f"{where}: {error}") from None
        for name in (layout.name, *layout.aliases):
            if name in taken:
                raise LayoutError(f"{where}: a layout named {name!r} exists already.")
            taken.add(name)
        made[layout.name] = layout
    return made


def _as_pairs(cls: type, table: Any) -> Any:
    """Tables of texts as the pairs that the dataclasses hold."""
    if not isinstance(table, Mapping):
        return table
    hints = typing.get_type_hints(cls)
    changed = {}
    for key, value in table.items():
        hint = hints.get(key)
        if hint == _PAIRS and isinstance(value, Mapping):
            value = [list(pair) for pair in value.items()]
        elif dataclasses.is_dataclass(hint):
            value = _as_pairs(typing.cast(type, hint), value)
        elif typing.get_origin(hint) is tuple and isinstance(value, list):
            inner = typing.get_args(hint)[0]
            if dataclasses.is_dataclass(inner):
                value = [_as_pairs(typing.cast(type, inner), item) for item in value]
        changed[key] = value
    return changed


def to_toml(layouts: Iterable[Layout]) -> str:
    """Layouts as a TOML document that `read_layouts` reads; defaults are left out."""
    lines: list[str] = []
    for layout in layouts:
        _write_table(lines, "layout", layout, array=True)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(lines: list[str], path: str, value: Any, *, array: bool) -> None:
    lines += ["", f"[[{path}]]" if array else f"[{path}]"]
    tables = []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.default is not dataclasses.MISSING and item == field.default:
            continue
        hint = typing.get_type_hints(type(value))[field.name]
        if dataclasses.is_dataclass(item):
            tables.append((field.name, [item], False))
        elif hint == _PAIRS:
            inner = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in item)
            lines.append(f"{field.name} = {{ {inner} }}")
        elif isinstance(item, tuple) and item and dataclasses.is_dataclass(item[0]):
            tables.append((field.name, item, True))
        else:
            lines.append(f"{field.name} = {_literal(item)}")
    for name, items, many in tables:
        for item in items:
            _write_table(lines, f"{path}.{name}", item, array=many)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # A JSON string is a TOML basic string: the escapes that JSON uses are TOML's.
    return json.dumps(value)

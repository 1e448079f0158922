"""A study from its file, changed and narrowed as a command line asks."""

import dataclasses
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import GluLabError, SpecError, UnknownNameError
from glu_lab.studies.overlay import apply_overlay, parse_assignment
from glu_lab.studies.study import Member, Study


def with_overrides(study: Study, overrides: Mapping[str, Any]) -> Study:
    """The same study over a changed base config.

    Raises:
        SpecError: for a key that an axis of the study sets, or that no config has.
    """
    for key in overrides:
        clash = [k for k in study.axis_keys if _contains(k, key) or _contains(key, k)]
        if key == "seed":
            raise SpecError("seed is set by the study; use --seeds.")
        if clash:
            raise SpecError(
                f"{key} cannot be overridden: the study's points set {', '.join(clash)}. "
                "Use --only to run some of the points."
            )
    if not overrides:
        return study
    return dataclasses.replace(study, base=apply_overlay(study.base, overrides))


def select(members: Sequence[Member], filters: Mapping[str, str]) -> list[Member]:
    """The members that all filters name, by ``variant``, ``point`` or ``seed``; commas list values.

    Raises:
        UnknownNameError: for another filter, or a value that no member has.
    """
    chosen = list(members)
    for key, text in filters.items():
        if key not in ("variant", "point", "seed"):
            raise UnknownNameError("filter", key, ("variant", "point", "seed"))
        values = list(dict.fromkeys(str(getattr(member, key)) for member in members))
        wanted = _split_names(text, values)
        for value in wanted:
            if value not in values:
                raise UnknownNameError(f"{key} of the study", value, values)
        chosen = [member for member in chosen if str(getattr(member, key)) in wanted]
    if not chosen:
        raise SpecError(f"no member of the study fits all of {dict(filters)}.")
    return chosen


def _split_names(text: str, names: Sequence[str]) -> list[str]:
    """Cuts a text at the commas between names, some of which hold commas of their own.

    The longest name that fits is taken each time; where none does, the rest up to the next comma,
    or all of it where names hold commas, is a name that is none.
    """
    found, rest = [], text.strip()
    while rest:
        fitting = [n for n in names if re.match(re.escape(n) + r"\s*(,|$)", rest)]
        if fitting:
            name = max(fitting, key=len)
        else:
            name = rest if any("," in n for n in names) else rest.partition(",")[0].strip()
        found.append(name)
        rest = rest[len(name) :].lstrip()[1:].lstrip()
    return found


def with_seeds(study: Study, text: str) -> Study:
    """The same study with the seeds of a text like ``"0,1,2"``.

    Raises:
        SpecError: for text that is no list of integers.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"seeds must be integers with commas between, got {text!r}.") from None
    return dataclasses.replace(study, seeds=seeds)


def parse_filters(texts: Sequence[str]) -> dict[str, str]:
    """Reads ``key=value`` texts of a command line, each key once.

    Raises:
        SpecError: for text without ``=``, or a key that is given twice.
    """
    result: dict[str, str] = {}
    for text in texts:
        key, sign, value = (part.strip() for part in text.partition("="))
        if not (sign and key and value):
            raise SpecError(f"{text!r} is not key=value; write for example variant=swiglu.")
        if key in result:
            raise SpecError(f"{key!r} is given twice: {result[key]!r} and {value!r}.")
        result[key] = value
    return result


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Reads ``key=value`` texts as config entries; values by `overlay.parse_assignment`.

    Raises:
        SpecError: as `parse_filters`.
    """
    return {key: parse_assignment(f"{key}={text}")[1] for key, text in parse_filters(texts).items()}


def load_study(path: Path) -> Study:
    """Loads ``get_study()`` from a study.py, or from the folder that holds one.

    Raises:
        SpecError: for a missing file, a file without ``get_study``, or one that fails to run.
    """
    path = Path(path)
    file = path / "study.py" if path.is_dir() else path
    if not file.is_file():
        root = path.parent if path.parent.is_dir() else Path("experiments")
        studies = [str(found.parent) for found in sorted(root.glob("*/study.py"))]
        raise UnknownNameError("study", str(path), studies or ["experiments/<name>/study.py"])
    name = "glu_lab_study_" + re.sub(r"\W", "_", str(file.resolve()))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"{file} is not a Python file; a study is a study.py with get_study().")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_study"):
            raise SpecError(f"{file} defines no get_study(); it must return a Study.")
        study = module.get_study()
    except GluLabError:
        raise
    except Exception as error:
        raise SpecError(f"{file} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(name, None)
    if not isinstance(study, Study):
        raise SpecError(f"get_study() in {file} must return a Study, got {study!r}.")
    return study


def _contains(outer: str, inner: str) -> bool:
    return outer == inner or inner.startswith(f"{outer}.")

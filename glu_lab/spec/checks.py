"""Checks that hold for every Spec, however it was built."""

import functools
import typing
from typing import Any, Literal

from glu_lab.errors import UnknownNameError


@functools.cache
def _choices(cls: type) -> dict[str, tuple[str, ...]]:
    """The fields of a dataclass that name one of a few choices."""
    hints = typing.get_type_hints(cls)
    return {n: typing.get_args(h) for n, h in hints.items() if typing.get_origin(h) is Literal}


def check_choices(spec: Any) -> None:
    """Refuses a name that a ``Literal`` field does not list.

    Python does not check annotations: unchecked, a misspelt ``kind`` would fall through every
    comparison and compute something else.

    Args:
        spec: an instance of a dataclass.

    Raises:
        UnknownNameError: with the field, the name given and the names that exist.
    """
    for name, choices in _choices(type(spec)).items():
        value = getattr(spec, name)
        if value not in choices:
            raise UnknownNameError(f"{type(spec).__name__}.{name}", str(value), choices)

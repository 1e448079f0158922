"""Checks that hold for every Spec, however it was built."""

import functools
import math
import typing
from typing import Any, Literal

from glu_lab.errors import SpecError, UnknownNameError


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


def check_range(
    spec: Any, name: str, low: float, high: float = math.inf, *, open_above: bool = False
) -> None:
    """Refuses a number outside of [low, high], or [low, high) when `open_above`.

    Args:
        spec: an instance of a dataclass.
        name: of the field.
        low, high: the bounds; NaN is outside of any.
        open_above: whether `high` itself is refused.

    Raises:
        SpecError: with the field, the value and the bounds.
    """
    value = getattr(spec, name)
    inside = low <= value < high if open_above else low <= value <= high
    if not inside or math.isinf(value):
        end = ")" if open_above else "]"
        bounds = f"≥ {low}" if math.isinf(high) else f"in [{low}, {high}{end}"
        raise SpecError(f"{type(spec).__name__}.{name} must be {bounds}, got {value!r}.")

"""A foreign config, read so that no attribute of it is passed over."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from glu_lab.errors import LayoutError

_MISSING = object()


class Attributes:
    """The attributes of a config, each of which is read, refused, or known to change nothing.

    Args:
        values: name → value.
        source: what they are of, for messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str):
        self._values, self._source = values, source
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def take(self, name: str, default: Any = _MISSING) -> Any:
        """A value; null counts as absent.

        Raises:
            LayoutError: when it is absent and has no default.
        """
        self._read.add(name)
        value = self._values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise LayoutError(f"{self._source} does not state {name}; it never has a default here.")
        return default

    def integer(self, name: str, default: Any = _MISSING) -> int:
        """A whole number ≥ 1.

        Raises:
            LayoutError: for anything else.
        """
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LayoutError(f"{self._source}: {name} must be a whole number ≥ 1, got {value!r}.")
        return value

    def number(self, name: str, default: Any = _MISSING) -> float:
        """A number.

        Raises:
            LayoutError: for anything else.
        """
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LayoutError(f"{self._source}: {name} must be a number, got {value!r}.")
        return float(value)

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        """True or false.

        Raises:
            LayoutError: for anything else.
        """
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise LayoutError(f"{self._source}: {name} must be true or false, got {value!r}.")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses every value but those given; an absent one passes.

        Raises:
            LayoutError: naming the attribute.
        """
        value = self.take(name, None)
        if value is not None and value not in allowed:
            shown = " or ".join(json.dumps(item) for item in (*allowed, None))
            raise LayoutError(
                f"{self._source}: {name}={json.dumps(value, default=str)} is not handled; only "
                f"{shown} is."
            )

    def finish(self, neutral: Collection[str]) -> None:
        """Refuses attributes that nothing read.

        Args:
            neutral: names of those that change no function.

        Raises:
            LayoutError: naming them.
        """
        left = [
            name
            for name, value in self._values.items()
            if name not in self._read and name not in neutral and value is not None
        ]
        if left:
            shown = ", ".join(f"{n}={json.dumps(self._values[n], default=str)}" for n in left[:6])
            raise LayoutError(
                f"{self._source} has attributes that are not handled: {shown}. Whether they change "
                "the function is not known; a config without them, of the same model, is read."
            )

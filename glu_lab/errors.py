"""The errors a user can cause, each raised before any compute or write."""

import difflib
from collections.abc import Iterable


class GluLabError(Exception):
    """Base of every error that a user's input can cause.

    The message says what was given, what was expected, and the nearest right choice.
    """


class SpecError(GluLabError, ValueError):
    """A Spec, config or flag that describes nothing that can be built."""


class UnknownNameError(SpecError):
    """A name that is in no table.

    Attributes:
        kind: what the name should have named, for example ``"activation"``.
        name: the name given.
        choices: the names that exist.
    """

    def __init__(self, kind: str, name: str, choices: Iterable[str], hint: str = ""):
        self.kind, self.name, self.choices = kind, name, tuple(choices)
        nearest = difflib.get_close_matches(name, self.choices, n=1, cutoff=0.5)
        message = f"unknown {kind} {name!r}"
        message += f"; did you mean {nearest[0]!r}?" if nearest else "."
        message += f" Choices: {', '.join(self.choices)}."
        if hint:
            message += f" {hint}"
        super().__init__(message)


class DataError(GluLabError, ValueError):
    """A corpus, tokenizer or vocabulary that cannot serve the run."""


class RecordError(GluLabError, ValueError):
    """A run directory that is unreadable, foreign, or belongs to another identity."""


class BudgetError(SpecError):
    """A comparison that is not at a matched budget."""

"""The shape of the table: a failure, the faults planted for it, and what a check finds."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

#: What ``build`` says of a failure that nothing is planted for.
NOT_BUILT: Literal["not built"] = "not built"


class Artefact(Protocol):
    """Something that is made and then shipped: a function, a file, a study, a text."""

    def seems_right(self) -> bool:
        """The naive test: it runs, its shapes are right, its numbers are finite."""
        ...


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a check says of one artefact.

    Attributes:
        passes: whether nothing is wrong with it.
        text: what was measured, or the refusal.
        measured: the error as a share of what is allowed, where it is a finite number.
    """

    passes: bool
    text: str
    measured: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted:
    """One fault beside its clean twin, which differs from it by the fault alone.

    Attributes:
        name: what is wrong with it.
        check: a row of `glu_lab.conformance.failures.checks.CHECKS`; the same for both.
        fault: the artefact with the fault.
        clean: the twin.
    """

    name: str
    check: str
    fault: Artefact
    clean: Artefact


#: Plants the faults of a failure. The folder is empty, and removed afterwards.
Builder = Callable[[Path], Sequence[Planted]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """One row of the table.

    Attributes:
        id: its number, 1 to 42.
        title: what goes wrong.
        kind: ``fault`` for something built wrongly, ``claim`` for something said wrongly.
        symptom: what is seen of it, or is not seen.
        cause: why it happens.
        detector: what finds it.
        fix: what to do instead.
        build: plants it.
    """

    id: int
    title: str
    kind: Literal["fault", "claim"] = "fault"
    symptom: str
    cause: str
    detector: str
    fix: str
    build: Builder | Literal["not built"]

    @property
    def built(self) -> bool:
        """Whether faults are planted for it."""
        return self.build != NOT_BUILT

"""The errors a user can cause, each raised before any compute or write.

And one that nobody asks for: memory or disk space that has run out.
"""

import difflib
import errno
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence


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
        nearest = nearest_name(name, self.choices)
        message = f"unknown {kind} {name!r}"
        message += f"; did you mean {nearest!r}?" if nearest is not None else "."
        message += f" Choices: {name_list(self.choices)}."
        if hint:
            message += f" {hint}"
        super().__init__(message)


class DataError(GluLabError, ValueError):
    """A corpus, tokenizer or vocabulary that cannot serve the run."""


class RecordError(GluLabError, ValueError):
    """A run directory that is unreadable, foreign, or belongs to another identity."""


class RunInUseError(RecordError):
    """A run directory that another session is training."""


class LostProcessError(GluLabError):
    """Another process of the run does not answer any more."""


class FileFormatError(GluLabError, ValueError):
    """A tensor file that is damaged, lies about itself, or is of a kind that is not read."""


class LayoutError(GluLabError, ValueError):
    """Tensors or a Spec that do not fit a layout, or a layout that describes nothing."""


class BudgetError(SpecError):
    """A comparison that is not at a matched budget."""


class ResourceError(GluLabError):
    """Memory or disk space that has run out."""


def folded(name: str) -> str:
    """A name without what people spell differently: case, and all but letters and digits.

    Example:
        >>> folded("GEGLU-tanh"), folded("ReLU²")
        ('geglutanh', 'relu2')
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum())


def nearest_name(name: str, choices: Sequence[str]) -> str | None:
    """The choice that a misspelt name most likely meant: suggested, never taken for it.

    Names that differ in case or punctuation alone come first.
    """
    for choice in choices:
        if folded(choice) == folded(name):
            return choice
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if not near:
        by_fold = {folded(choice): choice for choice in choices}
        near = [
            by_fold[found]
            for found in difflib.get_close_matches(folded(name), by_fold, n=1, cutoff=0.5)
        ]
    return near[0] if near else None


def name_list(names: Iterable[str]) -> str:
    """Names with commas between; in quotes where one of them has a comma of its own."""
    names = tuple(names)
    quote = any("," in name for name in names)
    return ", ".join(repr(name) if quote else name for name in names)


def resource_error(error: BaseException) -> ResourceError | None:
    """What to lower or free, where an error or one that caused it says that something is full.

    Args:
        error: any exception. JAX's ``RESOURCE_EXHAUSTED`` is known by its text, so that JAX is not
            imported here.

    Returns:
        An error to show instead; None where `error` is about something else.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = (str(cause).strip().splitlines() or [""])[0]
        for number in (errno.ENOSPC, errno.EDQUOT):
            # Libraries that write by themselves raise errors of their own with the system's words.
            if getattr(cause, "errno", None) == number or os.strerror(number) in str(cause):
                return _disk_full(number, getattr(cause, "filename", None))
        if type(cause).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in text:
            return _memory_full(text.split("RESOURCE_EXHAUSTED:", 1)[-1].strip())
        if isinstance(cause, MemoryError):
            return _memory_full(text)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _disk_full(number: int, place: str | bytes | None) -> ResourceError:
    return ResourceError(
        ("the disk quota is used up" if number == errno.EDQUOT else "the disk is full")
        + (f" ({os.fsdecode(place)})" if isinstance(place, str | bytes) else "")
        + "; free space, or choose other folders: the results' with the command's own option, the "
        "cache's with $GLU_LAB_CACHE, that of temporary files with $TMPDIR."
    )


def _memory_full(detail: str) -> ResourceError:
    detail = re.sub(r"^out of memory\s*", "", detail, flags=re.IGNORECASE).rstrip(".")
    shown = f" ({detail[:200]})" if detail else ""
    return ResourceError(
        f"out of memory{shown}. Lower training.batch_size or raise training.microbatches, lower "
        "data.input_length (attention grows with its square) or eval_batch_size, set "
        "execution.remat='block', or choose a smaller model."
    )

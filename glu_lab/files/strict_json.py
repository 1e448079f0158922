"""JSON as the headers of tensor files write it: no name twice, no NaN, nothing that overflows."""

import json
from typing import Any, NoReturn

from glu_lab.errors import FileFormatError


def parse_object(content: bytes, what: str) -> dict[str, Any]:
    """Reads one JSON object.

    Args:
        content: UTF-8.
        what: names it in messages, ``"the header of model.safetensors"``.

    Raises:
        FileFormatError: for anything else, a name that stands twice in one object (readers
            disagree on which of the two counts), or text that UTF-8 cannot write.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    raise FileFormatError(f"{what} has {name[:200]!r} twice.")
                seen.add(name)
        for name in out:
            if not is_utf8(name):
                raise FileFormatError(f"{what} has the name {name[:200]!r}, which is no text.")
        return out

    def refuse(constant: str) -> NoReturn:
        raise FileFormatError(f"{what} holds {constant}, which JSON does not have.")

    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except FileFormatError:
        raise
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{what} is not UTF-8 (at byte {error.start}).") from error
    except RecursionError as error:
        raise FileFormatError(f"{what} is nested too deeply.") from error
    except ValueError as error:
        # Python also refuses whole numbers of thousands of digits here.
        raise FileFormatError(f"{what} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{what} is no JSON object but {type(value).__name__}.")
    return value


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can write a text; JSON's escapes can spell half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

"""A user's own text files: one document a ``.txt``, one document a line of ``.jsonl``.

Both may be compressed as ``.gz`` or ``.zst``. Bytes are decoded strictly as UTF-8 and kept as they
are: no newline translation, no stripping.
"""

import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from glu_lab.errors import DataError

KINDS = (".txt", ".jsonl")
COMPRESSIONS = (".gz", ".zst")
SUFFIXES = tuple(kind + packed for kind in KINDS for packed in ("", *COMPRESSIONS))


_BYTE_ORDER_MARK = "\ufeff"
_UTF16_STARTS = (b"\xff\xfe", b"\xfe\xff")


def _unreadable(error: OSError) -> None:
    """A folder that cannot be listed may hold text; leaving it out would halve a corpus unseen."""
    raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from error


def find_files(path: str) -> list[Path]:
    """The text files that `data.path` names, sorted.

    Args:
        path: a file; a folder, searched to any depth for the suffixes `SUFFIXES`; or a glob, in
            which ``**`` crosses folders.

    Raises:
        DataError: when nothing matches, or a named or matched file has another suffix.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        found = [
            Path(folder) / name
            for folder, _, names in os.walk(place, onerror=_unreadable)
            for name in names
            if name.endswith(SUFFIXES)
        ]
        if not found:
            raise DataError(
                f"data.path={path!r} is a folder without text files; expected files that end in "
                f"{', '.join(SUFFIXES)}."
            )
        return sorted(found)
    found = [place] if place.is_file() else []
    if not found and glob.has_magic(path):
        matches = glob.glob(str(place), recursive=True)
        found = sorted(p for p in map(Path, matches) if p.is_file())
    if not found:
        raise DataError(
            f"data.path={path!r} matches no file. Give a file, a folder, or a glob such as "
            "'corpus/**/*.txt'."
        )
    for file in found:
        if not file.name.endswith(SUFFIXES):
            raise DataError(
                f"{file}: cannot read this kind of file; expected one that ends in "
                f"{', '.join(SUFFIXES)}."
            )
    return found


def read_documents(file: Path) -> Iterator[str]:
    """The documents of one file, in order.

    Raises:
        DataError: for a broken compressed file, text that is not UTF-8 (with the byte offset in the
            decompressed file), a bad JSON line or one without a ``"text"`` string (``file:line``).
    """
    content = _read_bytes(file)
    kind = next(k for k in KINDS if file.name.removesuffix(".gz").removesuffix(".zst").endswith(k))
    if kind == ".txt":
        yield _decode(content, file, 0)
        return
    offset = 0
    # Only b"\n" ends a line: `bytes.splitlines` would cut at a lone b"\r" too.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield _json_document(_decode(line, file, offset), f"{file}:{number}")
        offset += len(line) + 1


def _json_document(line: str, where: str) -> str:
    if line.startswith(_BYTE_ORDER_MARK):
        raise DataError(
            f"{where}: the line begins with a byte order mark (U+FEFF), which is no JSON; save the "
            "file as UTF-8 without one, for example with `sed -i '1s/^\\xEF\\xBB\\xBF//'`."
        )
    try:
        # Only the text is used: a number longer than Python reads is no fault.
        record = json.loads(line, parse_int=float)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at").removesuffix(" starting")
        raise DataError(
            f"{where}: not a JSON line: {fault[0].lower()}{fault[1:]} at character "
            f"{error.pos + 1}; expected one object a line."
        ) from None
    except RecursionError:
        raise DataError(
            f"{where}: not a JSON line that can be read: brackets within brackets, too many deep."
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        shown = f"keys {sorted(record)}" if isinstance(record, dict) else type(record).__name__
        raise DataError(f'{where}: expected a JSON object with a string under "text", got {shown}.')
    text = record["text"]
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the text has a lone surrogate (character {error.start}), which UTF-8 cannot "
            "hold; write the file with whole characters."
        ) from None
    return text


def _decode(content: bytes, file: Path, offset: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        utf16 = offset == 0 and content.startswith(_UTF16_STARTS)
        raise DataError(
            f"{file}: not UTF-8 at byte offset {offset + error.start} "
            f"(byte 0x{content[error.start]:02x}{', as UTF-16 begins' if utf16 else ''}); convert "
            f"the file, for example with `iconv {'-f utf-16 ' if utf16 else ''}-t utf-8`."
        ) from None


def _read_bytes(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error}).") from None
    if file.name.endswith(".gz"):
        try:
            return gzip.decompress(content)
        except gzip.BadGzipFile:
            raise DataError(f"{file}: not a gzip file, or a damaged one.") from None
        except EOFError:
            raise DataError(f"{file}: the gzip file is cut off.") from None
        except (OSError, zlib.error):
            raise DataError(f"{file}: the gzip file is damaged.") from None
    if file.name.endswith(".zst"):
        return _zstd_decompress(content, file)
    return content


def _zstd_decompress(content: bytes, file: Path) -> bytes:
    import zstandard

    parts, rest = [], content
    while rest or not parts:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(frame.decompress(rest))
        except zstandard.ZstdError:
            raise DataError(f"{file}: not a zstd file, or a damaged one.") from None
        if not frame.eof:
            raise DataError(f"{file}: the zstd file is cut off.")
        rest = frame.unused_data
    return b"".join(parts)

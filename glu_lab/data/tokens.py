"""A split's tokens on disk: written once, then read in place."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from glu_lab.data.cache import cached_folder
from glu_lab.data.corpora import Corpus
from glu_lab.data.splits import Split, text_digest
from glu_lab.data.tokenizer import Tokenizer
from glu_lab.errors import DataError
from glu_lab.spec.identity import digest

#: Bumped when the files' meaning changes.
_FORMAT = 1
_BATCH_CHARACTERS = 1 << 20
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class TokenizedDocuments:
    """The tokens of one split, each document followed by end-of-sequence.

    Attributes:
        tokens: all documents, flat; unsigned, on disk.
        offsets: where each document starts in `tokens`, in canonical order (by text hash), int64.
        lengths: tokens of each document without its end-of-sequence, int64.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray


def tokenize(
    corpus: Corpus,
    split: Split,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Callable[[str], None],
) -> dict[str, TokenizedDocuments]:
    """Tokens of both splits, from the cache when they are there.

    Args:
        corpus: read once more, when nothing is cached.
        split: of that corpus.
        tokenizer: its pieces make the ids.
        folder: where tokens are kept, under a hash of texts, split and tokenizer.
        progress: told what is being done.

    Raises:
        DataError: when the corpus changed since it was split, or the cache is damaged.
    """
    key = digest([_FORMAT, split.content_hash, tokenizer.model_hash])

    def build(place: Path) -> None:
        progress("tokenizing")
        _write(corpus, split, tokenizer, place)

    place = cached_folder(folder / key, build)
    return {name: _open(place, name) for name in SPLITS}


def _write(corpus: Corpus, split: Split, tokenizer: Tokenizer, place: Path) -> None:
    dtype = np.dtype("<u2" if tokenizer.num_pieces <= 1 << 16 else "<u4")
    # Documents are written as they come and found again by their canonical rank, so that equal
    # texts in other files or another order are the same entry.
    rank = np.empty(len(split.digests), np.int64)
    for numbers in (split.train, split.validation):
        rank[numbers] = np.arange(len(numbers))
    counts = {"train": len(split.train), "validation": len(split.validation)}
    offsets = {name: np.zeros(count, np.int64) for name, count in counts.items()}
    lengths = {name: np.zeros(count, np.int64) for name, count in counts.items()}
    written = dict.fromkeys(SPLITS, 0)
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(place / f"{name}.tokens", "wb")) for name in SPLITS}
        for numbers, texts in _batches(corpus, split):
            for number, ids in zip(numbers, tokenizer.encode_batch(texts), strict=True):
                name = SPLITS[int(split.is_validation[number])]
                files[name].write(np.array([*ids, tokenizer.eos_id], dtype).tobytes())
                offsets[name][rank[number]] = written[name]
                lengths[name][rank[number]] = len(ids)
                written[name] += len(ids) + 1
    for name in SPLITS:
        np.save(place / f"{name}.offsets.npy", offsets[name])
        np.save(place / f"{name}.lengths.npy", lengths[name])
    meta = {"dtype": dtype.str, "tokens": written}
    (place / "meta.json").write_text(json.dumps(meta))


def _batches(corpus: Corpus, split: Split) -> Iterator[tuple[list[int], list[str]]]:
    """Document numbers and texts, about a megabyte at a time."""
    numbers, texts, size, count = [], [], 0, 0
    for number, document in enumerate(corpus.documents()):
        count += 1
        if (
            count > len(split.digests)
            or text_digest(document.text) != split.digests[number].tobytes()
        ):
            raise DataError("the corpus changed while it was being read; run again.")
        numbers.append(number)
        texts.append(document.text)
        size += len(document.text)
        if size >= _BATCH_CHARACTERS:
            yield numbers, texts
            numbers, texts, size = [], [], 0
    if count != len(split.digests):
        raise DataError("the corpus changed while it was being read; run again.")
    yield numbers, texts


def _open(place: Path, name: str) -> TokenizedDocuments:
    try:
        meta = json.loads((place / "meta.json").read_text())
        tokens = np.memmap(place / f"{name}.tokens", np.dtype(meta["dtype"]), "r")
        offsets = np.load(place / f"{name}.offsets.npy")
        lengths = np.load(place / f"{name}.lengths.npy")
        whole = len(tokens) == meta["tokens"][name] == int(lengths.sum()) + len(lengths)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"the token cache {place} is damaged ({error}); delete it.") from None
    if not whole:
        raise DataError(f"the token cache {place} is damaged (wrong sizes); delete it.")
    return TokenizedDocuments(tokens, offsets, lengths)

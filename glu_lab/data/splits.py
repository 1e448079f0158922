"""Which documents are for training and which for validation, and how shards are dealt.

Everything follows from the documents' content: neither file names nor their order matter.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from glu_lab.data.corpora import Document
from glu_lab.errors import DataError


def text_digest(text: str) -> bytes:
    """sha256 of the text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).digest()


@dataclasses.dataclass(frozen=True)
class Split:
    """A corpus's documents, divided.

    Attributes:
        digests: sha256 of each document, in the corpus's order, (documents, 32) uint8.
        sizes: UTF-8 bytes of each document, int64.
        is_validation: whether each document is held out, bool.
    """

    digests: np.ndarray
    sizes: np.ndarray
    is_validation: np.ndarray

    @functools.cached_property
    def train(self) -> np.ndarray:
        """Numbers of the training documents in canonical order: by digest."""
        return self._ordered(~self.is_validation)

    @functools.cached_property
    def validation(self) -> np.ndarray:
        """Numbers of the validation documents in canonical order: by digest."""
        return self._ordered(self.is_validation)

    def _ordered(self, mask: np.ndarray) -> np.ndarray:
        chosen = np.flatnonzero(mask)
        words = self.digests[chosen].view(">u8")
        return chosen[np.lexsort(words.T[::-1])]

    @functools.cached_property
    def content_hash(self) -> str:
        """sha256 (hex) of all texts and of the split, whatever the order or names of files."""
        total = hashlib.sha256()
        for name, numbers in (("train", self.train), ("validation", self.validation)):
            total.update(f"{name} {len(numbers)}\n".encode())
            total.update(self.digests[numbers].tobytes())
        return total.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the split's arrays into a folder."""
        for field in dataclasses.fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def open(cls, folder: Path) -> "Split":
        """Reads what `save` wrote.

        Raises:
            DataError: for damaged files.
        """
        try:
            return cls(*(np.load(folder / f"{f.name}.npy") for f in dataclasses.fields(cls)))
        except (OSError, ValueError) as error:
            raise DataError(f"the split cache {folder} is damaged ({error}); delete it.") from None


def split_documents(documents: Iterable[Document], validation_fraction: float) -> Split:
    """Holds out documents by hash rank within their period.

    In each period the documents are ranked by the hash of their text, and the first of them go to
    validation until they hold `validation_fraction` of the period's bytes, each taken or left by
    which of the two comes nearer. What is over or short is carried into the next period, so the
    whole is within one document of the fraction. Equal texts stay together.

    Args:
        documents: the corpus. Documents that come with a split keep it.
        validation_fraction: of the bytes.

    Raises:
        DataError: for a corpus without text, or one of which a split would be empty.
    """
    digests, sizes, periods, given = [], [], [], []
    for document in documents:
        digests.append(text_digest(document.text))
        sizes.append(len(document.text.encode()))
        periods.append(document.period)
        given.append(document.split)
    if not sum(sizes):
        raise DataError(
            f"the corpus is empty: {len(sizes)} document(s), 0 bytes of text. Check data.path."
        )
    if any(given):
        held_out = [split == "validation" for split in given]
    else:
        held_out = _hold_out(digests, sizes, periods, validation_fraction)
    split = Split(
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        np.array(sizes, np.int64),
        np.array(held_out, bool),
    )
    for name, mask in (("training", ~split.is_validation), ("validation", split.is_validation)):
        if not split.sizes[mask].sum():
            raise DataError(
                f"no text is left for {name}: {len(set(digests))} different document(s), "
                f"data.validation_fraction={validation_fraction}. Whole documents are held out; "
                "give more and smaller documents (for example one a line in a .jsonl)."
            )
    return split


def _hold_out(
    digests: list[bytes], sizes: list[int], periods: list[int], fraction: float
) -> list[bool]:
    # Equal texts are one, in their first period, so that no text is in both splits.
    first: dict[bytes, int] = {}
    for digest, period in zip(digests, periods, strict=True):
        first[digest] = min(period, first.get(digest, period))
    groups: dict[int, dict[bytes, int]] = {}
    for digest, size in zip(digests, sizes, strict=True):
        group = groups.setdefault(first[digest], {})
        group[digest] = group.get(digest, 0) + size
    chosen: set[bytes] = set()
    wanted, taken = 0.0, 0
    for period in sorted(groups):
        wanted += fraction * sum(groups[period].values())
        for digest in sorted(groups[period]):
            size = groups[period][digest]
            if taken + size / 2 > wanted:
                break
            chosen.add(digest)
            taken += size
    if not chosen:
        # A handful of documents, each far over the fraction: one is still held out.
        chosen.add(min(digests))
    return [digest in chosen for digest in digests]


def deal_shards(sizes: np.ndarray, shards: int) -> list[np.ndarray]:
    """Deals documents into shards of nearly equal bytes.

    From the largest to the smallest they go to shards 0, 1, … H−1, then back from H−1 to 0, and so
    on. Two shards differ by less than the largest document.

    Args:
        sizes: bytes of each training document, in canonical order.
        shards: how many.

    Returns:
        `shards` arrays of places in `sizes`, each ascending.

    Raises:
        DataError: when there are fewer documents than shards.
    """
    if len(sizes) < shards:
        raise DataError(
            f"{len(sizes)} training document(s) cannot be dealt into "
            f"data.logical_shards={shards}; set data.logical_shards to at most {len(sizes)}, or "
            "give more and smaller documents."
        )
    turn = np.arange(len(sizes)) % (2 * shards)
    owner = np.empty(len(sizes), np.int64)
    owner[np.argsort(-sizes, kind="stable")] = np.where(turn < shards, turn, 2 * shards - 1 - turn)
    return [np.flatnonzero(owner == shard) for shard in range(shards)]

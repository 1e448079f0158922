"""Text to ids and back, whatever made the pieces; sentinels on top of them.

Sentinels for span corruption are counted down from the vocabulary's end (Raffel et al. 2020, arXiv
1910.10683).
"""

import abc
import hashlib
from collections.abc import Iterable, Sequence

from glu_lab.errors import DataError


class Tokenizer(abc.ABC):
    """Text to ids and back.

    Attributes:
        model: what `glu_lab.data.tokenizer_files.open_tokenizer` makes it anew from.
        num_pieces: ids of the model.
        num_sentinels: ids on top.
        size: `num_pieces + num_sentinels`; T5's 32,000 pieces and 100 sentinels are 32,100.
        pad_id, eos_id: padding, and what ends a document.
        is_exact: every text comes back from `decode(encode(text))` as it was. True of the
            tokenizers that are trained here and of byte-level ones; T5's own model folds whitespace
            and rare characters.
    """

    is_exact: bool

    def __init__(
        self, model: bytes, *, num_pieces: int, num_sentinels: int, pad_id: int, eos_id: int
    ):
        if num_sentinels < 0:
            raise DataError(f"data.num_sentinels must be ≥ 0, got {num_sentinels}.")
        self.model = model
        self.num_pieces, self.num_sentinels = num_pieces, num_sentinels
        self.size = num_pieces + num_sentinels
        self.pad_id, self.eos_id = pad_id, eos_id

    @property
    def model_hash(self) -> str:
        """sha256 (hex) of `model`."""
        return hashlib.sha256(self.model).hexdigest()

    def sentinel(self, index: int) -> int:
        """The id of ``<extra_id_{index}>``: `size - 1 - index`.

        Raises:
            DataError: when there is no such sentinel.
        """
        if not 0 <= index < self.num_sentinels:
            raise DataError(
                f"sentinel {index} does not exist; data.num_sentinels={self.num_sentinels} gives "
                f"0 to {self.num_sentinels - 1}."
            )
        return self.size - 1 - index

    def encode(self, text: str) -> list[int]:
        """Ids of one text, without end-of-sequence."""
        return self.encode_batch([text])[0]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, without end-of-sequence."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; sentinels show as ``<extra_id_0>``, padding and end-of-sequence as nothing.

        Raises:
            DataError: for an id outside the vocabulary.
        """
        parts, run = [], []
        for i in map(int, ids):
            if not 0 <= i < self.size:
                raise DataError(f"id {i} is outside the vocabulary of {self.size} ids.")
            if i < self.num_pieces:
                run.append(i)
            else:
                parts += [self._decode_pieces(run), f"<extra_id_{self.size - 1 - i}>"]
                run = []
        return "".join([*parts, self._decode_pieces(run)])

    @abc.abstractmethod
    def _decode_pieces(self, ids: Sequence[int]) -> str:
        """Text of ids below `num_pieces`."""

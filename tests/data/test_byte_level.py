"""Byte-level BPE from files: the ids of the library that others use, and every text given back."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glu_lab.data.byte_level import ByteLevelTokenizer, read_byte_level
from glu_lab.data.tokenizer_files import load_tokenizer, open_tokenizer
from glu_lab.errors import DataError, UnknownNameError

tokenizers = pytest.importorskip("tokenizers")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "the state of the union is strong",
    "don't you know 1234 and 12 12 12",
    "naïve café 😀  end",
]


def trained(digits=True):
    """A small byte-level BPE as the library trains it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = (
        tokenizers.pre_tokenizers.Sequence([split, byte_level]) if digits else byte_level
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 4, trainer)
    return made


def save_json(folder, made, **roles):
    made.save(str(folder / "tokenizer.json"))
    roles = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | roles
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return folder / "tokenizer.json"


def save_gguf(folder, made, pre="smollm", model="gpt2", eos=2):
    gguf = pytest.importorskip("gguf")
    document = json.loads(made.to_str())
    vocabulary = sorted(document["model"]["vocab"].items(), key=lambda item: item[1])
    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in SPECIAL else 1 for token, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    if eos is not None:
        writer.add_eos_token_id(eos)
    writer.add_tensor("token_embd.weight", np.zeros((300, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = trained()
    folder = tmp_path_factory.mktemp("tokenizers")
    return made, save_json(folder, made), save_gguf(folder, made)


@pytest.mark.parametrize("kind", ["tokenizer.json", "GGUF"])
def test_ids_are_those_of_the_library(files, kind):
    made, as_json, as_gguf = files
    ours = load_tokenizer(str(as_json if kind != "GGUF" else as_gguf), 300, 0)
    for text in (*TEXTS, "Unseen wörds: 90210!\n\n\tx"):
        assert ours.encode(text) == made.encode(text, add_special_tokens=False).ids
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert (ours.eos_id, ours.pad_id, ours.size) == (2, 0 if kind != "GGUF" else 2, 300)


def test_how_text_is_cut_comes_from_the_file(tmp_path):
    """Digits one by one (smollm), or runs of them (gpt-2)."""
    made = trained(digits=False)
    one, run = (
        load_tokenizer(str(save_gguf(tmp_path, made, pre)), 300, 0) for pre in ("smollm", "gpt-2")
    )
    assert len(one.encode("12")) == 2
    assert len(run.encode("12")) == 1


@given(text=st.text())
@example(text="<|im_end|>")
@example(text="a <|endoftext|>b")
@example(text=" \u2581x\u0301 \r\n")
def test_every_text_comes_back(text):
    ours = _shared()
    assert ours.is_exact
    assert ours.decode(ours.encode(text)) == text


_made = []


def _shared():
    if not _made:
        document = json.loads(trained().to_str())
        _made.append(
            open_tokenizer(
                json.dumps(
                    {"kind": "byte_level_bpe", "eos_id": 2, "pad_id": 0, "tokenizer": document},
                    separators=(",", ":"),
                ).encode()
            )
        )
    return _made[0]


def test_special_tokens_in_text_are_text():
    ours = _shared()
    assert not set(ours.encode("say <|im_end|> now")) & {0, 1, 2}


def test_a_saved_model_opens_as_the_same_tokenizer(files):
    ours = load_tokenizer(str(files[2]), 300, 5)
    again = open_tokenizer(ours.model, 5)
    assert isinstance(again, ByteLevelTokenizer)
    assert again.encode(TEXTS[2]) == ours.encode(TEXTS[2])
    assert again.model_hash == ours.model_hash
    assert again.sentinel(0) == 304
    assert again.decode([*ours.encode("a b"), 304, ours.eos_id]) == "a b<extra_id_0>"


def test_a_wrong_vocabulary_size_says_the_right_one(files):
    with pytest.raises(DataError, match="has 300 pieces, but data.vocab_size=4096"):
        load_tokenizer(str(files[1]), 4096, 0)


def test_what_cannot_be_read_says_what_it_is(tmp_path):
    made = trained()
    with pytest.raises(UnknownNameError, match="tokenizer.ggml.pre .* 'tekken'"):
        load_tokenizer(str(save_gguf(tmp_path, made, pre="tekken")), 300, 0)
    with pytest.raises(DataError, match="model 'llama'; of GGUF files byte-level"):
        load_tokenizer(str(save_gguf(tmp_path, made, model="llama")), 300, 0)
    with pytest.raises(DataError, match="states no tokenizer.ggml.eos_token_id"):
        load_tokenizer(str(save_gguf(tmp_path, made, eos=None)), 300, 0)
    with pytest.raises(DataError, match="'</s>', which is no token of tokenizer.json"):
        load_tokenizer(str(save_json(tmp_path, made, eos_token="</s>")), 300, 0)
    with pytest.raises(DataError, match="names no eos_token"):
        load_tokenizer(str(save_json(tmp_path, made, eos_token=None)), 300, 0)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(DataError, match="tokenizer_config.json is missing"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), 300, 0)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(DataError, match="no tokenizer.json of a BPE"):
        load_tokenizer(str(tmp_path / "tokenizer.json"), 300, 0)


def test_an_end_of_sequence_outside_of_the_pieces_is_refused(tmp_path):
    with pytest.raises(DataError, match="eos id 999, outside of its 300 pieces"):
        load_tokenizer(str(save_gguf(tmp_path, trained(), eos=999)), 300, 0)


def test_other_files_are_left_to_sentencepiece(tmp_path):
    place = tmp_path / "spiece.model"
    place.write_bytes(b"\x0a\x0e")
    assert read_byte_level(place, "it") is None

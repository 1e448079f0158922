"""Byte-level BPE, as GPT-2, SmolLM and many others use: read from a GGUF file or tokenizer.json.

The library `tokenizers` computes it (extra ``pretrained``). Every text comes back as it was, since
each of its bytes is a piece.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.data.tokenizer import Tokenizer
from glu_lab.errors import DataError, GluLabError, UnknownNameError
from glu_lab.files.strict_json import parse_object
from glu_lab.spec.identity import canonical_json

_KIND = "byte_level_bpe"
_GGUF_MAGIC = b"GGUF"
#: Texts that a tokenizer with normalisation or special treatment of spaces changes.
_EXACT_PROBES = ("  a\n b ", "a", "\ufb01e\u0301", "\U0001f600", "12 345")

_BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
#: GGUF's ``tokenizer.ggml.pre`` → how text is cut before merging. Source: llama.cpp
#: src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_*.
_PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    },
}
#: Types of tokens in GGUF that stand for themselves and are never found in text.
_CONTROL, _UNKNOWN = 3, 2


class ByteLevelTokenizer(Tokenizer):
    """Pieces of a byte-level BPE.

    Special tokens are never found in text: a document that spells one out is encoded byte by byte.

    Args:
        model: JSON as `read_byte_level` makes it.
        num_sentinels: extra ids after the pieces.
        name: where it comes from, for messages.

    Raises:
        DataError: when it is no such tokenizer, or the library `tokenizers` is not there.
    """

    def __init__(self, model: bytes, num_sentinels: int = 0, name: str = "the tokenizer"):
        try:
            import tokenizers
        except ImportError:
            raise DataError(
                f"{name} is a byte-level BPE, which the package `tokenizers` computes: "
                "pip install 'glu_lab[pretrained]'."
            ) from None
        document = parse_object(model, name)
        try:
            self._pieces = tokenizers.Tokenizer.from_str(json.dumps(document["tokenizer"]))
        except Exception as error:  # the library raises its own bare Exception
            raise DataError(f"{name} is no tokenizer: {error}.") from error
        self._pieces.encode_special_tokens = True
        super().__init__(
            model,
            num_pieces=self._pieces.get_vocab_size(with_added_tokens=True),
            num_sentinels=num_sentinels,
            pad_id=document["pad_id"],
            eos_id=document["eos_id"],
        )
        for role, number in (("eos", self.eos_id), ("pad", self.pad_id)):
            if not 0 <= number < self.num_pieces:
                raise DataError(
                    f"{name} has {role} id {number}, outside of its {self.num_pieces} pieces."
                )
        self.is_exact = all(self.decode(self.encode(probe)) == probe for probe in _EXACT_PROBES)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._pieces.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def _decode_pieces(self, ids: Sequence[int]) -> str:
        return self._pieces.decode(list(ids), skip_special_tokens=True)


def is_byte_level(model: bytes) -> bool:
    """Whether bytes are the `model` of a `ByteLevelTokenizer`."""
    return model.startswith(b"{") and f'"kind":"{_KIND}"'.encode() in model[:4096]


def read_byte_level(path: Path, name: str) -> bytes | None:
    """The tokenizer of a GGUF file, or of a ``tokenizer.json``; None for any other file.

    Args:
        path: the file. Beside a ``tokenizer.json`` stands ``tokenizer_config.json``, which names
            the special tokens.
        name: where it comes from, for messages.

    Raises:
        DataError: when it has no tokenizer, or one that is not read.
    """
    try:
        with open(path, "rb") as file:
            first = file.read(16)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from None
    try:
        if first.startswith(_GGUF_MAGIC):
            return _from_gguf(path, name)
        if first.lstrip().startswith(b"{"):
            content = path.read_bytes()
            return content if is_byte_level(content) else _from_json(path, content, name)
    except UnknownNameError:
        raise
    except GluLabError as error:
        raise DataError(f"{name}: {error}") from error
    return None


def _document(tokenizer: Mapping[str, Any], eos_id: int, pad_id: int) -> bytes:
    # "kind" comes first among sorted keys but for "eos_id".
    document = {"kind": _KIND, "eos_id": eos_id, "pad_id": pad_id, "tokenizer": tokenizer}
    return canonical_json(document).encode()


def _from_gguf(path: Path, name: str) -> bytes:
    from glu_lab.files.gguf_reader import GGUFFile

    with GGUFFile(path) as file:
        metadata = file.metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise DataError(
            f"{name} has a tokenizer of model {kind!r}; of GGUF files byte-level BPE ('gpt2') is "
            "read. Give the SentencePiece model that it was made from."
        )
    cut = str(metadata.get("tokenizer.ggml.pre", "gpt-2"))
    if cut not in _PRE_TOKENIZERS:
        raise UnknownNameError(
            f"tokenizer.ggml.pre of {name}",
            cut,
            _PRE_TOKENIZERS,
            "Give the tokenizer.json instead.",
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type")
    special = [] if types is None else [i for i, t in enumerate(types) if t in (_CONTROL, _UNKNOWN)]
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    if eos is None:
        raise DataError(f"{name} states no tokenizer.ggml.eos_token_id.")
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i, "content": tokens[i], "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for i in special
        ],
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[cut],
        "post_processor": None,
        "decoder": _BYTE_LEVEL | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip
    return _document(tokenizer, int(eos), int(metadata.get("tokenizer.ggml.padding_token_id", eos)))


def _from_json(path: Path, content: bytes, name: str) -> bytes:
    tokenizer = parse_object(content, name)
    if not isinstance(tokenizer.get("model"), Mapping) or tokenizer["model"].get("type") != "BPE":
        raise DataError(f"{name} is JSON, but no tokenizer.json of a BPE.")
    if "ByteLevel" not in json.dumps(tokenizer.get("decoder")):
        raise DataError(f"{name} is a BPE that is not byte-level; such are not read.")
    beside = path.parent / "tokenizer_config.json"
    if not beside.is_file():
        raise DataError(f"{beside} is missing; it says which token ends a document.")
    config = parse_object(beside.read_bytes(), str(beside))
    ids = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    ids = {**tokenizer["model"].get("vocab", {}), **ids}

    def role(key: str) -> int | None:
        value = config.get(key)
        text = value.get("content") if isinstance(value, Mapping) else value
        if text is not None and text not in ids:
            raise DataError(f"{beside} names {key} {text!r}, which is no token of {path.name}.")
        return None if text is None else ids[text]

    eos, pad = role("eos_token"), role("pad_token")
    if eos is None:
        raise DataError(f"{beside} names no eos_token.")
    return _document(tokenizer, eos, eos if pad is None else pad)

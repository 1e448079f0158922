"""GGUF: metadata and tensors as the gguf package writes and decodes them; lies are refused."""

import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from glu_lab.errors import FileFormatError
from glu_lab.files.ggml_blocks import ENCODINGS, UNREAD, dequantize
from glu_lab.files.gguf_reader import GGUFFile
from tests.files.made import gguf_bytes, gguf_info, listing, pair, text

QUANTISED = {number: e for number, e in ENCODINGS.items() if e.decode is not None}


@pytest.fixture
def opened(tmp_path):
    files = []

    def open_bytes(content):
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        files.append(GGUFFile(path))
        return files[-1]

    yield open_bytes
    for file in files:
        file.close()


def test_a_model_of_the_gguf_package_is_read(tmp_path):
    """Names, shapes in NumPy's order, values of plain types, metadata and the tokenizer's lists."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(6, 64)).astype(np.float32)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["<s>", "Ġhel", "lo", "日"])
    writer.add_token_scores([0.0, -1.5, -2.0, -3.0])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["Ġ h", "l o"])
    writer.add_add_bos_token(True)
    writer.add_array("nested.numbers", [1, 2, 3])
    writer.add_tensor("plain", wide)
    writer.add_tensor("half", wide.astype(np.float16))
    writer.add_tensor("ints", np.arange(5, dtype=np.int32))
    for kind in ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, gguf.quantize(wide, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        meta = file.metadata
        assert meta["general.architecture"] == "llama" and meta["llama.block_count"] == 3
        assert meta["llama.rope.freq_base"] == 1e5
        assert meta["tokenizer.ggml.tokens"] == ["<s>", "Ġhel", "lo", "日"]
        assert meta["tokenizer.ggml.merges"] == ["Ġ h", "l o"]
        scores = meta["tokenizer.ggml.scores"]
        assert scores.dtype == np.float32 and scores.tolist() == [0.0, -1.5, -2.0, -3.0]
        assert meta["tokenizer.ggml.token_type"].tolist() == [3, 1, 1, 1]
        assert meta["tokenizer.ggml.add_bos_token"] is True
        assert meta["nested.numbers"].tolist() == [1, 2, 3]
        assert file.info("plain").shape == (6, 64)
        np.testing.assert_array_equal(file.read("plain"), wide)
        np.testing.assert_array_equal(file.read("half"), wide.astype(np.float16))
        assert file.read("ints").tolist() == [0, 1, 2, 3, 4]
        assert file.read("BF16").dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(
            file.read("BF16").view(np.uint16), wide.astype(ml_dtypes.bfloat16).view(np.uint16)
        )
        # The error of rounding to 4 bits is at most half a step of 1/8 (Q4_0) of the largest.
        assert np.abs(file.read("Q4_0") - wide).max() <= np.abs(wide).max() / 8
        for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
            number = gguf.GGMLQuantizationType[kind]
            want = gguf.dequantize(gguf.quantize(wide, number), number)
            assert file.info(kind).encoding == kind and file.info(kind).dtype == np.float32
            np.testing.assert_array_equal(file.read(kind), want)
            assert file.byte_range(kind) is None
        assert file.byte_range("plain") is not None


@pytest.mark.parametrize("number", QUANTISED, ids=[e.name for e in QUANTISED.values()])
def test_every_quantisation_is_decoded_bit_for_bit(number):
    """Random blocks, whatever their scales, against the gguf package; equal, NaN with NaN."""
    gguf = pytest.importorskip("gguf")
    encoding = QUANTISED[number]
    kind = gguf.GGMLQuantizationType(number)
    assert kind.name == encoding.name
    assert gguf.GGML_QUANT_SIZES[kind] == (encoding.elements, encoding.nbytes)
    blocks = np.random.default_rng(number).integers(0, 256, (40, encoding.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.dequantize(blocks, kind)
    got = dequantize(blocks.reshape(-1), encoding, want.shape)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_a_tensor_longer_than_a_piece_is_decoded_whole():
    """Pieces of 2¹⁸ elements meet without a seam: Q8_0 with scale 1 is its own bytes."""
    codes = np.random.default_rng(0).integers(-128, 128, (20_000, 32), np.int8)
    one = np.tile(np.frombuffer(np.float16(1).tobytes(), np.uint8), (20_000, 1))
    blocks = np.concatenate([one, codes.view(np.uint8)], axis=1)
    got = dequantize(blocks.reshape(-1), ENCODINGS[8], (20_000, 32))
    np.testing.assert_array_equal(got, codes.astype(np.float32))


def test_no_type_of_ggml_is_forgotten():
    gguf = pytest.importorskip("gguf")
    for kind in gguf.GGMLQuantizationType:
        known = ENCODINGS[kind.value].name if kind.value in ENCODINGS else UNREAD.get(kind.value)
        # Types newer than this table are refused by number.
        assert known in (kind.name, None)


def test_a_small_file_made_by_hand(opened):
    nested = listing(9, 2, listing(4, 1, struct.pack("<I", 7)) + listing(8, 1, text("x")))
    file = opened(
        gguf_bytes(
            [
                pair("general.alignment", 4, struct.pack("<I", 8)),
                pair("nested", 9, nested),
                pair("flags", 9, listing(7, 2, b"\0\1")),
                pair("wide", 12, struct.pack("<d", 0.1)),
            ],
            [gguf_info("a", [3], 24, 0), gguf_info("b", [2, 1], 0, 8)],
            b"\1\2\3" + b"\0" * 5 + np.float32([5, 6]).tobytes(),
            align=8,
        )
    )
    assert file.metadata["nested"][0].tolist() == [7] and file.metadata["nested"][1] == ["x"]
    assert file.metadata["flags"].dtype == np.bool_ and file.metadata["wide"] == 0.1
    assert file.names() == ("a", "b") and file.info("b").shape == (1, 2)
    assert file.read("a").tolist() == [1, 2, 3] and file.read("b").tolist() == [[5, 6]]


ONE = struct.pack("<I", 1)
A = gguf_info("a", [8], 24, 0)
# fmt: off
LIES = {
    "empty": (b"", "has 0 bytes"),
    "other magic": (b"GGML" + bytes(40), "does not start with GGUF"),
    "version 1": (gguf_bytes(version=1), "version 1; read are 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(24), "big-endian"),
    "2⁶⁴ tensors": (gguf_bytes(tensors=2**64 - 1), "announces .* tensors"),
    "2⁶⁴ keys": (gguf_bytes(keys=2**64 - 1), "announces .* metadata keys"),
    "key beyond the end": (gguf_bytes([struct.pack("<Q", 2**63) + b"k"]), "ends within"),
    "key that is no text": (gguf_bytes([pair(b"\xff", 4, ONE)]), "not UTF-8"),
    "key twice": (gguf_bytes([pair("k", 4, ONE)] * 2), "'k' twice"),
    "unknown type of value": (gguf_bytes([pair("k", 13, ONE)]), "unknown type 13"),
    "list of an unknown type": (gguf_bytes([pair("k", 9, listing(77, 1, b"x"))]), "type 77"),
    "list of 2⁶⁰ texts": (gguf_bytes([pair("k", 9, listing(8, 2**60, b""))]), "texts in metadata"),
    "list of 2⁶⁰ numbers": (gguf_bytes([pair("k", 9, listing(10, 2**60, b""))]), "numbers in"),
    "list of 2⁶⁰ lists": (gguf_bytes([pair("k", 9, listing(9, 2**60, b""))]), "lists in metadata"),
    "lists in lists in lists": (gguf_bytes([pair("k", 9, listing(9, 1, b"") * 50)]), "too deeply"),
    "boolean of 2": (gguf_bytes([pair("k", 7, b"\2")]), "neither 0 nor 1"),
    "alignment 0": (gguf_bytes([pair("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
    "alignment 24": (gguf_bytes([pair("general.alignment", 4, struct.pack("<I", 24))]), "power"),
    "alignment as text": (gguf_bytes([pair("general.alignment", 8, text("32"))]), "alignment"),
    "one part of three": (gguf_bytes([pair("split.count", 2, struct.pack("<H", 3))]), "3 parts"),
    "tensor twice": (gguf_bytes(infos=[A, A], data=bytes(40)), "'a' twice"),
    "five axes": (gguf_bytes(infos=[gguf_info("a", [1] * 5, 24, 0)], data=b"x"), "5 axes"),
    "2³² axes": (gguf_bytes(infos=[text("a") + struct.pack("<I", 2**32 - 1)], data=bytes(99)),
                 "axes"),
    "shape beyond memory": (gguf_bytes(infos=[gguf_info("a", [2**40, 2**40], 0, 0)]), "beyond any"),
    "unread type": (gguf_bytes(infos=[gguf_info("a", [256], 16, 0)], data=bytes(66)),
                    "stored as IQ2_XXS; read are F32"),
    "unknown tensor type": (gguf_bytes(infos=[gguf_info("a", [256], 999, 0)], data=bytes(66)),
                            "stored as number 999"),
    "part of a block": (gguf_bytes(infos=[gguf_info("a", [33], 2, 0)], data=bytes(36)),
                        "rows of 33, not a multiple of the 32"),
    "truncated": (gguf_bytes(infos=[A], data=bytes(7)), "truncated: tensor 'a' ends"),
    "overlap": (gguf_bytes(infos=[A, gguf_info("b", [8], 24, 0)], data=bytes(40)), "an overlap"),
    "gap": (gguf_bytes(infos=[A, gguf_info("b", [8], 24, 64)], data=bytes(72)), "a gap"),
    "offset beyond the file": (gguf_bytes(infos=[gguf_info("a", [8], 24, 2**63)], data=bytes(8)),
                               "a gap"),
    "bytes of no tensor": (gguf_bytes(infos=[A], data=bytes(33)), "1 bytes that belong to no"),
}
# fmt: on


@pytest.mark.parametrize("lie", LIES)
def test_what_a_file_cannot_mean_is_refused(opened, lie):
    content, message = LIES[lie]
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message) as refusal:
            opened(content)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert len(str(refusal.value)) < 800

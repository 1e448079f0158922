"""Damaged and invented files: a typed error or a good read, never anything else.

14,600 inputs: ten an example. Each is opened and, where it opens, every tensor is read.
"""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from glu_lab.errors import FileFormatError
from glu_lab.files.contents import non_finite
from glu_lab.files.gguf_reader import GGUFFile
from glu_lab.files.safetensors_reader import SafetensorsFile
from glu_lab.files.shards import open_index
from glu_lab.files.torch_reader import TorchFile
from tests.files.made import gguf_bytes, gguf_info, listing, pair, safetensors_bytes, text

BATCH = 10
#: The inputs have less than two kilobytes.
MEMORY = 4_000_000


def fuzzed(examples):
    return settings(
        max_examples=examples,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


#: Numbers at which arithmetic goes wrong.
NUMBERS = [0, 1, 2, 3, 7, 8, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32]
NUMBERS += [2**62, 2**63 - 1, 2**63, 2**64 - 1]
KINDS = ["set", "set", "number", "number", "insert", "delete", "cut", "repeat"]

#: One edit is one number, which is much faster to draw than its parts; `edited` takes it apart.
EDITS = st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=3)
BATCHES = st.lists(EDITS, min_size=BATCH, max_size=BATCH)


def edited(content, edits):
    for edit in edits:
        # Small numbers are drawn most; the multiplication (Knuth's) spreads them over all edits.
        edit = edit * 0x9E3779B97F4A7C15 % 2**64 >> 8
        edit, kind = divmod(edit, len(KINDS))
        edit, number = divmod(edit, len(NUMBERS))
        edit, count = divmod(edit, 12)
        edit, length = divmod(edit, 4)
        place, raw = divmod(edit, 256**2)
        at = place % (len(content) + 1)
        # Half of them ASCII, or a header would be no text at all most of the time.
        raw = (raw & (0x7F7F if count % 2 else 0xFFFF)).to_bytes(2, "little") * (length + 1)
        rest = content[at + count :]
        match KINDS[kind]:
            case "set":
                content = content[:at] + raw[: length + 1] + content[at + length + 1 :]
            case "number":
                content = content[:at] + struct.pack("<Q", NUMBERS[number]) + content[at + 8 :]
            case "insert":
                content = content[:at] + raw + content[at:]
            case "delete":
                content = content[:at] + rest
            case "cut":
                content = content[:at]
            case "repeat":
                content = content[: at + count] + content[at : at + count] + rest
    return content


def survives(opening, path):
    """Opens and reads all; True where it is a good file."""
    try:
        with opening(path) as file:
            for name in file:
                info, array = file.info(name), file.read(name)
                assert (array.shape, array.dtype) == (info.shape, info.dtype)
            non_finite(file)
    except FileFormatError:
        return False
    return True


@pytest.fixture
def check(tmp_path):
    """Opens each content as a file, within little memory."""

    def check_all(opening, name, contents):
        tracemalloc.start()
        try:
            for content in contents:
                # A new file is cheaper than the same one cut to nothing and written again.
                (tmp_path / name).unlink(missing_ok=True)
                (tmp_path / name).write_bytes(content)
                survives(opening, tmp_path / name)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()

    return check_all


ARRAYS = {
    "layers.0.up": np.arange(6, dtype=np.float32).reshape(2, 3),
    "mask": np.array([True, False, True]),
    "none": np.zeros((0, 4), np.int16),
}
SAFETENSORS = save(ARRAYS, {"format": "pt"})


def quantised(kind, nbytes):
    return gguf_info("q", [256], kind, 0), bytes(range(nbytes))


GGUF = gguf_bytes(
    [
        pair("general.alignment", 4, struct.pack("<I", 32)),
        pair("tokens", 9, listing(8, 3, text("a") + text("日") + text(""))),
        pair("scores", 9, listing(6, 2, struct.pack("<ff", -1, 2))),
        pair("deep", 9, listing(9, 1, listing(4, 1, struct.pack("<I", 7)))),
        pair("flag", 7, b"\1"),
    ],
    [
        gguf_info("q", [256], 12, 0),
        gguf_info("plain", [2, 3], 0, 160),
        gguf_info("eight", [32, 1], 8, 192),
    ],
    bytes(range(144)) + bytes(16) + bytes(24) + bytes(8) + bytes(34),
)


def test_the_undamaged_files_are_good(tmp_path):
    (tmp_path / "a").write_bytes(SAFETENSORS)
    (tmp_path / "b").write_bytes(GGUF)
    assert survives(SafetensorsFile, tmp_path / "a") and survives(GGUFFile, tmp_path / "b")


@fuzzed(400)
@given(BATCHES)
def test_damaged_safetensors(check, batch):
    check(SafetensorsFile, "x", [edited(SAFETENSORS, edits) for edits in batch])


@fuzzed(400)
@given(BATCHES)
def test_damaged_gguf(check, batch):
    check(GGUFFile, "x", [edited(GGUF, edits) for edits in batch])


@fuzzed(60)
@given(BATCHES)
def test_damaged_torch_files(check, tmp_path, batch):
    torch = pytest.importorskip("torch")
    tensors = {"w": torch.ones(5, 7), "b": torch.zeros(3, dtype=torch.bfloat16), "step": 3}
    torch.save(tensors, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    check(TorchFile, "x", [edited(whole, edits) for edits in batch])


ODD = st.one_of(
    st.sampled_from([*NUMBERS, -1, True, None, 1.5, "1", [], {}, 10**30]),
    st.integers(0, 24),
)
ENTRY = st.one_of(
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "BOOL", "F8_E4M3", "F4", "", "U8", "I64"]),
            "shape": st.lists(ODD, max_size=3),
            "data_offsets": st.lists(ODD, min_size=1, max_size=3),
        }
    ),
    st.sampled_from([None, 3, [], {}]),
)
HEADERS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "é", "", "__metadata__", "\ud800"]), ENTRY, max_size=3
)


@fuzzed(300)
@given(st.lists(st.tuples(HEADERS, st.binary(max_size=24)), min_size=BATCH, max_size=BATCH))
def test_invented_safetensors_headers(check, batch):
    check(SafetensorsFile, "x", [safetensors_bytes(header, data) for header, data in batch])


INDEX = json.dumps(
    {"metadata": {"total_size": 27}, "weight_map": dict.fromkeys(ARRAYS, "shard.safetensors")}
).encode()
PLACES = st.dictionaries(
    st.sampled_from([*ARRAYS, "", "other"]),
    st.one_of(
        st.sampled_from(
            ["shard.safetensors", "../x", "/etc/passwd", "index", ".", "", "a/../b", "\0", "shard"]
        ),
        ODD,
        st.text(max_size=5),
    ),
    max_size=4,
)


@fuzzed(300)
@given(st.lists(st.one_of(EDITS, PLACES), min_size=BATCH, max_size=BATCH))
def test_damaged_and_invented_indices(check, tmp_path, batch):
    if not (tmp_path / "shard.safetensors").exists():
        (tmp_path / "shard.safetensors").write_bytes(SAFETENSORS)
    contents = [
        json.dumps({"weight_map": made}).encode() if isinstance(made, dict) else edited(INDEX, made)
        for made in batch
    ]
    check(open_index, "index", contents)

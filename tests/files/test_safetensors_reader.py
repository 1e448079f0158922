"""safetensors: what the package writes is read bit for bit; what lies is refused, cheaply."""

import json
import os
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from glu_lab.errors import FileFormatError
from glu_lab.files.safetensors_reader import SafetensorsFile
from tests.files.made import safetensors_bytes, tensor

GOOD = {"a": tensor("F32", [2], 0, 8), "b": tensor("U8", [3], 8, 11)}


@pytest.fixture
def opened(tmp_path):
    """Writes bytes to a file and opens it."""
    files = []

    def open_bytes(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        files.append(SafetensorsFile(path))
        return files[-1]

    yield open_bytes
    for file in files:
        file.close()


def test_every_type_that_the_package_writes_is_read_back(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "bool", "c8"]
    arrays = {k: (rng.normal(size=(3, 5)) * 9).astype(k) for k in kinds if k != "c8"}
    arrays["c8"] = (rng.normal(size=4) + 1j * rng.normal(size=4)).astype("c8")
    arrays |= {"none": np.zeros((0, 4), "f4"), "scalar": np.array(2.5, "f4")}
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, {"format": "pt"})
    with SafetensorsFile(path) as file:
        assert set(file.names()) == set(arrays)
        assert file.metadata == {"format": "pt"}
        for name, array in arrays.items():
            info, read = file.info(name), file.read(name)
            assert (info.shape, info.dtype, info.nbytes) == (array.shape, array.dtype, array.nbytes)
            assert read.dtype == array.dtype and read.tobytes() == array.tobytes()


def test_bfloat16_and_float8_of_torch_are_read_bit_for_bit(tmp_path):
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    x = torch.randn(4, 6)
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    tensors = {kind: x.to(getattr(torch, kind)) for kind in kinds}
    save(tensors, tmp_path / "model.safetensors")
    with SafetensorsFile(tmp_path / "model.safetensors") as file:
        for kind, t in tensors.items():
            read = file.read(kind)
            assert read.dtype == np.dtype(getattr(ml_dtypes, kind))
            np.testing.assert_array_equal(read.astype(np.float32), t.float().numpy())


def test_tensors_are_read_only_and_outlive_the_file(opened):
    file = opened(safetensors_bytes(GOOD, np.float32([1, 2]).tobytes() + b"\1\2\3"))
    a, b = file.read("a"), file.read("b")
    file.close()
    assert not a.flags.writeable and a.tolist() == [1, 2] and b.tolist() == [1, 2, 3]
    with pytest.raises(FileFormatError, match="closed"):
        file.read("a")


def test_an_unaligned_tensor_is_read(opened):
    header = {"b": tensor("U8", [3], 0, 3), "a": tensor("F32", [2], 3, 11)}
    file = opened(safetensors_bytes(header, b"\1\2\3" + np.float32([1, -2]).tobytes()))
    array = file.read("a")
    assert array.flags.aligned and array.tolist() == [1, -2]


def test_a_wrong_name_is_answered_with_the_nearest(opened):
    file = opened(safetensors_bytes(GOOD | {"layers.0.up": tensor("U8", [0], 11, 11)}, b"x" * 11))
    with pytest.raises(FileFormatError, match="no tensor 'layers.0.ups'; did you mean 'layers.0"):
        file.read("layers.0.ups")


# fmt: off
LIES = {
    "empty": (b"", "has 0 bytes"),
    "only a length": (b"\2\0\0\0\0\0\0\0", "has 2 bytes, but .* 0 left"),
    "header beyond the end": (safetensors_bytes(GOOD, length=5000), "truncated"),
    "huge header": (safetensors_bytes(GOOD, length=2**63), "allows 100,000,000"),
    "no object": (safetensors_bytes(b"[1]"), "does not start with"),
    "not JSON": (safetensors_bytes(b"{'a': 1}"), "not JSON"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "not UTF-8"),
    "half a surrogate": (safetensors_bytes(b'{"\\ud800": {}}'), "no text"),
    "NaN": (safetensors_bytes(b'{"a": NaN}'), "holds NaN"),
    "nested": (safetensors_bytes(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "long number": (safetensors_bytes(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    "same name twice": (safetensors_bytes(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"), "has 'a' twice"),
    "same field twice": (safetensors_bytes(
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "has 'dtype' twice"),
    "unknown type": (safetensors_bytes({"a": tensor("FLOAT", [1], 0, 4)}, b"x" * 4),
                     "'FLOAT'; read are BOOL"),
    "packed type": (safetensors_bytes({"a": tensor("F4", [2], 0, 1)}, b"x"), "smaller than a byte"),
    "type that is no text": (safetensors_bytes({"a": tensor([1], [1], 0, 4)}, b"x" * 4), "type"),
    "missing field": (safetensors_bytes({"a": {"dtype": "U8", "shape": [0]}}), "described by"),
    "extra field": (safetensors_bytes({"a": tensor("U8", [1], 0, 1) | {"strides": [1]}}, b"x"),
                    "strides"),
    "entry of another kind": (safetensors_bytes({"a": 3}), "described by int"),
    "negative extent": (safetensors_bytes({"a": tensor("U8", [-1, -1], 0, 1)}, b"x"), "no shape"),
    "true as extent": (safetensors_bytes({"a": tensor("U8", [True], 0, 1)}, b"x"), "no shape"),
    "fraction as extent": (safetensors_bytes({"a": tensor("U8", [1.0], 0, 1)}, b"x"), "no shape"),
    "rank 65": (safetensors_bytes({"a": tensor("U8", [1] * 65, 0, 1)}, b"x"), "65 axes"),
    "shape beyond memory": (safetensors_bytes({"a": tensor("F32", [2**40, 2**40], 0, 4)}, b"xxxx"),
                            "beyond any memory"),
    "huge extents hidden by a zero": (safetensors_bytes({"a": tensor("F32", [0, 2**62], 0, 0)}),
                                      "beyond any memory"),
    "extents of thousands of digits": (safetensors_bytes({"a": tensor("F32", [10**4000], 0, 4)}),
                                       "beyond any memory"),
    "wrong size": (safetensors_bytes({"a": tensor("F32", [2], 0, 4)}, b"xxxx"), "takes 8"),
    "offsets swapped": (safetensors_bytes({"a": tensor("U8", [0], 4, 0)}, b"xxxx"), "data_offsets"),
    "one offset": (safetensors_bytes({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}),
                   "data_offsets"),
    "gap": (safetensors_bytes({"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)}, b"xxx"),
            "a gap between tensor 'a' and tensor 'b'"),
    "gap at the start": (safetensors_bytes({"a": tensor("U8", [1], 1, 2)}, b"xx"),
                         "a gap between the header and tensor 'a'"),
    "overlap": (safetensors_bytes({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)},
                                  b"xxx"), "an overlap between tensor 'a' and tensor 'b'"),
    "two on the same bytes": (safetensors_bytes(
        {"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 0, 2)}, b"xx"), "an overlap"),
    "beyond the file": (safetensors_bytes(GOOD, b"x" * 10), "truncated: 1 bytes are missing"),
    "bytes of no tensor": (safetensors_bytes(GOOD, b"x" * 12), "1 bytes at its end"),
    "metadata of another kind": (safetensors_bytes({"__metadata__": [1]}), "no object but list"),
    "metadata that are no text": (safetensors_bytes({"__metadata__": {"k": 1}}), "no text"),
}
# fmt: on


@pytest.mark.parametrize("lie", LIES)
def test_what_a_file_cannot_mean_is_refused(opened, lie):
    content, message = LIES[lie]
    with pytest.raises(FileFormatError, match=message) as refusal:
        opened(content)
    assert len(str(refusal.value)) < 800


def test_a_declared_size_is_never_allocated(opened):
    """Terabytes announced by 200 bytes cost no megabyte."""
    tracemalloc.start()
    try:
        for content in (
            safetensors_bytes({"a": tensor("F32", [2**38], 0, 2**40)}),
            safetensors_bytes(GOOD, length=99_999_999),
        ):
            with pytest.raises(FileFormatError):
                opened(content)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_header_beyond_the_limit_of_the_format_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(GOOD, length=100_000_001))
    os.truncate(path, 200_000_000)  # a hole; it takes no disk
    with pytest.raises(FileFormatError, match="100,000,001 bytes, but the format allows 100,000,"):
        SafetensorsFile(path)


def test_a_boolean_that_is_neither_0_nor_1_is_refused(opened):
    file = opened(safetensors_bytes({"a": tensor("BOOL", [2], 0, 2)}, b"\1\2"))
    with pytest.raises(FileFormatError, match="boolean of 2"):
        file.read("a")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="no regular file"):
        SafetensorsFile(tmp_path / "model.safetensors")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be opened: No such file"):
        SafetensorsFile(tmp_path / "none.safetensors")
    with pytest.raises(FileFormatError, match="no regular file"):
        SafetensorsFile(tmp_path)


_READ_ALL = """
import resource, sys
from pathlib import Path
from glu_lab.files.contents import non_finite
from glu_lab.files.safetensors_reader import SafetensorsFile
from glu_lab.files.safetensors_writer import described, write_safetensors

# The peak that getrusage knows is inherited from the parent; this one can be reset.
Path("/proc/self/clear_refs").write_text("5")
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
before = peak()
with SafetensorsFile(Path(sys.argv[1])) as file:
    assert non_finite(file) == {}
    read = peak() - before
    infos = [file.info(name) for name in file]
    write_safetensors(
        Path(sys.argv[2]),
        [(described(i.name, i.shape[::-1], i.dtype), lambda n=i.name: file.read(n).T)
         for i in infos],
    )
print(read, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("aligned", [True, False])
def test_memory_follows_the_largest_tensor_not_the_file(tmp_path, aligned):
    """128 MB in eight tensors, read, and then written transposed."""
    one, count = 16 << 20, 8
    header = {
        str(i): tensor("F32", [2048, one // 8192], i * one, (i + 1) * one) for i in range(count)
    }
    path = tmp_path / "large.safetensors"
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8 + (not aligned))
    path.write_bytes(safetensors_bytes(content))
    with open(path, "r+b") as file:
        # A hole: it reads as zeros and takes no disk.
        file.truncate(path.stat().st_size + count * one)
    ran = subprocess.run(
        [sys.executable, "-c", _READ_ALL, str(path), str(tmp_path / "out.safetensors")],
        capture_output=True,
        text=True,
        check=True,
    )
    read, written = map(int, ran.stdout.split())
    # The tensor that is read, and 24 MB for pieces and buffers.
    assert read < one + (24 << 20), read
    assert written < one + (48 << 20), written

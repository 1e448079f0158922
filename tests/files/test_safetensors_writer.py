"""The writer: what other readers find in its files, and what it leaves when it is stopped."""

import hashlib
import json
import os
import time
import weakref

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from glu_lab.errors import FileFormatError, RecordError
from glu_lab.files import hashed_output
from glu_lab.files.element_types import DTYPES
from glu_lab.files.safetensors_writer import (
    described,
    entry_from,
    write_safetensors,
    write_sharded,
    write_shards,
)
from glu_lab.files.staging import staged_folder
from glu_lab.files.tensors import TensorInfo, open_tensors
from tests.files.made import safetensors_bytes, tensor
from tests.small_disk import mounted


def entries(arrays):
    return [(described(n, a.shape, a.dtype), lambda a=a: a) for n, a in arrays.items()]


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "b": rng.integers(0, 9, (3, 5)).astype(ml_dtypes.bfloat16),
        "odd": np.arange(3, dtype=np.uint8),
        "a": rng.normal(size=(4, 6)).astype(np.float32),
        "double": rng.normal(size=2),
        "none": np.zeros((0, 3), np.int8),
        "scalar": np.array(2.5, np.float16),
    }


def sha(content):
    return hashlib.sha256(content).hexdigest()


def test_the_safetensors_package_reads_what_is_written(tmp_path, arrays):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, entries(arrays), {"format": "pt", "note": "ü"})
    plain = {name: a for name, a in arrays.items() if name != "b"}
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(arrays)
        assert file.metadata() == {"format": "pt", "note": "ü"}
        for name, array in plain.items():
            read = file.get_tensor(name)
            assert read.dtype == array.dtype and read.shape == array.shape
            assert read.tobytes() == array.tobytes()


def test_torch_reads_bfloat16_and_float8_that_are_written(tmp_path):
    pytest.importorskip("torch")
    from safetensors.torch import load_file

    kinds = ["BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
    arrays = {kind: np.array([[1, -2, 0.5]]).astype(DTYPES[kind]) for kind in kinds}
    write_safetensors(tmp_path / "x", entries(arrays))
    loaded = load_file(tmp_path / "x")
    for kind in kinds:
        assert loaded[kind].float().tolist() == [[1, -2, 0.5]]


def test_every_view_of_a_written_file_is_aligned(tmp_path, arrays):
    write_safetensors(tmp_path / "x", entries(arrays))
    with open_tensors(tmp_path / "x") as file:
        for name in file:
            assert file.byte_range(name).offset % file.info(name).dtype.alignment == 0
        # Among types of one width the order is the caller's.
        assert file.names() == ("double", "a", "b", "scalar", "odd", "none")


def test_digests_are_those_of_the_bytes(tmp_path, arrays, monkeypatch):
    """Also over several pieces, for arrays in any order of axes, and for copied ranges."""
    monkeypatch.setattr(hashed_output, "_PIECE", 64)
    monkeypatch.setattr(hashed_output, "_CALL", 24)
    big = np.random.default_rng(1).normal(size=(7, 5, 11))
    arrays |= {"big": big, "turned": big.transpose(2, 0, 1), "reversed": big[::-1, :, ::2]}
    path = tmp_path / "x.safetensors"
    written = write_safetensors(path, entries(arrays), hash_files=True)
    content = path.read_bytes()
    assert written.files == {"x.safetensors": (len(content), sha(content))}
    assert {t.name: t.sha256 for t in written.tensors} == {
        name: sha(np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()
    }
    with open_tensors(path) as file:
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.read(name), array)
        copied = write_safetensors(tmp_path / "y", [entry_from(file, n, f"new.{n}") for n in file])
    assert [t.sha256 for t in copied.tensors] == [t.sha256 for t in written.tensors]
    assert [t.name for t in copied.tensors] == [f"new.{t.name}" for t in written.tensors]
    assert copied.files["y"][1] is None
    with open_tensors(tmp_path / "y") as file:
        np.testing.assert_array_equal(file.read("new.turned"), arrays["turned"])


def test_a_digest_that_lags_behind_sees_what_was_written(tmp_path, monkeypatch):
    """The file's digest runs in a thread; no buffer is filled again before it is done with it."""
    monkeypatch.setattr(hashed_output, "_PIECE", 64)
    content = safetensors_bytes({"a": tensor("U8", [4000], 0, 4000)}, os.urandom(4000))
    (tmp_path / "source").write_bytes(content)

    class Slow:
        def __init__(self):
            self.real = hashlib.sha256()
            self.hexdigest = self.real.hexdigest

        def update(self, piece):
            time.sleep(0.001)
            self.real.update(piece)

    with (
        open_tensors(tmp_path / "source") as file,
        open(tmp_path / "x", "wb") as target,
        hashed_output.HashedOutput(target.fileno(), hash_file=True) as output,
    ):
        monkeypatch.setattr(output, "_file_hash", Slow())
        digest = output.write_range(file.byte_range("a"))
        assert output.file_digest() == digest == sha(content[-4000:])
    assert (tmp_path / "x").read_bytes() == content[-4000:]


def test_shards_are_filled_in_order_and_indexed(tmp_path):
    """40-byte tensors in shards of 100 bytes: two each; one of 400 bytes has its own."""
    sizes = {"a": 10, "b": 10, "c": 10, "large": 100, "d": 10}
    arrays = {name: np.full(size, i, np.float32) for i, (name, size) in enumerate(sizes.items())}
    folder = tmp_path / "model"
    written = write_sharded(folder, entries(arrays), {"format": "pt"}, max_shard_bytes=100)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = [f"model-{i:05d}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    assert index == {
        "metadata": {"total_size": 560},
        "weight_map": {
            "a": names[0],
            "b": names[0],
            "c": names[1],
            "d": names[3],
            "large": names[2],
        },
    }
    assert sorted(os.listdir(folder)) == [*names, "model.safetensors.index.json"]
    assert list(written.files) == names
    for name, array in arrays.items():
        with safe_open(folder / index["weight_map"][name], "np") as file:
            np.testing.assert_array_equal(file.get_tensor(name), array)
    with open_tensors(folder) as file:
        assert set(file.names()) == set(arrays)


def test_what_fits_in_one_shard_is_one_file(tmp_path, arrays):
    write_sharded(tmp_path / "model", entries(arrays), max_shard_bytes=10**6)
    assert os.listdir(tmp_path / "model") == ["model.safetensors"]


def test_shards_in_a_folder_that_the_caller_stages(tmp_path, arrays):
    """Weights and a manifest appear together."""
    with staged_folder(tmp_path / "out") as folder:
        write_shards(folder, entries(arrays), max_shard_bytes=50)
        (folder / "manifest.json").write_text("{}")
        assert not (tmp_path / "out").exists()
    with open_tensors(tmp_path / "out") as file:
        assert set(file.names()) == set(arrays)


def test_a_tensor_is_let_go_before_the_next_is_asked_for(tmp_path):
    made = []

    class Watched(np.ndarray):
        pass

    def produce():
        assert not any(before() is not None for before in made)
        array = np.zeros(1000, np.float32).view(Watched)
        made.append(weakref.ref(array))
        return array

    info = [described(str(i), (1000,), np.float32) for i in range(5)]
    write_safetensors(tmp_path / "x", [(i, produce) for i in info], hash_files=True)


def test_quantised_tensors_are_copied_decoded(tmp_path):
    from tests.files.made import gguf_bytes, gguf_info

    block = np.float16(2).tobytes() + np.arange(32, dtype=np.int8).tobytes()
    content = gguf_bytes(infos=[gguf_info("q", [32], 8, 0)], data=block)
    (tmp_path / "m.gguf").write_bytes(content)
    with open_tensors(tmp_path / "m.gguf") as file:
        write_safetensors(tmp_path / "x", [entry_from(file, "q")])
    with open_tensors(tmp_path / "x") as file:
        np.testing.assert_array_equal(file.read("q"), np.arange(32, dtype=np.float32) * 2)


ONE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("given", "metadata", "message"),
    [
        ([("a", ONE), ("a", ONE)], {}, "tensor 'a' twice"),
        ([("__metadata__", ONE)], {}, "cannot hold"),
        ([("\ud800", ONE)], {}, "cannot hold"),
        ([("a", ONE.astype(">f4"))], {}, "type >f4; safetensors has BOOL"),
        ([("a", ONE.astype(np.complex128))], {}, "type complex128"),
        ([("a", np.array(["x"]))], {}, "type <U1"),
        ([("a", ONE)], {"k": 1}, "text to text, not 'k' to int"),
        ([("a", ONE)], {"k": "\udfff"}, "text to text"),
    ],
)
def test_what_safetensors_cannot_hold_is_refused_before_a_write(tmp_path, given, metadata, message):
    plan = [(described(name, a.shape, a.dtype), lambda a=a: a) for name, a in given]
    with pytest.raises(FileFormatError, match=message):
        write_safetensors(tmp_path / "x", plan, metadata)
    with pytest.raises(FileFormatError, match=message):
        write_sharded(tmp_path / "y", plan, metadata, max_shard_bytes=10)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("array", "came"),
    [
        (np.zeros((3, 2), np.float32), "float32 (3, 2)"),
        (np.zeros((2, 3), np.float64), "float64 (2, 3)"),
    ],
)
def test_a_tensor_that_differs_from_its_announcement_ends_the_write(tmp_path, array, came):
    good = (described("a", (2,), np.float32), lambda: ONE)
    bad = (described("w", (2, 3), np.float32), lambda: array)
    with pytest.raises(FileFormatError, match="announced as float32 .* came as") as refusal:
        write_safetensors(tmp_path / "x", [good, bad])
    assert came in str(refusal.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, FileFormatError, OSError])
def test_an_interrupted_write_leaves_nothing(tmp_path, failure):
    def fails():
        raise failure("stop")

    plan = [(described("a", (2,), np.float32), lambda: ONE), (described("b", (2,), "f4"), fails)]
    (tmp_path / "x").write_bytes(b"old")
    expected = RecordError if failure is OSError else failure
    with pytest.raises(expected):
        write_safetensors(tmp_path / "x", plan, overwrite=True)
    with pytest.raises(expected):
        write_sharded(tmp_path / "model", plan, max_shard_bytes=8)
    assert os.listdir(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_an_existing_target_is_kept_unless_told_otherwise(tmp_path, arrays):
    path, folder = tmp_path / "x.safetensors", tmp_path / "model"
    for _ in range(2):
        write_safetensors(path, entries({"a": ONE}), overwrite=True)
        write_sharded(folder, entries({"a": ONE, "b": ONE}), max_shard_bytes=8, overwrite=True)
    old = path.read_bytes()

    def never():
        raise AssertionError("asked for a tensor that cannot be written")

    plan = [(described("a", (2,), np.float32), never)]
    with pytest.raises(RecordError, match="exists and is left as it is"):
        write_safetensors(path, plan)
    with pytest.raises(RecordError, match="exists and is left as it is"):
        write_sharded(folder, plan, max_shard_bytes=8)
    assert path.read_bytes() == old and len(os.listdir(folder)) == 3
    # Fewer shards than before: none of the old ones stays.
    write_sharded(folder, entries({"a": ONE}), max_shard_bytes=8, overwrite=True)
    assert os.listdir(folder) == ["model.safetensors"]


def test_a_file_may_replace_the_one_that_it_is_copied_from(tmp_path, arrays):
    path = tmp_path / "x"
    write_safetensors(path, entries(arrays))
    with open_tensors(path) as file:
        write_safetensors(path, [entry_from(file, n, f"new.{n}") for n in file], overwrite=True)
    with open_tensors(path) as file:
        np.testing.assert_array_equal(file.read("new.a"), arrays["a"])


def test_a_source_that_becomes_shorter_is_noticed(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(safetensors_bytes({"a": tensor("U8", [1000], 0, 1000)}, bytes(1000)))
    with open_tensors(source) as file:
        os.truncate(source, 500)
        with pytest.raises(FileFormatError, match="has become shorter"):
            write_safetensors(tmp_path / "x", [entry_from(file, "a")])
    assert os.listdir(tmp_path) == ["source"]


def test_a_range_of_another_size_is_refused(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(safetensors_bytes({"a": tensor("U8", [8], 0, 8)}, bytes(8)))
    with open_tensors(source) as file:
        wrong = TensorInfo("a", (3,), np.dtype(np.float32))
        with pytest.raises(FileFormatError, match="takes 12 bytes, its source in .* has 8"):
            write_safetensors(tmp_path / "x", [(wrong, file.byte_range("a"))])


def test_a_shard_of_no_bytes_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="one byte at least, not 0"):
        write_sharded(tmp_path / "m", entries({"a": ONE}), max_shard_bytes=0)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path):
    with mounted(tmp_path / "small", "2m") as disk:
        big = entries({"a": np.zeros(3 << 20, np.uint8)})
        for write in (
            lambda: write_safetensors(disk / "x", big),
            lambda: write_sharded(disk / "m", big, max_shard_bytes=1 << 20),
        ):
            with pytest.raises(RecordError, match=r"takes 3,145,\d+ bytes and [12],\d+,\d+ are"):
                write()
        assert os.listdir(disk) == []


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path):
    with mounted(tmp_path / "small", "2m") as disk:

        def meanwhile():
            (disk / "other").write_bytes(bytes(1 << 20))
            return np.zeros(1 << 20, np.uint8)

        plan = [
            (described(n, (1 << 19,), np.uint8), lambda: np.zeros(1 << 19, np.uint8)) for n in "ab"
        ]
        plan.append((described("c", (1 << 20,), np.uint8), meanwhile))
        with pytest.raises(RecordError, match="No space left|are free"):
            write_safetensors(disk / "x", plan[1:])
        assert os.listdir(disk) in ([], ["other"])

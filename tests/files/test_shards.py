"""Several safetensors files as one checkpoint; an index leads nowhere but into its folder."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from glu_lab.errors import FileFormatError
from glu_lab.files.shards import open_index
from glu_lab.files.tensors import open_tensors

A = {"a": np.arange(3, dtype=np.float32)}
B = {"b": np.ones((2, 2), np.int8), "c": np.zeros(1, np.float64)}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    save_file(A, place / ONE, {"format": "pt", "own": "1"})
    save_file(B, place / TWO, {"format": "pt", "own": "2"})
    return place


def write_index(folder, placed, **more):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": placed, **more}))
    return path


PLACED = {"a": ONE, "b": TWO, "c": TWO}


@pytest.mark.parametrize("opened_by", ["index", "folder"])
def test_an_index_joins_its_shards(folder, opened_by):
    path = write_index(folder, PLACED)
    with open_tensors(path if opened_by == "index" else folder) as file:
        assert set(file.names()) == {"a", "b", "c"}
        for name, array in (A | B).items():
            np.testing.assert_array_equal(file.read(name), array)
        assert file.info("b").file.name == TWO
        assert file.byte_range("a").nbytes == 12
        # What the shards agree on, and the index's own.
        assert file.metadata == {"format": "pt", "total_size": 24}
        assert file.aliases == ()


def test_numbered_shards_need_no_index_when_all_are_there(folder):
    with open_tensors(folder) as file:
        assert set(file.names()) == {"a", "b", "c"}
    (folder / TWO).unlink()
    with pytest.raises(FileFormatError, match="no complete set"):
        open_tensors(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    save_file({"a": np.zeros(1, np.int8)}, folder / TWO)
    with pytest.raises(FileFormatError, match=f"'a' is in {ONE} and in {TWO}"):
        open_tensors(folder)


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({"a": ONE, "b": TWO}, f"{TWO} holds c, which .* does not place"),
        (PLACED | {"d": ONE}, f"says that {ONE} holds d; it does not"),
        ({"a": TWO, "b": TWO, "c": TWO}, f"says that {TWO} holds a; it does not"),
        (PLACED | {"d": "model-00003.safetensors"}, "cannot be opened"),
        ({}, "no weight_map"),
        ([ONE], "no weight_map"),
        ({"a": 1}, "maps 'a' to int, no file"),
        ({"a": "../model/" + ONE}, "refers to the file"),
        ({"a": "sub/../../" + ONE}, "refers to the file"),
        ({"a": "..\\" + ONE}, "refers to the file"),
        ({"a": "/etc/passwd"}, "refers to the file"),
        ({"a": "C:/" + ONE}, "refers to the file"),
        ({"a": ""}, "refers to the file"),
        ({"a": "x\0y"}, "refers to the file"),
        ({"a": "."}, "no regular file"),
        ({"a": "x" * 5000}, "cannot be opened|leads nowhere"),
    ],
)
def test_an_index_that_cannot_be_true_is_refused(folder, placed, message):
    with pytest.raises(FileFormatError, match=message):
        open_index(write_index(folder, placed))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "has 'a' twice"),
        (b'{"weight_map": {"a": "x"}, "metadata": 3}', "metadata .* int"),
        (b'{"weight_map": {"\\ud800": "x"}}', "no text"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_index_is_refused(folder, content, message):
    path = folder / "model.safetensors.index.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        open_index(path)


def test_links_that_leave_the_folder_are_refused(folder, tmp_path):
    """A file, a folder on the way, and a loop; a link within the folder is followed."""
    write_index(folder, PLACED)
    (folder / ONE).rename(tmp_path / "elsewhere.safetensors")
    (folder / ONE).symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(FileFormatError, match="link to .*elsewhere.safetensors, outside"):
        open_tensors(folder)
    (folder / ONE).unlink()
    (folder / ONE).symlink_to(folder / ONE)
    with pytest.raises(FileFormatError, match="leads nowhere|outside|cannot be opened"):
        open_tensors(folder)
    (folder / ONE).unlink()
    (tmp_path / "elsewhere.safetensors").rename(folder / "one")
    (folder / ONE).symlink_to("one")
    with open_index(folder / "model.safetensors.index.json") as file:
        assert file.read("a").tolist() == [0, 1, 2]
    write_index(folder, {"a": "out/x", "b": TWO, "c": TWO})
    (folder / "out").symlink_to(tmp_path)
    (folder / "one").rename(tmp_path / "x")
    with pytest.raises(FileFormatError, match="outside its folder"):
        open_index(folder / "model.safetensors.index.json")


def test_a_link_in_a_folder_without_an_index_is_refused_too(tmp_path):
    (tmp_path / "in").mkdir()
    save_file(A, tmp_path / "secret")
    (tmp_path / "in" / "model.safetensors").symlink_to("../secret")
    with pytest.raises(FileFormatError, match="outside its folder"):
        open_tensors(tmp_path / "in")
    # Whoever names a link means what it leads to.
    with open_tensors(tmp_path / "in" / "model.safetensors") as file:
        assert file.names() == ("a",)


def test_a_hub_cache_is_read(folder, tmp_path):
    """Its snapshots are links into the folder of blobs beside them."""
    blobs, snapshot = tmp_path / "m" / "blobs", tmp_path / "m" / "snapshots" / "1a2b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    write_index(folder, PLACED)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    with open_tensors(snapshot) as file:
        assert set(file.names()) == {"a", "b", "c"}


def test_nothing_stays_open_after_a_refusal(folder):
    path = write_index(folder, PLACED | {"d": TWO})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(FileFormatError):
            open_tensors(path)
    assert len(os.listdir("/proc/self/fd")) == before

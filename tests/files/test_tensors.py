"""What a path is, is decided by what lies there; parts of ranks come in order."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from glu_lab.errors import FileFormatError, RecordError
from glu_lab.files.checkpoints import Checkpoints
from glu_lab.files.tensors import open_ranks, open_tensors
from tests.files.made import gguf_bytes, gguf_info

W = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def only(path, **how):
    with open_tensors(path, **how) as file:
        return file.format, {name: file.read(name).tolist() for name in file}


def test_the_content_decides_not_the_name(tmp_path):
    save_file(W, tmp_path / "weights.bin")
    (tmp_path / "weights.txt").write_bytes(
        gguf_bytes(infos=[gguf_info("w", [1], 24, 0)], data=b"3")
    )
    assert only(tmp_path / "weights.bin") == ("safetensors", {"w": W["w"].tolist()})
    assert only(tmp_path / "weights.txt") == ("gguf", {"w": [51]})


def test_a_folder_means_the_one_checkpoint_in_it(tmp_path):
    for name in ("config.json", "tokenizer.json", "README.md"):
        (tmp_path / name).write_text("{}")
    save_file(W, tmp_path / ".hidden.safetensors")
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    with pytest.raises(FileFormatError, match="holds no tensor file"):
        open_tensors(tmp_path)
    save_file(W, tmp_path / "model.safetensors")
    assert only(tmp_path) == ("safetensors", {"w": W["w"].tolist()})
    (tmp_path / "model.gguf").write_bytes(gguf_bytes())
    with pytest.raises(FileFormatError, match=r"more than one .*: model\.gguf, model\.safetensors"):
        open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; read are"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file"),
        (b"\x80\x04\x95" + bytes(20), "a pickle; code in a pickle is never executed"),
        (b"\x93NUMPY\x01\x00" + bytes(20), "a NumPy file"),
        (b"hello, world, this is no tensor file", "starts with b'hello, w'"),
    ],
)
def test_files_of_other_kinds_are_refused_by_kind(tmp_path, content, message):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        open_tensors(tmp_path / "model")


def test_a_truncated_download_is_told_as_such(tmp_path):
    save_file(W, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    path = tmp_path / "model.safetensors"
    for length in (0, 7, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match="truncated|has \\d bytes"):
            open_tensors(path)


def test_nothing_there(tmp_path):
    with pytest.raises(FileFormatError, match="cannot be opened: No such file"):
        open_tensors(tmp_path / "none")


def part(folder, rank, name):
    place = folder / name
    file = place if "." in name else place / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({"w": np.full(2, rank, np.int32)}, file)


@pytest.mark.parametrize(
    "names",
    [
        ["mp_rank_00", "mp_rank_01", "mp_rank_02"],
        ["rank_10", "rank_2", *(f"rank_{i}" for i in (0, 1, 3, 4, 5, 6, 7, 8, 9))],
        ["rank0.safetensors", "rank1.safetensors"],
        ["consolidated.00.safetensors", "consolidated.01.safetensors"],
    ],
)
def test_parts_of_ranks_come_in_the_order_of_the_ranks(tmp_path, names):
    for name in names:
        part(tmp_path, int("".join(filter(str.isdigit, name))), name)
    (tmp_path / "params.json").write_text("{}")
    with open_ranks(tmp_path) as ranks:
        assert [rank.read("w")[0] for rank in ranks] == list(range(len(names)))
    with pytest.raises(FileFormatError, match=f"holds {len(names)} tensor-parallel ranks"):
        open_tensors(tmp_path)


def test_what_is_whole_counts_as_one_rank(tmp_path):
    save_file(W, tmp_path / "model.safetensors")
    with open_ranks(tmp_path) as ranks:
        assert len(ranks) == 1 and ranks[0].names() == ("w",)
    part(tmp_path / "one", 0, "mp_rank_00")
    with open_ranks(tmp_path / "one") as ranks:
        assert len(ranks) == 1
    assert only(tmp_path / "one") == ("safetensors", {"w": [0, 0]})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["mp_rank_00", "mp_rank_02"], "none of rank 1"),
        (["mp_rank_01"], "none of rank 0"),
        (["rank_0", "rank_1", "mp_rank_01"], "rank 1 twice"),
        (["mp_rank_00_000", "mp_rank_00_001"], "pipeline stage"),
        (["mp_rank_00", "mp_rank_01", "model.safetensors"], "and also model.safetensors"),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(tmp_path, names, message):
    for name in names:
        part(tmp_path, 0, name)
    for opening in (open_ranks, open_tensors):
        with pytest.raises(FileFormatError, match=message):
            opening(tmp_path)


def test_a_rank_that_leads_elsewhere_is_refused(tmp_path):
    part(tmp_path / "other", 1, "mp_rank_01")
    part(tmp_path / "model", 0, "mp_rank_00")
    (tmp_path / "model" / "mp_rank_01").symlink_to(tmp_path / "other" / "mp_rank_01")
    with pytest.raises(FileFormatError, match="outside its folder"):
        open_ranks(tmp_path / "model")


@pytest.fixture
def run(tmp_path):
    """A run's folder as training leaves it, with checkpoints of steps 1 and 3."""
    place = tmp_path / "run"
    place.mkdir()
    (place / "config.json").write_text("{}")
    checkpoints = Checkpoints(place / "checkpoints", keep=2)
    for step in (1, 3):
        params = {
            "decoder": {"layers": {"ffn": {"wi": jnp.full((2, 3, 2, 4), step, jnp.float32)}}},
            "embedding": jnp.arange(6, dtype=jnp.bfloat16).reshape(3, 2) * step,
        }
        optimiser = (jnp.int32(9), {"m": params["decoder"]})
        state = {"params": params, "optimizer": optimiser, "step": jnp.int32(step)}
        checkpoints.save(step, state, {})
    checkpoints.close()
    return place


def test_a_run_gives_the_parameters_of_its_newest_checkpoint(run):
    for path in (run, run / "checkpoints", run / "checkpoints" / "3"):
        with open_tensors(path) as file:
            assert file.names() == ("decoder/layers/ffn/wi", "embedding")
            assert file.metadata["step"] == 3
            assert file.info("decoder/layers/ffn/wi").shape == (2, 3, 2, 4)
            read = file.read("embedding")
            assert isinstance(read, np.ndarray) and read.dtype == jnp.bfloat16
            assert read.tolist() == [[0, 3], [6, 9], [12, 15]]
            assert (file.read("decoder/layers/ffn/wi") == 3).all()


def test_an_older_checkpoint_of_a_run_can_be_asked_for(run):
    assert only(run, step=1)[1]["embedding"] == [[0, 1], [2, 3], [4, 5]]
    assert only(run / "checkpoints" / "1")[1]["embedding"] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(RecordError, match="no checkpoint of step 2 .*; there are \\[1, 3\\]"):
        open_tensors(run, step=2)


def test_a_step_of_what_has_none_is_refused(tmp_path):
    save_file(W, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="only these have steps"):
        open_tensors(tmp_path, step=3)


def test_a_run_without_checkpoints_is_told_as_such(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RecordError, match="no checkpoint in .* yet"):
        open_tensors(tmp_path)


def test_a_damaged_checkpoint_of_a_run_is_told_as_such(run):
    (run / "checkpoints" / "3" / "state" / "_METADATA").write_text("{")
    with pytest.raises(RecordError, match="step 3 .* cannot be read: .*_METADATA is damaged"):
        open_tensors(run)
    assert only(run, step=1)[1]["embedding"] == [[0, 1], [2, 3], [4, 5]]


def test_a_checkpoint_that_loses_its_data_is_told_as_such(run):
    with open_tensors(run) as file:
        for data in (run / "checkpoints" / "3" / "state").rglob("d/*"):
            data.unlink()
        with pytest.raises(RecordError, match="step 3 .* cannot be read"):
            file.read("embedding")

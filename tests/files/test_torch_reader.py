"""Files of torch.save: weights alone are read, code in a pickle never runs."""

import os
import pickle
import zipfile

import numpy as np
import pytest

from glu_lab.errors import FileFormatError
from glu_lab.files import torch_reader
from glu_lab.files.tensors import open_tensors
from glu_lab.files.torch_reader import TorchFile

torch = pytest.importorskip("torch")


@pytest.fixture
def saved(tmp_path):
    files = []

    def save(content, **how):
        path = tmp_path / "pytorch_model.bin"
        torch.save(content, path, **how)
        files.append(TorchFile(path))
        return files[-1]

    yield save
    for file in files:
        file.close()


class Runs:
    """A pickle of this creates a file when it is loaded with its code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_every_type_is_read_bit_for_bit(saved):
    x = torch.randn(5, 7) * 50
    kinds = [k for k in torch_reader._DTYPES if hasattr(torch, k)]
    tensors = {kind: x.to(getattr(torch, kind)) for kind in kinds if kind != "float8_e8m0fnu"}
    file = saved(tensors)
    assert file.names() == tuple(tensors)
    for kind, tensor in tensors.items():
        info, read = file.info(kind), file.read(kind)
        assert (info.shape, info.dtype, info.encoding) == ((5, 7), read.dtype, kind)
        assert read.tobytes() == bytes(tensor.untyped_storage())
        assert not read.flags.writeable


def test_views_of_a_larger_storage_are_cut_from_it(saved):
    base = torch.arange(24.0).reshape(4, 6)
    file = saved({"t": base.T, "rows": base[1:3], "every other": base[:, ::2]})
    np.testing.assert_array_equal(file.read("t"), base.numpy().T)
    np.testing.assert_array_equal(file.read("rows"), base.numpy()[1:3])
    np.testing.assert_array_equal(file.read("every other"), base.numpy()[:, ::2])


def test_names_that_share_a_storage_are_told(saved):
    """Tied weights, and only these: two halves of one storage share nothing, equal ones neither."""
    embedding, packed = torch.randn(4, 3), torch.randn(6, 2)
    file = saved(
        {
            "head": embedding,
            "gate": packed[:3],
            "embedding": embedding,
            "up": packed[3:],
            "copy": embedding.clone(),
        }
    )
    assert file.aliases == (("head", "embedding"),)


def test_nested_containers_give_dotted_names_and_numbers_are_metadata(saved):
    content = {"model": {"ffn": [torch.ones(2), torch.zeros(3)]}, "iteration": 7, "tag": "x"}
    file = saved(content)
    assert file.names() == ("model.ffn.0", "model.ffn.1")
    assert file.metadata == {"iteration": 7, "tag": "x"}


def test_arrays_stay_good_while_the_mapping_is_renewed(saved, monkeypatch):
    monkeypatch.setattr(torch_reader, "_WINDOW", 0)
    tensors = {str(i): torch.full((3,), float(i)) for i in range(4)}
    file = saved(tensors)
    arrays = [file.read(name) for name in file]
    file.close()
    assert [array[0] for array in arrays] == [0, 1, 2, 3]
    with pytest.raises(FileFormatError, match="closed"):
        file.read("0")


def test_a_malicious_pickle_does_not_run(tmp_path):
    """As a value of a torch file, in the old format, and as a bare pickle."""
    mark = tmp_path / "ran"
    with open(tmp_path / "bare.bin", "wb") as file:
        pickle.dump(Runs(mark), file)
    torch.save({"w": torch.ones(2), "x": Runs(mark)}, tmp_path / "new.bin")
    torch.save({"x": Runs(mark)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    messages = {"bare.bin": "a pickle; code", "new.bin": "posix.mkdir", "old.bin": "before 1.6"}
    for name, message in messages.items():
        with pytest.raises(FileFormatError, match=message):
            open_tensors(tmp_path / name)
        assert not mark.exists()
    with pytest.raises(FileFormatError) as refusal:
        TorchFile(tmp_path / "new.bin")
    assert "weights_only" not in str(refusal.value)
    # It would have run.
    pickle.loads((tmp_path / "bare.bin").read_bytes())
    assert mark.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.nn.Linear(2, 2), "calls for torch.nn.modules.linear.Linear"),
        ({"w": torch.eye(3).to_sparse()}, "'w' .* is sparse_coo"),
        ({"w": torch.ones(2), "s": {1, 2}}, "cannot be read|holds a set at 's'"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "two values with the name 'a.b'"),
        ({"w": torch.ones(2, dtype=torch.complex128)}, "the type complex128"),
    ],
)
def test_what_is_no_plain_weight_is_refused_by_name(saved, content, message):
    with pytest.raises(FileFormatError, match=message):
        saved(content)


def test_a_damaged_archive_is_refused(saved, tmp_path):
    saved({"w": torch.arange(1000.0)})
    path = tmp_path / "pytorch_model.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(FileFormatError, match="damaged archive"):
        open_tensors(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
    with pytest.raises(FileFormatError, match="compressed entry"):
        open_tensors(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", b"x")
    with pytest.raises(FileFormatError, match=r"none of torch\.save"):
        open_tensors(path)


def test_elements_of_no_tensor_are_noticed(saved, tmp_path):
    saved({"w": torch.arange(10.0)})
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{folder}/data/7", b"x" * 12)
    with pytest.raises(FileFormatError, match="stores 52 bytes of elements, .* from 40"):
        open_tensors(path)


def test_without_torch_the_message_says_what_to_install(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(2)}, tmp_path / "model.bin")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(FileFormatError, match=r"needs torch.*glu_lab\[reference\]"):
        open_tensors(tmp_path / "model.bin")

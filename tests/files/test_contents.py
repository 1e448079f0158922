"""Values that are not finite, and digests."""

import hashlib

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from glu_lab.errors import FileFormatError
from glu_lab.files import contents
from glu_lab.files.contents import NonFinite, file_sha256, non_finite, tensor_sha256
from glu_lab.files.copy_rate import measure
from glu_lab.files.element_types import DTYPES, is_floating
from glu_lab.files.safetensors_writer import described, write_safetensors
from glu_lab.files.tensors import open_tensors


def test_values_that_are_not_finite_are_counted_by_tensor(tmp_path, monkeypatch):
    """In every floating type, in any piece; whole numbers and finite tensors are not named."""
    monkeypatch.setattr(contents, "_PIECE", 4)
    x = np.zeros((3, 5))
    x[0, 1], x[2, 4], x[1, 0], x[2, 0] = np.nan, np.nan, np.inf, -np.inf
    arrays = {
        kind: x.astype(dtype)
        for kind, dtype in DTYPES.items()
        if is_floating(dtype) and kind not in ("F8_E8M0", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
    }
    # These types have NaN alone.
    for kind in ("F8_E8M0", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        arrays[kind] = np.where(np.isfinite(x), 1, np.nan).astype(DTYPES[kind])
    arrays |= {"fine": np.ones(9, np.float32), "int": np.full(4, 0x7FC00000, np.uint32)}
    write_safetensors(
        tmp_path / "x", [(described(n, a.shape, a.dtype), lambda a=a: a) for n, a in arrays.items()]
    )
    with open_tensors(tmp_path / "x") as file:
        found = non_finite(file)
    assert set(found) == set(arrays) - {"fine", "int"}
    for kind in ("F64", "F32", "F16", "BF16", "C64", "F8_E5M2"):
        assert found[kind] == NonFinite(nan=2, infinite=2, size=15)
    for kind in ("F8_E8M0", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        assert found[kind] == NonFinite(nan=4, infinite=0, size=15)


def test_the_digest_of_a_tensor_is_of_its_elements_in_c_order(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    write_safetensors(tmp_path / "x", [(described("a", (2, 3), array.dtype), lambda: array)])
    with open_tensors(tmp_path / "x") as file:
        assert tensor_sha256(file, "a") == hashlib.sha256(array.tobytes()).hexdigest()


def test_the_digest_of_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert file_sha256(tmp_path / "x") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    with pytest.raises(FileFormatError, match="cannot be read"):
        file_sha256(tmp_path / "none")


def test_the_copy_rate_is_measured_on_the_same_bytes(tmp_path):
    rate = measure(tmp_path, nbytes=1 << 16, tensors=4, rounds=3)
    assert rate.nbytes > 1 << 16 and len(rate.rename) == len(rate.copy) == 3
    assert rate.ratio == sorted(rate.copy)[1] / sorted(rate.rename)[1]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_package_has_no_bad_values(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "x")
    with open_tensors(tmp_path / "x") as file:
        assert non_finite(file) == {}

"""Which device and which process holds what."""

import jax
import numpy as np
import pytest

from glu_lab.errors import SpecError
from glu_lab.sharding.mesh import (
    batch_sharding,
    make_mesh,
    process_rows,
    put_rows,
    put_whole,
    replicated,
)
from glu_lab.spec.sharding import MESH_AXES, Rules


def test_the_mesh_here():
    mesh = make_mesh("data=2,model=-1")
    assert mesh.axis_names == MESH_AXES
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "model": 4}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Explicit}
    assert replicated(mesh).is_fully_replicated
    with pytest.raises(SpecError, match="needs 16 devices; there are 8"):
        make_mesh("model=16")


def test_rows_are_split_over_data_and_fsdp_and_repeated_over_model():
    mesh = make_mesh("data=2,fsdp=2,model=2")
    rows = np.arange(8, dtype=np.int32)[:, None] * np.ones((1, 3), np.int32)
    for put in (
        lambda batch, where: put_rows(batch, where, 8),
        put_whole,
    ):
        array = put({"rows": rows}, batch_sharding(mesh, Rules()))["rows"]
        np.testing.assert_array_equal(array, rows)
        for shard in array.addressable_shards:
            d, f, _ = np.argwhere(mesh.devices == shard.device)[0]
            first = 4 * d + 2 * f
            np.testing.assert_array_equal(shard.data, rows[first : first + 2])


class FakeDevice:
    def __init__(self, process_index):
        self.process_index = process_index


class FakeSharding:
    """Rows by device, as `NamedSharding.devices_indices_map` gives them."""

    def __init__(self, processes, slices):
        self.map = {
            FakeDevice(process): (slice(start, stop),)
            for process, (start, stop) in zip(processes, slices, strict=True)
        }

    def devices_indices_map(self, shape):
        return self.map


@pytest.mark.parametrize(
    ("processes", "slices", "expected"),
    [
        # Two processes of two devices, data=4: halves.
        ((0, 0, 1, 1), ((0, 2), (2, 4), (4, 6), (6, 8)), (0, 2)),
        # data=2, model=2 within a process: halves.
        ((0, 0, 1, 1), ((0, 4), (0, 4), (4, 8), (4, 8)), (0, 2)),
        # model=4 over both processes: every process reads all.
        ((0, 0, 1, 1), ((0, 8),) * 4, (0, 1)),
        # Four processes of one device, data=2, model=2: pairs read the same half.
        ((0, 1, 2, 3), ((0, 4), (0, 4), (4, 8), (4, 8)), (0, 2)),
    ],
)
def test_which_rows_a_process_reads(processes, slices, expected, monkeypatch):
    sharding = FakeSharding(processes, slices)
    assert process_rows(sharding, 8) == expected
    # The last process: of pairs that read the same rows, both have one index.
    monkeypatch.setattr(jax, "process_index", lambda: processes[-1])
    index, count = process_rows(sharding, 8)
    assert count == expected[1] and index == count - 1


@pytest.mark.parametrize("processes", [(0, 1, 0, 1), (0, 1, 1, 0)])
def test_rows_that_are_no_group_are_refused(processes):
    with pytest.raises(SpecError, match="not one group in a row"):
        process_rows(FakeSharding(processes, ((0, 2), (2, 4), (4, 6), (6, 8))), 8)

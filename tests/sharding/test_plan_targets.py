"""What stands in for devices that are not there."""

import importlib.util

import jax
import pytest

from glu_lab.errors import SpecError
from glu_lab.sharding import targets
from glu_lab.sharding.targets import Target, parse_target, stand_in
from glu_lab.spec.sharding import Rules


def test_targets_are_read():
    assert parse_target("cpu") == Target("cpu", "cpu")
    assert parse_target("tpu:v5e:2x4") == Target("tpu:v5e:2x4", "tpu", "v5e:2x4")
    assert parse_target("cpu").compiles and parse_target("tpu:v4:2x2x2").compiles
    assert not parse_target("cuda").compiles


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu", "names its chips, as in 'tpu:v5e:2x4'"),
        ("tpu:", "names its chips"),
        ("cuda:8", "cuda has no topologies; write 'cuda'"),
        ("cpu:", "cpu has no topologies"),
        ("gpu", "write 'cuda'"),
        ("tup:v5e:2x4", "did you mean 'tpu:v5e:2x4'"),
        ("", "unknown target ''"),
    ],
)
def test_other_targets_are_refused(text, message):
    with pytest.raises(SpecError, match=message):
        parse_target(text)


def test_without_libtpu_the_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'glu_lab\[tpu\]'.*package libtpu"):
        targets.topology_devices(parse_target("tpu:v5e:2x4"))


def test_a_process_that_has_started_jax_with_fewer_devices_says_so():
    assert jax.device_count() == 1
    with pytest.raises(SpecError, match="needs 5 virtual devices, and JAX has started.* with 1"):
        targets.use_virtual_devices(5)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((8, 1, 4), (8, 1, 4)),  # It fits.
        ((64, 1, 4), (8, 1, 4)),
        ((12, 2, 4), (4, 2, 4)),  # 4 divides 12, and 4 × 2 × 4 fits into 32.
        ((66, 1, 8), (3, 1, 8)),
        ((10, 1, 16), (2, 1, 16)),
        ((7, 1, 8), None),  # Only 1 would do, and then there would be no sum over 'data'.
        ((2, 32, 1), None),
        ((1, 16, 4), None),
    ],
)
def test_the_data_axis_alone_shrinks_and_stays_an_axis(sizes, expected):
    planned = dict(zip(("data", "fsdp", "model"), sizes, strict=True))
    found = stand_in(planned, Rules(), 32)
    assert (found and tuple(found.values())) == expected


def test_rules_that_split_parameters_over_data_have_no_stand_in():
    rules = Rules(embed=("data", "fsdp"))
    sizes = {"data": 64, "fsdp": 1, "model": 4}
    assert stand_in(sizes, rules, 32) is None
    assert stand_in(sizes, rules, 256) == sizes

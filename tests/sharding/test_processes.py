"""What several processes tell each other, with the other processes played by the test."""

import json

import jax
import pytest

from glu_lab.errors import LostProcessError, RecordError, SpecError
from glu_lab.sharding import processes


@pytest.fixture
def follower(monkeypatch):
    """This process as the second of two; `tell` sets what the first one broadcasts."""
    told = {}
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(processes, "_broadcast", lambda own: json.dumps(told).encode())
    return told.update


def refuse():
    raise SpecError("d_ff = 3 does not divide")


def test_a_follower_has_the_leaders_result_and_does_not_do_the_work(follower):
    follower({"result": [1, None]})
    assert processes.from_leader(refuse) == [1, None]


def test_a_follower_ends_with_the_leaders_error(follower):
    follower({"error": "/shared/run belongs to another run"})
    with pytest.raises(RecordError, match="process 0 says: /shared/run belongs to another run"):
        processes.from_leader(lambda: None)


def test_the_leader_tells_its_error_before_it_raises_it(monkeypatch):
    told = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes, "_broadcast", lambda own: told.append(own) or own)
    with pytest.raises(SpecError, match="does not divide"):
        processes.from_leader(refuse)
    assert json.loads(told[0]) == {"error": "d_ff = 3 does not divide"}


def test_one_process_asks_nobody():
    assert processes.from_leader(lambda: 7) == 7
    assert processes.any_process(True) and not processes.any_process(False)


def test_a_failed_collective_says_how_to_go_on_where_there_are_others(monkeypatch):
    error = jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: reset by peer\nstack")
    with pytest.raises(jax.errors.JaxRuntimeError), processes.noticing_loss(lambda: "never"):
        raise error
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(LostProcessError) as lost, processes.noticing_loss(lambda: "Go on so."):
        raise error
    assert "reset by peer). Go on so." in str(lost.value) and "stack" not in str(lost.value)

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.data import load
from glu_lab.data.pipeline import TrainBatches
from glu_lab.errors import DataError
from tests.data.conftest import finish_python, small, start_python, write_corpus


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_equal(a, b)


def test_batches_are_as_specified(dataset):
    batch = next(dataset.train_iterator(seed=0, batch_size=8))
    spec = dataset.batch_spec(8)
    assert {name: (a.shape, a.dtype) for name, a in batch.items()} == spec
    assert set(np.unique(batch["weights"])) <= {0, 1}


def test_same_seed_same_batches_other_seed_others(dataset):
    first = take(dataset.train_iterator(seed=5, batch_size=8), 12)
    assert_equal(first, take(dataset.train_iterator(seed=5, batch_size=8), 12))
    other = take(dataset.train_iterator(seed=6, batch_size=8), 12)
    assert not any((a["targets"] == b["targets"]).all() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("batch_size", [4, 8, 12])
@pytest.mark.parametrize("processes", [2, 4])
def test_the_global_batch_does_not_depend_on_the_number_of_processes(
    dataset, batch_size, processes
):
    whole = take(dataset.train_iterator(seed=1, batch_size=batch_size), 15)
    locals_ = [
        take(
            dataset.train_iterator(
                seed=1, batch_size=batch_size, process_index=p, process_count=processes
            ),
            15,
        )
        for p in range(processes)
    ]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*locals_, strict=True)
    ]
    assert_equal(whole, joined)


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16]), st.sampled_from([1, 2, 4, 6, 8]))
def test_rows_take_every_window_of_every_shard_in_turn(batch_size, shards):
    # Places are arithmetic: neither streams nor rows are looked at.
    anything: Any = [None] * shards
    source = TrainBatches(anything, anything, seed=0, batch_size=batch_size)
    steps = 2 * shards
    places = [source.place(step, row) for step in range(steps) for row in range(batch_size)]
    assert len(set(places)) == len(places)
    windows = [[w for s, w in places if s == shard] for shard in range(shards)]
    assert all(sorted(w) == list(range(steps * batch_size // shards)) for w in windows)
    for processes in (p for p in (2, 3, 4, 8) if batch_size % p == 0 == shards % p):
        for step in range(steps):
            owners = [source.place(step, r)[0] * processes // shards for r in range(batch_size)]
            assert owners == [r * processes // batch_size for r in range(batch_size)]


RESUME = """
import json, sys
from pathlib import Path
import numpy as np
from glu_lab.data import load
from glu_lab.spec.codec import decode
from glu_lab.spec.experiment import Data

spec, cache, state, processes, out = json.loads(sys.argv[1])
data = load(decode(Data, spec), cache_dir=Path(cache))
arrays = {}
for p in range(processes):
    it = data.train_iterator(seed=2, batch_size=6, process_index=p, process_count=processes)
    it.set_state(state)
    for step in range(6):
        arrays |= {f"{p}.{step}.{name}": array for name, array in next(it).items()}
np.savez(out, **arrays)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_fresh_process_resumes_in_the_middle_of_a_packing_window(
    dataset, cache, tmp_path, processes
):
    iterator = dataset.train_iterator(seed=2, batch_size=6)
    take(iterator, 7)
    state = json.loads(json.dumps(iterator.get_state()))
    # Step 7 starts inside documents: a loader that repacked from a document's start would differ.
    going_on = take(iterator, 6)
    out = str(tmp_path / "resumed.npz")
    message = [dataclasses.asdict(dataset.spec), str(cache), state, processes, out]
    finish_python(start_python(RESUME, json.dumps(message)))
    with np.load(out) as arrays:
        file = dict(arrays)
    resumed = [
        {
            name: np.concatenate([file[f"{p}.{step}.{name}"] for p in range(processes)])
            for name in going_on[0]
        }
        for step in range(6)
    ]
    assert_equal(going_on, resumed)


def test_the_state_counts_what_was_taken_not_what_was_prefetched(dataset):
    iterator = dataset.train_iterator(seed=0, batch_size=4)
    take(iterator, 3)
    state = iterator.get_state()
    going_on = take(iterator, 5)
    iterator.set_state(state)
    assert_equal(going_on, take(iterator, 5))


def test_a_state_of_other_batches_is_refused_with_both_values(
    dataset, corpus_file, cache, tmp_path
):
    iterator = dataset.train_iterator(seed=0, batch_size=4)
    take(iterator, 2)
    state = json.loads(json.dumps(iterator.get_state()))

    write_corpus(tmp_path / "other.jsonl", seed=1)
    spec = dataset.spec
    changed = {
        "fingerprint": {"path": str(tmp_path / "other.jsonl")},
        "input_length": {"input_length": spec.input_length + 8},
        "logical_shards": {"logical_shards": 2},
    }
    if spec.objective == "span_corruption":
        changed["noise_density"] = {"noise_density": 0.3}
    others = {
        "seed: 0 → 1": dataset.train_iterator(seed=1, batch_size=4),
        "batch_size: 4 → 8": dataset.train_iterator(seed=0, batch_size=8),
        **{
            f"{name}: ": load(dataclasses.replace(spec, **fields), cache_dir=cache).train_iterator(
                seed=0, batch_size=4
            )
            for name, fields in changed.items()
        },
    }
    for said, other in others.items():
        before = other.get_state()
        with pytest.raises(DataError, match="state of another training iterator") as caught:
            other.set_state(state)
        assert said in str(caught.value)
        assert other.get_state() == before
    # Another number of processes is no difference.
    half = dataset.train_iterator(seed=0, batch_size=4, process_index=1, process_count=2)
    half.set_state(state)
    np.testing.assert_equal(next(half)["targets"], next(iterator)["targets"][2:])
    for bad in ({"next_index": 2}, {}, None, 3):
        with pytest.raises(DataError, match="is no state of a training iterator"):
            iterator.set_state(bad)


def test_the_source_is_named_by_content_not_by_address(dataset, corpus_file, cache):
    again = load(dataset.spec, cache_dir=cache)
    names = [str(d.train_iterator(seed=0, batch_size=4)) for d in (dataset, again)]
    assert names[0] == names[1] and " at 0x" not in names[0]


def test_decoder_reads_the_targets_shifted_right(corpus_file, cache):
    data = load(small(corpus_file), cache_dir=cache)
    batch = next(data.train_iterator(seed=0, batch_size=8))
    assert (batch["decoder_tokens"][:, 0] == 0).all()
    assert (batch["decoder_tokens"][:, 1:] == batch["targets"][:, :-1]).all()
    assert (batch["encoder_tokens"][:, -1] == 1).all() and (batch["targets"][:, -1] == 1).all()
    assert (batch["targets"][:, 0] == data.tokenizer.sentinel(0)).all()
    assert (batch["encoder_segments"] == 1).all() and (batch["weights"] == 1).all()


def test_a_longer_target_is_padded_with_weight_zero(corpus_file, cache):
    plain = load(small(corpus_file), cache_dir=cache)
    room = plain.target_length + 3
    padded = load(small(corpus_file, target_length=room), cache_dir=cache)
    a, b = (next(d.train_iterator(seed=0, batch_size=4)) for d in (plain, padded))
    assert b["targets"].shape == (4, room)
    for name in ("targets", "weights", "decoder_tokens"):
        assert (b[name][:, :-3] == a[name]).all() and (b[name][:, -3:] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 6, "process_count": 4}, "do not divide batch_size=6.*such as 8"),
        ({"batch_size": 6, "process_count": 3}, r"do not divide data\.logical_shards=4"),
        ({"batch_size": 0}, "batch_size must be ≥ 1"),
        ({"batch_size": 4, "process_index": 2, "process_count": 2}, "is not among"),
        ({"batch_size": 4, "seed": -1}, "seed must be"),
    ],
)
def test_processes_that_do_not_fit_are_refused(dataset, arguments, message):
    with pytest.raises(DataError, match=message):
        dataset.train_iterator(**{"seed": 0, **arguments})

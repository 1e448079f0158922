"""Checkpoints: what is kept, what a full disk does, and what reading leaves alone."""

import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from glu_lab.errors import RecordError
from glu_lab.files.checkpoints import Checkpoints
from tests.small_disk import mounted

LOOP = {"iterator": {"next_index": 7}, "counters": {"nats": 0.1 + 0.2}, "telemetry": None}


def state(seed=0, size=8):
    rng = np.random.default_rng(seed)
    return {
        "params": {"w": jnp.asarray(rng.normal(size=size), jnp.float32)},
        "optimizer": {"1": (jnp.asarray(rng.normal(size=3), jnp.bfloat16), jnp.int32(4))},
        "step": jnp.int32(seed),
        "rng": jax.random.key(seed),
        "finite": jnp.bool_(True),
    }


def abstract(example):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), example)


def bits(tree):
    plain = jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        tree,
    )
    return [(np.asarray(x).dtype, np.asarray(x).tobytes()) for x in jax.tree.leaves(plain)]


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints", keep=2)
    yield opened
    opened.close()


def test_what_is_loaded_is_what_was_saved(checkpoints):
    saved = state(3)
    checkpoints.save(3, saved, LOOP)
    step, loaded, loop = checkpoints.load(abstract(saved))
    assert step == 3
    assert bits(loaded) == bits(saved)
    assert loaded["rng"].dtype == saved["rng"].dtype
    assert loop == LOOP
    # The key goes on drawing the same numbers.
    assert jax.random.normal(loaded["rng"]) == jax.random.normal(saved["rng"])


def test_the_newest_and_the_best_are_kept(checkpoints):
    losses = {1: 5.0, 2: 3.0, 3: 4.0, 4: None, 5: 6.0, 6: None, 7: 3.5}
    for step, loss in losses.items():
        checkpoints.save(step, state(step), LOOP, loss)
    # Two newest, and step 2 with the lowest loss.
    assert checkpoints.steps() == [2, 6, 7]
    assert checkpoints.latest() == 7
    checkpoints.save(8, state(8), LOOP, 2.0)
    assert checkpoints.steps() == [7, 8]
    checkpoints.save(9, state(9), LOOP)
    checkpoints.save(10, state(10), LOOP)
    assert checkpoints.steps() == [8, 9, 10]


def test_the_best_is_still_known_after_reopening(tmp_path):
    first = Checkpoints(tmp_path / "c", keep=1)
    first.save(1, state(1), LOOP, 1.0)
    first.save(2, state(2), LOOP, 9.0)
    first.close()
    second = Checkpoints(tmp_path / "c", keep=1)
    second.save(3, state(3), LOOP, 8.0)
    assert second.steps() == [1, 3]
    second.close()


def test_an_older_step_can_be_asked_for(checkpoints):
    for step in (1, 2):
        checkpoints.save(step, state(step), LOOP)
    step, loaded, _ = checkpoints.load(abstract(state()), 1)
    assert step == 1 and bits(loaded) == bits(state(1))


def test_a_step_that_is_not_there_is_refused_with_those_that_are(checkpoints):
    with pytest.raises(RecordError, match="there is no checkpoint in .* yet"):
        checkpoints.load(abstract(state()))
    checkpoints.save(4, state(4), LOOP)
    with pytest.raises(RecordError, match="no checkpoint of step 5 in .*; there are \\[4\\]"):
        checkpoints.load(abstract(state()), 5)


def test_another_shape_is_refused(checkpoints):
    checkpoints.save(1, state(1), LOOP)
    with pytest.raises(RecordError, match=r"shape: \(9,\) is not compatible .* \(8,\)") as caught:
        checkpoints.load(abstract(state(size=9)))
    assert len(str(caught.value)) < 300


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "document cut": ("_CHECKPOINT_METADATA", cut, "2/_CHECKPOINT_METADATA is damaged"),
    "document gone": ("_CHECKPOINT_METADATA", Path.unlink, "2/_CHECKPOINT_METADATA is missing"),
    "tree cut": ("state/_METADATA", cut, "2/state/_METADATA is damaged"),
    "arrays cut": ("state/array_metadatas/process_0", cut, "array_metadatas/process_0 is damaged"),
    "manifest cut": ("state/manifest.ocdbt", cut, "2/state/manifest.ocdbt: Error decoding"),
    "manifest gone": ("state/manifest.ocdbt", Path.unlink, "2/state/manifest.ocdbt is missing"),
    "data gone": ("state/ocdbt.process_0/d/*", Path.unlink, "2/state"),
    "index cut": ("state/d/*", cut, "2/state/d/"),
    "state gone": ("state", shutil.rmtree, "2/state/_METADATA is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_in_one_line_with_the_file_and_what_else_there_is(
    damage, checkpoints, capfd, caplog
):
    place, spoil, said = DAMAGES[damage]
    for step in (1, 2):
        checkpoints.save(step, noise(step), LOOP)
    files = list((checkpoints.directory / "2").glob(place))
    assert files
    for file in files:
        spoil(file)
    with pytest.raises(RecordError) as caught:
        checkpoints.load(abstract(noise(0)))
    text = str(caught.value)
    assert said in text
    assert "\n" not in text and len(text) < 500 + 3 * len(str(checkpoints.directory))
    assert "<class" not in text and "tensorstore_spec" not in text
    assert f"of step 1: ask for one of these, or remove {checkpoints.directory / '2'}" in text
    # Nothing of the libraries below on the terminal; the chain is there for whoever asks.
    assert capfd.readouterr() == ("", "") and not caplog.records
    assert caught.value.__cause__ is not None
    assert bits(checkpoints.load(abstract(noise(0)), 1)[1]) == bits(noise(1))


def test_a_damaged_loss_names_the_checkpoint_to_remove(tmp_path):
    first = Checkpoints(tmp_path / "c", keep=2)
    for step in (1, 2):
        first.save(step, state(step), LOOP, 3.0)
    first.close()
    cut(tmp_path / "c" / "2" / "metrics" / "metrics")
    with pytest.raises(RecordError, match=r"2/metrics/metrics is damaged.* Remove .*/c/2 to do"):
        Checkpoints(tmp_path / "c", 2, "read")
    shutil.rmtree(tmp_path / "c" / "2")
    again = Checkpoints(tmp_path / "c", 2, "read")
    assert again.steps() == [1]
    again.close()


def test_a_number_that_json_does_not_have_is_refused_before_anything_is_written(checkpoints):
    with pytest.raises(ValueError):
        checkpoints.save(1, state(1), {**LOOP, "bad": float("nan")})
    assert checkpoints.steps() == []


def test_reading_changes_nothing_in_the_folder(tmp_path):
    """Another process may be in the middle of a save."""
    writer = Checkpoints(tmp_path / "c", keep=1)
    writer.save(1, state(1), LOOP)
    half = tmp_path / "c" / "2.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "c" / "1", half)
    reader = Checkpoints(tmp_path / "c", 1, "read")
    assert reader.steps() == [1]
    assert reader.load(abstract(state()))[0] == 1
    reader.close()
    assert half.is_dir()
    writer.close()
    # The next session that writes clears what a kill left.
    again = Checkpoints(tmp_path / "c", keep=1)
    assert again.steps() == [1]
    again.save(3, state(3), LOOP)
    again.close()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["3"]


def test_reading_makes_no_folder(tmp_path):
    with pytest.raises(RecordError, match="no checkpoints"):
        Checkpoints(tmp_path / "none", 1, "read")
    assert not (tmp_path / "none").exists()


def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be opened"):
        Checkpoints(tmp_path / "file" / "checkpoints", keep=1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB; needs the right to mount one."""
    with mounted(tmp_path / "disk", "2m") as place:
        yield place


def noise(seed):
    """900 kB that no compression makes smaller."""
    return state(seed, size=225_000)


def test_a_full_disk_is_told_and_the_last_checkpoint_stays_good(small_disk, capfd, caplog):
    checkpoints = Checkpoints(small_disk / "c", keep=5)
    checkpoints.save(1, noise(1), LOOP)
    (small_disk / "ballast").write_bytes(bytes(600_000))
    with pytest.raises(RecordError, match=r"step 2 was not written.* \(step 1\) is") as told:
        checkpoints.save(2, noise(2), LOOP)
    assert "no space left on device; free some" in str(told.value)
    assert checkpoints.latest() == 1
    checkpoints.close()
    # One line, where Orbax would write a traceback for each of its threads.
    assert "\n" not in str(told.value)
    assert capfd.readouterr() == ("", "") and not caplog.records
    # A new session finds the good one, and goes on once there is room.
    (small_disk / "ballast").unlink()
    again = Checkpoints(small_disk / "c", keep=1)
    step, loaded, _ = again.load(abstract(noise(0)))
    assert step == 1 and bits(loaded) == bits(noise(1))
    again.save(2, state(2), LOOP)
    assert again.steps() == [2]
    again.close()


def test_a_write_that_the_system_refuses_is_told(tmp_path):
    """A limit on file sizes stands for a quota; no rights are needed."""
    checkpoints = Checkpoints(tmp_path / "c", keep=5)
    checkpoints.save(1, noise(1), LOOP)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RecordError, match=r"step 2 was not written to .*: .*too large"):
            checkpoints.save(2, noise(2), LOOP)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    checkpoints.close()
    again = Checkpoints(tmp_path / "c", keep=5)
    step, loaded, _ = again.load(abstract(noise(0)))
    assert step == 1 and bits(loaded) == bits(noise(1))
    again.close()


def test_bytes_that_changed_on_the_disk_are_noticed(checkpoints):
    """Random values are stored as they are, so that the file below notices nothing."""
    for step in (1, 2):
        checkpoints.save(step, noise(step), LOOP)
    (file,) = (checkpoints.directory / "2").glob("state/ocdbt.process_0/d/*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(
        RecordError, match="params/w came back with other bytes than were"
    ) as caught:
        checkpoints.load(abstract(noise(0)))
    assert "of step 1: ask for one of these" in str(caught.value)
    assert bits(checkpoints.load(abstract(noise(0)), 1)[1]) == bits(noise(1))


def test_every_array_has_its_hash_and_the_hash_is_of_its_bytes(checkpoints):
    import hashlib

    saved = state(5)
    checkpoints.save(5, saved, LOOP)
    recorded = checkpoints.hashes(5)
    assert set(recorded) == {
        "params/w", "optimizer/1/0", "optimizer/1/1", "step", "rng", "finite",
    }  # fmt: skip
    assert recorded["params/w"] == hashlib.sha256(np.asarray(saved["params"]["w"])).hexdigest()
    words = np.asarray(jax.random.key_data(saved["rng"]))
    assert recorded["rng"] == hashlib.sha256(words).hexdigest()

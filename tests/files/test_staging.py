"""Targets that are whole or not there, and what is in the way of one."""

import fcntl
import os
import subprocess
import sys

import pytest

from glu_lab.errors import RecordError
from glu_lab.files.staging import check_target, staged_file, staged_folder


def test_a_file_appears_at_the_end(tmp_path):
    path = tmp_path / "new" / "x"
    with staged_file(path) as descriptor:
        os.write(descriptor, b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content" and os.listdir(path.parent) == ["x"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_appears_at_the_end_and_may_replace_an_empty_one(tmp_path):
    (tmp_path / "x").mkdir()
    with staged_folder(tmp_path / "x") as folder:
        (folder / "a").write_text("1")
        assert os.listdir(tmp_path / "x") == []
    assert os.listdir(tmp_path / "x") == ["a"] and os.listdir(tmp_path) == ["x"]


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "theirs").write_text("")
    with pytest.raises(RecordError, match="exists"), staged_file(tmp_path / "x"):
        (tmp_path / "x").write_text("theirs")
    with pytest.raises(RecordError, match="exists"), staged_folder(tmp_path / "y"):
        (tmp_path / "ready").rename(tmp_path / "y")
    assert (tmp_path / "x").read_text() == "theirs"
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_only_what_a_conversion_wrote_is_replaced_as_a_folder(tmp_path):
    folder = tmp_path / "model"
    (folder / "mp_rank_00").mkdir(parents=True)
    (folder / "mp_rank_00" / "model.safetensors").write_text("")
    (folder / "manifest.json").write_text("{}")
    with staged_folder(folder, overwrite=True) as new:
        (new / "a").write_text("")
    assert os.listdir(folder) == ["a"]
    with (
        pytest.raises(RecordError, match="also holds a, which no conversion wrote"),
        staged_folder(folder, overwrite=True),
    ):
        raise AssertionError("not reached")
    (folder / "a").unlink()
    (folder / "link.json").symlink_to("/etc/hostname")
    with pytest.raises(RecordError, match=r"link\.json"):
        check_target(folder, overwrite=True)


def test_a_failure_keeps_the_folder_that_was_to_be_replaced(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old.json").write_text("{}")

    def interrupted():
        with staged_folder(folder, overwrite=True) as new:
            (new / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(folder) == ["old.json"] and os.listdir(tmp_path) == ["model"]


def test_a_source_is_never_a_target(tmp_path):
    source, folder = tmp_path / "model.safetensors", tmp_path / "model"
    source.write_text("")
    folder.mkdir()
    for path, origin in [
        (source, source),
        (tmp_path / "." / "model" / ".." / "model.safetensors", source),
        (folder / "new", folder),
        (folder, folder),
        (tmp_path, source),
    ]:
        with pytest.raises(RecordError, match="overwrite its own source"):
            check_target(path, overwrite=True, sources=[origin])
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(RecordError, match="overwrite its own source"):
        check_target(tmp_path / "link", overwrite=True, sources=[source])
    check_target(tmp_path / "model2", sources=[source, folder])


def test_a_link_is_no_target(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="is a link"):
        check_target(tmp_path / "link", overwrite=True)


def test_a_folder_and_a_file_are_not_taken_for_each_other(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RecordError, match="is a file; a folder"),
        staged_folder(tmp_path / "file", overwrite=True),
    ):
        pass
    with (
        pytest.raises(RecordError, match="is a folder; a file"),
        staged_file(tmp_path, overwrite=True),
    ):
        pass
    with pytest.raises(RecordError, match="was not written"), staged_file(tmp_path / "file" / "x"):
        pass


_KILLED = """
import os, sys
from pathlib import Path
from glu_lab.files.staging import staged_file, staged_folder
with staged_file(Path(sys.argv[1])) as file, staged_folder(Path(sys.argv[2])) as folder:
    os.write(file, b"half")
    (folder / "half").write_text("")
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_is_cleared_by_the_next(tmp_path):
    one, two = tmp_path / "x", tmp_path / "y[1]"
    subprocess.run([sys.executable, "-c", _KILLED, str(one), str(two)], check=False)
    assert len(os.listdir(tmp_path)) == 2 and not one.exists() and not two.exists()
    with staged_file(one), staged_folder(two):
        pass
    assert sorted(os.listdir(tmp_path)) == ["x", "y[1]"]


def test_what_a_living_writer_writes_is_left_alone(tmp_path):
    theirs = tmp_path / ".x.123.tmp"
    with open(theirs, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with staged_file(tmp_path / "x"):
            pass
        assert theirs.exists()
    for unrelated in (".x.notes.tmp", ".xy.1.tmp"):
        (tmp_path / unrelated).write_text("")
    with staged_file(tmp_path / "x", overwrite=True):
        pass
    assert sorted(os.listdir(tmp_path)) == [".x.notes.tmp", ".xy.1.tmp", "x"]

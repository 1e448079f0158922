"""Atomic writes: whole or not at all."""

import errno
import json
import os

import pytest

from glu_lab.errors import RecordError
from glu_lab.files.atomic import write_bytes, write_json, write_text


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "new folder" / "a.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": [2, None, "µ"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"x": [2, None, "µ"]}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_full_disk_keeps_the_old_file_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_text(path, "old")

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RecordError, match=r"summary\.json was not written: no space left"):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1, 2}}])
def test_what_json_cannot_say_is_refused_before_the_write(tmp_path, value):
    path = tmp_path / "a.json"
    with pytest.raises(RecordError, match="null"):
        write_json(path, {"x": value})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"file/a\.json was not written"):
        write_json(tmp_path / "file" / "a.json", {})

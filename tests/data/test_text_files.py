import errno
import gzip
import json
import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.data.text_files import find_files, read_documents
from glu_lab.errors import DataError

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
TEXT = st.text(st.characters(codec="utf-8"))


def documents(path):
    return [text for file in find_files(str(path)) for text in read_documents(file)]


@pytest.mark.parametrize("packed", PACK)
def test_txt_is_one_document_byte_for_byte(tmp_path, packed):
    file = tmp_path / f"a.txt{packed}"
    file.write_bytes(PACK[packed]("eins\r\nzwei é\n\n ".encode()))
    assert documents(file) == ["eins\r\nzwei é\n\n "]


@pytest.mark.parametrize("packed", PACK)
def test_jsonl_is_one_document_a_line(tmp_path, packed):
    lines = '{"text": "a\\nb", "url": 1}\n\n{"text":\r"\u2028 \\r"}\r\n{"text": ""}'
    file = tmp_path / f"a.jsonl{packed}"
    file.write_bytes(PACK[packed](lines.encode()))
    assert documents(file) == ["a\nb", "\u2028 \r", ""]


def test_several_compressed_frames_are_one_file(tmp_path):
    for packed in (".gz", ".zst"):
        file = tmp_path / f"a.txt{packed}"
        file.write_bytes(PACK[packed](b"one ") + PACK[packed](b"two"))
        assert documents(file) == ["one two"]


@given(st.lists(TEXT), st.booleans())
def test_jsonl_brings_back_any_text(tmp_path_factory, texts, ascii_only):
    file = tmp_path_factory.mktemp("any") / "a.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=ascii_only) for text in texts]
    file.write_bytes("\n".join(lines).encode())
    assert list(read_documents(file)) == texts


def test_folder_and_glob_go_to_any_depth(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    for name in ("b.txt", "x/a.jsonl", "x/y/c.txt.gz", "x/README.md"):
        (tmp_path / name).write_bytes(b"")
    names = [str(file.relative_to(tmp_path)) for file in find_files(str(tmp_path))]
    assert names == ["b.txt", "x/a.jsonl", "x/y/c.txt.gz"]
    assert [f.name for f in find_files(f"{tmp_path}/**/*.txt")] == ["b.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok \xe9t\xe9", r"a\.txt: not UTF-8 at byte offset 3 \(byte 0xe9\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"a\.jsonl: not UTF-8 at byte offset 24"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": \n',
            r"a\.jsonl:2: not a JSON line: expecting value at character 10; expected",
        ),
        (
            "a.jsonl",
            b'\xef\xbb\xbf{"text": "a"}\n',
            r"a\.jsonl:1: .* a byte order mark",
        ),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl:1: .*too many deep"),
        ("a.txt", "text".encode("utf-16"), r"0xff, as UTF-16 begins\).*iconv -f utf-16 -t utf-8"),
        ("a.jsonl", b'{"body": "a"}\n', r"a\.jsonl:1: expected .*\"text\", got keys \['body'\]"),
        ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl:1: expected"),
        ("a.jsonl", b'["text"]\n', r"a\.jsonl:1: expected .* got list"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: the text has a lone surrogate"),
        ("a.txt.gz", b"plain", r"gz: not a gzip file, or a damaged one\.$"),
        (
            "a.txt.gz",
            gzip.compress(b"plain" * 99, mtime=0)[:-9],
            r"gz: the gzip file is cut off\.$",
        ),
        (
            "a.txt.gz",
            gzip.compress(b"plain", mtime=0)[:-8] + bytes(8),
            r"gz: not a gzip file, or a damaged",
        ),
        ("a.txt.zst", b"plain", r"zst: not a zstd file, or a damaged one\.$"),
        ("a.txt.zst", zstandard.compress(b"plain" * 99)[:-9], "cut off"),
        ("a.txt.zst", b"", "cut off"),
    ],
)
def test_unreadable_files_are_refused_with_their_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        documents(tmp_path / name)


def test_a_number_of_any_length_beside_the_text_is_no_fault(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": ' + "9" * 5000 + ', "text": "a"}')
    assert documents(tmp_path / "a.jsonl") == ["a"]


def test_nothing_found_is_an_error(tmp_path):
    (tmp_path / "a.md").write_text("text")
    with pytest.raises(DataError, match="folder without text files"):
        find_files(str(tmp_path))
    with pytest.raises(DataError, match="matches no file"):
        find_files(str(tmp_path / "*.txt"))
    with pytest.raises(DataError, match="matches no file"):
        find_files(str(tmp_path / "absent.txt"))
    with pytest.raises(DataError, match="cannot read this kind"):
        find_files(str(tmp_path / "*.md"))


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_half_a_corpus(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.txt").write_text("text")
    (tmp_path / "shut").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("shut"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="shut cannot be read"):
        find_files(str(tmp_path))

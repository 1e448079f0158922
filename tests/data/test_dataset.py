import os
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from glu_lab.data import load
from glu_lab.data.benchmark import examples_per_second
from glu_lab.errors import DataError
from glu_lab.spec.experiment import Data
from tests.data.conftest import small, write_corpus

T5 = Path(__file__).parent / "assets" / "t5_spiece.model"


def test_t5_at_512_has_114_targets_and_sentinels_from_32099(corpus_file, cache):
    spec = small(
        corpus_file, tokenizer=str(T5), vocab_size=32_000, num_sentinels=100, input_length=512
    )
    data = load(spec, cache_dir=cache)
    assert (data.raw_length, data.target_length, data.tokenizer.size) == (568, 114, 32_100)
    batch = next(data.train_iterator(seed=0, batch_size=2))
    assert batch["targets"].shape == (2, 114)
    assert (batch["targets"][:, 0] == 32_099).all()


def test_the_fingerprint_follows_content_not_place(tmp_path, cache):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    texts = write_corpus(tmp_path / "one" / "a.jsonl")
    # The same texts elsewhere, as files whose order is another.
    for number, text in enumerate(texts):
        (tmp_path / "two" / f"{(37 * number) % 80:03}.txt").write_text(text)
    data = [load(small(tmp_path / name), cache_dir=cache) for name in ("one", "two")]
    assert data[0].fingerprint == data[1].fingerprint
    np.testing.assert_equal(*(next(d.train_iterator(seed=0, batch_size=8)) for d in data))
    # Also from its own cache, not only from the other's.
    fresh = load(small(tmp_path / "two"), cache_dir=tmp_path / "cache")
    np.testing.assert_equal(
        *(next(d.train_iterator(seed=0, batch_size=8)) for d in (data[0], fresh))
    )


@pytest.mark.parametrize("change", ["text", "vocab_size", "validation_fraction"])
def test_the_fingerprint_changes_with_content(tmp_path, corpus_file, cache, change):
    base = load(small(corpus_file), cache_dir=cache)
    path, fields = corpus_file, {}
    if change == "text":
        path = tmp_path / "a.jsonl"
        write_corpus(path, seed=1)
    else:
        fields = {change: {"vocab_size": 330, "validation_fraction": 0.3}[change]}
    assert load(small(path, **fields), cache_dir=cache).fingerprint != base.fingerprint


def test_a_second_load_trains_and_tokenizes_nothing(corpus_file, tmp_path):
    lines: list[list[str]] = [[], []]
    for said in lines:
        load(small(corpus_file), cache_dir=tmp_path, progress=said.append)
    assert lines[0] == [
        "reading text: 1 file", "training a tokenizer of 320 pieces", "tokenizing",
    ]  # fmt: skip
    assert lines[1] == ["reading text: 1 file"]


def test_the_cache_is_where_the_environment_says(corpus_file, tmp_path, monkeypatch):
    monkeypatch.setenv("GLU_LAB_CACHE", str(tmp_path / "here"))
    load(small(corpus_file))
    assert {p.name for p in (tmp_path / "here").iterdir()} == {"tokenizers", "tokens"}


def test_a_damaged_cache_is_refused_and_named(corpus_file, tmp_path):
    load(small(corpus_file), cache_dir=tmp_path)
    file = next(tmp_path.glob("tokens/*/train.tokens"))
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DataError, match=rf"(?s){file.parent} is damaged.*delete it"):
        load(small(corpus_file), cache_dir=tmp_path)
    shutil.rmtree(file.parent)
    load(small(corpus_file), cache_dir=tmp_path)


def test_summary_states_the_counts(dataset):
    text = dataset.summary()
    for value in dataset.statistics.values():
        assert f"{value:,}" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_length": 2}, "must be ≥ 3"),
        ({"target_length": 5}, r"target_length=5 cuts targets off.*at least \d+"),
        ({"input_length": 256}, r"num_sentinels=10 is too few: .* 256 inputs has 14 spans"),
        ({"num_sentinels": 0}, r"data\.num_sentinels to at least"),
        ({"noise_density": 0.9, "mean_span_length": 1.0}, "would touch"),
        ({"vocab_size": 5000}, "too large for this corpus"),
        ({"vocab_size": 100}, "too small"),
        ({"logical_shards": 1000}, r"set data\.logical_shards to at most"),
        ({"tokenizer": str(T5)}, r"set data\.vocab_size=32000"),
        ({"tokenizer": "absent.model"}, "is no file"),
    ],
)
def test_what_does_not_fit_is_refused(corpus_file, cache, fields, message):
    with pytest.raises(DataError, match=message):
        load(small(corpus_file, **fields), cache_dir=cache)


def test_cheap_mistakes_are_told_before_the_corpus_is_read(corpus_file, tmp_path):
    said: list[str] = []
    for fields in ({"target_length": 5}, {"tokenizer": "absent.model"}):
        with pytest.raises(DataError):
            load(small(corpus_file, **fields), cache_dir=tmp_path, progress=said.append)
    assert not said and not list(tmp_path.iterdir())


def test_empty_documents_are_kept_and_harmless(tmp_path):
    texts = write_corpus(tmp_path / "a.jsonl")
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": ""}\n' * 9)
    for objective in ("causal_lm", "span_corruption"):
        data = load(small(tmp_path / "a.jsonl", objective=objective), cache_dir=tmp_path / "cache")
        counts = data.statistics
        assert counts["train_documents"] + counts["validation_documents"] == len(texts) + 9
        iterator = data.train_iterator(seed=0, batch_size=4)
        assert all(next(iterator)["weights"].any() for _ in range(50))
        assert len(list(data.validation(4))) == data.validation_size(4)


def test_an_unwritable_cache_is_refused(corpus_file, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="GLU_LAB_CACHE"):
        load(Data(vocab_size=300), cache_dir=tmp_path / "file" / "cache")


def test_the_benchmark_counts_examples_not_batches(dataset, monkeypatch):
    clock = iter([10.0, 12.0])
    timer = types.SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("glu_lab.data.benchmark.time", timer)
    assert examples_per_second(dataset, batch_size=8, steps=5) == 8 * 5 / 2.0


def test_bits_per_byte_need_a_tokenizer_that_gives_every_text_back(corpus_file, cache):
    """Pieces that a tokenizer does not know would be scored for free."""
    causal = {"objective": "causal_lm", "input_length": 32}
    own = load(small(corpus_file, **causal), cache_dir=cache)
    assert own.scored_bytes == own.validation_bytes > 0
    t5 = load(small(corpus_file, tokenizer=str(T5), vocab_size=32_000, **causal), cache_dir=cache)
    assert t5.scored_bytes is None
    assert load(small(corpus_file), cache_dir=cache).scored_bytes is None

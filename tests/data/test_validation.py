import numpy as np
import pytest

from glu_lab.data import load
from glu_lab.data.corpora import open_corpus
from glu_lab.data.splits import split_documents
from glu_lab.errors import DataError
from tests.data.conftest import small


def validation_texts(data, cache):
    """The held-out texts in canonical order, found without the dataset's own arrays."""
    documents = list(open_corpus(data.spec, cache, print).documents())
    split = split_documents(documents, data.spec.validation_fraction)
    return [documents[number].text for number in split.validation]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("input_length", [24, 29])  # the corpus fills windows exactly; it does not
def test_causal_targets_are_every_validation_token_once(
    corpus_file, cache, batch_size, input_length
):
    data = load(
        small(corpus_file, objective="causal_lm", input_length=input_length), cache_dir=cache
    )
    want = [
        token
        for text in validation_texts(data, cache)
        for token in (*data.tokenizer.encode(text), 1)
    ]
    batches = list(data.validation(batch_size))
    got = np.concatenate([b["targets"][b["weights"] == 1] for b in batches])
    assert got.tolist() == want
    assert all(len(b["targets"]) == batch_size for b in batches)
    assert len(batches) == data.validation_size(batch_size)
    # Weight and segment agree on what is padding.
    assert all(((b["segments"] > 0) == (b["weights"] == 1)).all() for b in batches)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("input_length", [24, 29])  # the corpus fills windows exactly; it does not
def test_span_corruption_hides_or_shows_every_validation_token_once(
    corpus_file, cache, batch_size, input_length
):
    data = load(small(corpus_file, input_length=input_length), cache_dir=cache)
    want = [t for text in validation_texts(data, cache) for t in data.tokenizer.encode(text)]
    batches = list(data.validation(batch_size))
    got = []
    for batch in batches:
        for row in range(batch_size):
            inputs = batch["encoder_tokens"][row][batch["encoder_segments"][row] == 1].tolist()
            targets = batch["targets"][row][batch["weights"][row] == 1].tolist()
            spans: dict[int, list[int]] = {}
            current: list[int] = []
            for token in targets[:-1]:
                if token >= data.tokenizer.num_pieces:
                    current = spans.setdefault(token, [])
                else:
                    current.append(token)
            got += [t for token in inputs[:-1] for t in spans.get(token, [token])]
    assert got == want
    assert len(batches) == data.validation_size(batch_size)


def test_validation_is_the_same_every_time_and_for_every_batch_size(dataset):
    first, second = list(dataset.validation(7)), list(dataset.validation(7))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_equal(a, b)
    for name in first[0]:
        by_7 = np.concatenate([b[name] for b in first])
        by_5 = np.concatenate([b[name] for b in dataset.validation(5)])
        rows = min(len(by_7), len(by_5))
        np.testing.assert_equal(by_7[:rows], by_5[:rows])
        assert not by_7[rows:].any() and not by_5[rows:].any()


def test_training_never_sees_validation_text(corpus_file, cache):
    data = load(small(corpus_file, objective="causal_lm"), cache_dir=cache)
    iterator = data.train_iterator(seed=0, batch_size=8)
    pages = [data.tokenizer.decode(row) for _ in range(200) for row in next(iterator)["targets"]]
    seen = {name for page in pages for name in page.split() if name.endswith(":")}
    held_out = {text.split()[1] for text in validation_texts(data, cache)}
    assert len(seen) > 50 and not held_out & seen


def test_bytes_are_those_of_the_held_out_text(dataset, cache):
    want = sum(len(text.encode()) for text in validation_texts(dataset, cache))
    assert dataset.validation_bytes == dataset.statistics["validation_bytes"] == want


def test_a_bad_batch_size_is_refused_at_the_call(dataset):
    with pytest.raises(DataError, match="must be ≥ 1"):
        dataset.validation(0)

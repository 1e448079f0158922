import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glu_lab.data.corpora import Document
from glu_lab.data.splits import deal_shards, split_documents
from glu_lab.errors import DataError

DOCUMENTS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=60), st.integers(0, 3)),
    min_size=2,
    unique_by=lambda pair: pair[0],
)


def texts(documents, numbers):
    return sorted(documents[number].text for number in numbers)


@given(DOCUMENTS, st.floats(0.05, 0.5))
def test_validation_is_within_one_document_of_the_fraction(pairs, fraction):
    documents = [Document(*pair) for pair in pairs]
    try:
        split = split_documents(documents, fraction)
    except DataError:
        return
    sizes = [len(d.text) for d in documents]
    assert not set(split.train) & set(split.validation)
    assert len(split.train) + len(split.validation) == len(documents)
    assert abs(sum(split.sizes[split.validation]) - fraction * sum(sizes)) <= max(sizes)


@pytest.mark.parametrize(("fraction", "bytes_held"), [(0.24, 20), (0.26, 30), (0.34, 30)])
def test_the_nearest_number_of_documents_is_held_out(fraction, bytes_held):
    """Ten documents of ten bytes: 24 bytes are nearer to two of them than to three."""
    documents = [Document(f"document {n}", 0) for n in range(10)]
    split = split_documents(documents, fraction)
    assert split.sizes[split.validation].sum() == bytes_held


@given(DOCUMENTS, DOCUMENTS, st.randoms())
def test_order_of_documents_does_not_matter(pairs, more, draw):
    # Two draws: the same text may stand in two periods.
    documents = [Document(*pair) for pair in pairs + more]
    shuffled = draw.sample(documents, len(documents))
    try:
        first = split_documents(documents, 0.2)
    except DataError:
        return
    second = split_documents(shuffled, 0.2)
    assert first.content_hash == second.content_hash
    ordered = [[d[n].text for n in s.train] for d, s in ((documents, first), (shuffled, second))]
    assert ordered[0] == ordered[1]


def test_equal_texts_stay_on_one_side():
    documents = [Document(text, period) for period in (1, 2) for text in map(str, range(50))]
    split = split_documents(documents, 0.3)
    assert not set(texts(documents, split.train)) & set(texts(documents, split.validation))


def test_every_period_gives_its_part():
    documents = [Document(f"{p}-{n:04}", p) for p in range(4) for n in range(100)]
    split = split_documents(documents, 0.05)
    assert [sum(n // 100 == p for n in split.validation) for p in range(4)] == [5] * 4


def test_a_changed_text_changes_the_content_hash():
    base = [Document(str(n)) for n in range(40)]
    changed = [*base[:-1], Document("other")]
    assert split_documents(base, 0.1).content_hash != split_documents(changed, 0.1).content_hash


def test_a_corpus_with_its_own_split_keeps_it():
    documents = [Document(str(n), split="validation" if n % 7 == 0 else "train") for n in range(50)]
    assert sorted(split_documents(documents, 0.5).validation) == list(range(0, 50, 7))


@pytest.mark.parametrize("given_texts", [[], [""], ["", ""]])
def test_empty_corpus_is_refused(given_texts):
    with pytest.raises(DataError, match="corpus is empty"):
        split_documents([Document(text) for text in given_texts], 0.05)


@pytest.mark.parametrize("given_texts", [["one"], ["one", "one"], ["one", ""]])
def test_a_corpus_that_cannot_be_split_is_refused(given_texts):
    with pytest.raises(DataError, match="no text is left for"):
        split_documents([Document(text) for text in given_texts], 0.05)


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=100), st.integers(1, 8))
def test_shards_hold_every_document_once_and_are_balanced(sizes, count):
    sizes = np.array(sizes)
    shards = deal_shards(sizes, count)
    assert sorted(np.concatenate(shards)) == list(range(len(sizes)))
    weights = [sizes[shard].sum() for shard in shards]
    assert max(weights) - min(weights) <= sizes.max()


def test_shards_are_dealt_forth_and_back():
    shards = deal_shards(np.array([8, 7, 6, 5, 4, 3, 2, 1]), 2)
    assert [shard.tolist() for shard in shards] == [[0, 3, 4, 7], [1, 2, 5, 6]]  # 18 bytes each


def test_fewer_documents_than_shards_are_refused():
    with pytest.raises(DataError, match=r"set data\.logical_shards to at most 3"):
        deal_shards(np.array([5, 5, 5]), 4)

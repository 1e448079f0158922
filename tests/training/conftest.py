"""A corpus, a dataset, and one finished run that many tests look at."""

import pytest

from glu_lab.data import load
from glu_lab.training.loop import train
from tests.training.small import small_experiment, text_data, write_corpus


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "documents.jsonl")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def dataset(corpus_file, cache):
    return load(text_data(corpus_file), cache_dir=cache)


@pytest.fixture(scope="session")
def experiment(dataset):
    return small_experiment(dataset.spec)


@pytest.fixture(scope="session")
def finished(experiment, dataset, tmp_path_factory):
    """Folder and summary of an uninterrupted run; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train(experiment, folder, dataset=dataset)

"""Shapes of batches without the batches."""

import numpy as np
import pytest

from glu_lab.data.shapes import UnpreparedDataset, batch_shapes
from glu_lab.errors import DataError
from tests.data.conftest import small


def test_they_are_those_of_the_prepared_dataset(dataset):
    assert UnpreparedDataset(dataset.spec).batch_spec(6) == dataset.batch_spec(6)
    batch = next(dataset.train_iterator(seed=0, batch_size=8))
    shapes = batch_shapes(dataset.spec, 8)
    assert shapes == {name: array.shape for name, array in batch.items()}
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_no_corpus_is_needed():
    spec = small("/nowhere", input_length=512, num_sentinels=100)
    # T5's own numbers (Raffel et al. 2020): 512 inputs have 114 targets.
    assert batch_shapes(spec, 128)["decoder_tokens"] == (128, 114)


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="cuts targets off"):
        batch_shapes(small("/nowhere", target_length=2), 8)

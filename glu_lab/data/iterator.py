"""The training iterator: batches, and a state that says whose it is."""

from collections.abc import Iterator, Mapping
from typing import Any

import grain

from glu_lab.data.pipeline import Batch, TrainBatches
from glu_lab.errors import DataError
from glu_lab.spec.identity import difference

_PLACE, _DATA = "place", "data"


class TrainIterator(Iterator[Batch]):
    """An endless iterator over `TrainBatches`; a thread prepares a few batches ahead.

    Args:
        source: the batches by step.
        data: all that the global batch of a step depends on, as plain data for JSON: seed, batch
            size, texts and the shape of examples. The number of processes is not among it.
    """

    def __init__(self, source: TrainBatches, data: Mapping[str, Any]):
        self._data = dict(data)
        self._source = source
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
        self._batches = iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def __repr__(self) -> str:
        return f"TrainIterator({self._source!r})"

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Where the iterator stands, and in what; ready for JSON.

        Batches that were prepared and not yet taken do not count.
        """
        return {_PLACE: self._batches.get_state(), _DATA: dict(self._data)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where a state was saved, in this or another process.

        Args:
            state: of `get_state`.

        Raises:
            DataError: for the state of other batches, with each difference, or for no state.
        """
        if not isinstance(state, Mapping) or not {_PLACE, _DATA} <= state.keys():
            raise DataError(
                f"{state!r} is no state of a training iterator; expected what get_state() gives, "
                "which names its seed, batch size and data beside its place."
            )
        changes = difference(state[_DATA], self._data)
        if changes:
            raise DataError(
                "this is the state of another training iterator; its place means other batches "
                f"here. What differs (saved → here): {'; '.join(changes)}."
            )
        self._batches.set_state(dict(state[_PLACE]))

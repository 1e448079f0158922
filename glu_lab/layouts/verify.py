"""Holds a checkpoint's tensors against its manifest, and names every difference.

A manifest is a claim. Each part of it that tensors can contradict is checked: how many there are,
their names, shapes, types and bytes, which of them are equal, which biases there are, how the
layout stores them, and what known rows come out as.

Dimension letters: P tensor-parallel degree.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.files.contents import tensor_sha256
from glu_lab.files.element_types import NAMES
from glu_lab.files.tensor_file import TensorFile
from glu_lab.files.tensors import RankFiles, open_ranks
from glu_lab.layouts.checkpoint_manifest import (
    ManifestError,
    bias_policy,
    layout_of,
    leading_of,
    prefixes_of,
    read_manifest,
    recorded_rows,
    section,
    spec_of,
    stored_as,
)
from glu_lab.layouts.function import fit
from glu_lab.layouts.hints import some
from glu_lab.layouts.inventory import Inventory, take_stock
from glu_lab.layouts.layout import Layout, LayoutError
from glu_lab.layouts.outputs import Key
from glu_lab.layouts.proof import (
    RECORDED_TOLERANCE,
    ProofError,
    compare,
    evaluate,
    known_rows,
    places_of,
)
from glu_lab.layouts.streams import cached
from glu_lab.spec.ffn import FFN


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing in which manifest and tensors differ.

    Attributes:
        what: ``count``, ``name``, ``file``, ``shape``, ``dtype``, ``hash``, ``alias``,
            ``bias policy``, ``packing``, ``layout``, ``function`` or ``ranks``.
        message: what the manifest says and what is there.
    """

    what: str
    message: str


@dataclasses.dataclass(frozen=True)
class Verified:
    """What `verify` found.

    Attributes:
        differences: all of them; empty when the two agree.
        tensors: how many there are, over all ranks.
        hashed: of how many the bytes were compared.
        rows: whether known rows were compared.
    """

    differences: tuple[Difference, ...]
    tensors: int
    hashed: int
    rows: bool


def verify(path: Path) -> Verified:
    """Reconciles a checkpoint with the manifest in its folder.

    Args:
        path: the folder of a conversion or a training run.

    Raises:
        ManifestError: when there is no manifest, or it is too damaged to be held against anything.
        FileFormatError, RecordError: when the tensors cannot be read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if manifest is None:
        raise ManifestError(
            f"{path} has no manifest.json to verify; glu-lab convert writes one, and glu-lab "
            "inspect says what tensors show without it."
        )
    with open_ranks(path) as files:
        if "checkpoint" not in manifest:
            return _training_run(manifest, files[0])
        stated = _stated(manifest)
        found = list(_ranks(manifest, files))
        found += _names(stated, files)
        both = [key for key in stated if key.rank < len(files) and key.name in files[key.rank]]
        for key in both:
            found += _tensor(key, stated[key], files[key.rank], path)
        found += _aliases(manifest, files)
        checked, compared = _ffns(manifest, stated, files)
        found += checked
        count = sum(len(file) for file in files)
    hashed = sum(isinstance(stated[key].get("sha256"), str) for key in both)
    return Verified(tuple(found), count, hashed, compared)


def _stated(manifest: Mapping[str, Any]) -> dict[Key, Mapping[str, Any]]:
    """The manifest's tensors."""
    entries = section(manifest, "checkpoint").get("tensors")
    if not isinstance(entries, list):
        raise ManifestError("the manifest's checkpoint has no list of tensors.")
    stated: dict[Key, Mapping[str, Any]] = {}
    for number, entry in enumerate(entries):
        whole = isinstance(entry, Mapping)
        name, rank = (entry.get("name"), entry.get("rank")) if whole else (None, None)
        if not isinstance(name, str) or not isinstance(rank, int) or rank < 0:
            raise ManifestError(f"tensor {number} of the manifest has no name and rank: {entry!r}.")
        if Key(name, rank) in stated:
            raise ManifestError(f"the manifest has {name!r} of rank {rank} twice.")
        stated[Key(name, rank)] = entry
    return stated


def _ranks(manifest: Mapping[str, Any], files: RankFiles) -> Iterator[Difference]:
    degree = section(manifest, "parallelism").get("tensor_parallel")
    if degree != len(files):
        yield Difference(
            "ranks",
            f"the manifest says tensor_parallel={degree!r}; there are {len(files)} ranks.",
        )


def _names(stated: Mapping[Key, Any], files: RankFiles) -> list[Difference]:
    there = {Key(name, rank) for rank, file in enumerate(files) for name in file}
    found = []
    if len(stated) != len(there):
        message = f"the manifest has {len(stated)} tensors; there are {len(there)}."
        found.append(Difference("count", message))
    for key in stated:
        if key not in there:
            found.append(Difference("name", f"{_said(key, files)} is in the manifest, not there."))
    for key in sorted(there, key=lambda key: key[::-1]):
        if key not in stated:
            found.append(Difference("name", f"{_said(key, files)} is there, not in the manifest."))
    return found


def _said(key: Key, files: Sequence[TensorFile]) -> str:
    return repr(key.name) + (f" of rank {key.rank}" if len(files) > 1 or key.rank else "")


def _tensor(
    key: Key, entry: Mapping[str, Any], file: TensorFile, path: Path
) -> Iterator[Difference]:
    """Place, shape, type and bytes of one tensor; bytes only where shape and type agree."""
    info = file.info(key.name)
    where = repr(key.name) + (f" of rank {key.rank}" if key.rank else "")
    place = None if info.file is None else info.file.resolve()
    if place is not None and place != (path / str(entry.get("file"))).resolve():
        yield Difference("file", f"{where} is in {place}; the manifest says {entry.get('file')!r}.")
    alike = True
    for what, said, is_there in (
        ("shape", entry.get("shape"), list(info.shape)),
        ("dtype", entry.get("dtype"), NAMES.get(info.dtype, str(info.dtype))),
    ):
        if said != is_there:
            alike = False
            yield Difference(what, f"{where} is {is_there}; the manifest says {said}.")
    if not alike:
        return
    said, digest = entry.get("sha256"), tensor_sha256(file, key.name)
    if said != digest:
        yield Difference("hash", f"{where} has sha256 {digest}; the manifest says {said}.")


def _aliases(manifest: Mapping[str, Any], files: RankFiles) -> Iterator[Difference]:
    """Tensors that the manifest calls one are equal."""
    for group in section(manifest, "checkpoint").get("aliases", ()):
        try:
            keys = [Key(member["name"], member["rank"]) for member in group]
        except (TypeError, KeyError):
            raise ManifestError(f"the manifest's aliases are damaged: {group!r}.") from None
        missing = [k for k in keys if k.rank >= len(files) or k.name not in files[k.rank]]
        if missing:
            names = some(key.name for key in missing)
            yield Difference("alias", f"{names} should equal other tensors and is not there.")
            continue
        if len({tensor_sha256(files[key.rank], key.name) for key in keys}) > 1:
            names = some(key.name for key in keys)
            yield Difference("alias", f"{names} are one tensor in the manifest, and differ.")


def _ffns(
    manifest: Mapping[str, Any], stated: Mapping[Key, Mapping[str, Any]], files: RankFiles
) -> tuple[list[Difference], bool]:
    """The layout, biases and function; and whether known rows were compared."""
    try:
        spec, layout = spec_of(manifest), layout_of(manifest)
        fit(layout, spec)
    except (ManifestError, LayoutError) as error:
        return [Difference("function", str(error))], False
    found = []
    if (said := section(manifest, "architecture").get("bias_policy")) != bias_policy(spec):
        message = f"the manifest's bias_policy is {said}; its Spec has {bias_policy(spec)}."
        found.append(Difference("bias policy", message))
    try:
        stock = _stock(layout, spec, files, manifest)
    except LayoutError as error:
        what = "bias policy" if _about_biases(layout, spec, stated, files) else "layout"
        return [*found, Difference(what, str(error))], False
    if (said := section(manifest, "architecture").get("ffns")) != len(places_of(stock)):
        message = f"the manifest says {said} FFNs; there are {len(places_of(stock))}."
        found.append(Difference("count", message))
    found += _packing(stock, stated)
    try:
        recorded = recorded_rows(manifest)
        if recorded is None:
            return found, False
        place, outputs = recorded
        ours = evaluate(stock, cached(files), place, known_rows(spec.d_model))
        compare(ours, outputs, spec, "what the manifest recorded", RECORDED_TOLERANCE)
    except (ProofError, LayoutError, ManifestError) as error:
        return [*found, Difference("function", str(error))], True
    return found, True


def _stock(layout: Layout, spec: FFN, files: RankFiles, manifest: Mapping[str, Any]) -> Inventory:
    """What the tensors hold; where shapes leave leading axes open, the manifest's proof says."""
    by_rank = [{name: file.info(name) for name in file} for file in files]
    return take_stock(
        layout, by_rank, spec, prefixes=prefixes_of(manifest), leading=leading_of(manifest)
    )


def _about_biases(
    layout: Layout, spec: FFN, stated: Mapping[Key, Mapping[str, Any]], files: RankFiles
) -> bool:
    """Whether stated and present tensors agree in all but which biases the Spec has."""
    pieces = {entry.get("holds") for key, entry in stated.items() if key.name in files[0]}
    wanted = {
        "bi": any(branch.bias for branch in spec.branches),
        "bp": spec.product_bias,
        "bo": spec.output_bias,
    }
    return any((piece in pieces) != has for piece, has in wanted.items())


def _packing(stock: Inventory, stated: Mapping[Key, Mapping[str, Any]]) -> Iterator[Difference]:
    """What the manifest says of each FFN tensor, held against the layout's row."""
    named = {item.name: item for item in stock.recognised.named}
    for key, entry in stated.items():
        right = stored_as(stock.layout, named.get(key.name), stock.spec.num_branches)
        for field, value in right.items():
            if entry.get(field) != value:
                yield Difference(
                    "packing",
                    f"{key.name!r} of rank {key.rank}: {stock.layout.name} has {field}={value!r}; "
                    f"the manifest says {entry.get(field)!r}.",
                )


def _training_run(manifest: Mapping[str, Any], file: TensorFile) -> Verified:
    """Names, shapes and types of a run's parameters, and the hashes that its checkpoint records."""
    stated = section(section(manifest, "layout"), "parameters")
    dtype = section(manifest, "numerics").get("parameter_dtype")
    found = []
    if len(stated) != len(file):
        message = f"the manifest has {len(stated)} parameters; there are {len(file)}."
        found.append(Difference("count", message))
    for name, entry in stated.items():
        if name not in file:
            found.append(Difference("name", f"{name!r} is in the manifest, not there."))
            continue
        info = file.info(name)
        if entry.get("shape") != list(info.shape):
            found.append(
                Difference(
                    "shape",
                    f"{name!r} is {list(info.shape)}; the manifest says {entry.get('shape')}.",
                )
            )
        if info.dtype.name != dtype:
            message = f"{name!r} is {info.dtype.name}; the manifest says {dtype}."
            found.append(Difference("dtype", message))
    extra = [name for name in file if name not in stated]
    found += [Difference("name", f"{name!r} is there, not in the manifest.") for name in extra]
    recorded = {name: sha for name, sha in file.metadata.get("sha256", {}).items() if name in file}
    for name, digest in recorded.items():
        if tensor_sha256(file, name) != digest:
            found.append(Difference("hash", f"{name!r} has other bytes than were saved."))
    return Verified(tuple(found), len(file), len(recorded), False)

"""The manifest of a converted checkpoint: what its tensors are, in one JSON document.

It states the function exactly, how every tensor lies, and where all came from. What a conversion
cannot know is the business of who computes with it and says ``implementation_defined``.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab import __version__
from glu_lab.errors import GluLabError
from glu_lab.files.strict_json import parse_object
from glu_lab.files.tensor_file import FileFormatError
from glu_lab.layouts.document import branch_order, packing
from glu_lab.layouts.layout import Layout, LayoutError, Prefix
from glu_lab.layouts.lookup import LAYOUTS, find
from glu_lab.layouts.names import Named
from glu_lab.layouts.proof import ROWS, Place, RowProof
from glu_lab.layouts.user import layouts_from_toml, to_toml
from glu_lab.spec.codec import decode, encode
from glu_lab.spec.ffn import FFN
from glu_lab.spec.formula import formula
from glu_lab.spec.manifest import MANIFEST_VERSION
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.variants import variant_name

FILE = "manifest.json"
KIND = "checkpoint"
UNKNOWN = "implementation_defined"

#: Fields of a Spec that its tensors do not depend on, and that no conversion knows.
_OF_TRAINING = ("wi_init", "wo_init", "hidden_dropout", "hidden_dropout_shared")
#: What a training run's manifest says of itself.
_TRAINING = (
    "initializers",
    "dropout",
    "remat_boundary",
    "rng_replay",
    "gradient_accumulation_dtype",
    "optimizer",
    "optimizer_state_dtype",
)

#: Channels of the known rows' outputs that are recorded.
_CHANNELS = 8
_MAX_BYTES = 1 << 30


class ManifestError(GluLabError, ValueError):
    """A manifest that is damaged, or of a kind that cannot be used here."""


@dataclasses.dataclass(frozen=True)
class Record:
    """One tensor of a checkpoint, as written.

    Attributes:
        name: its name.
        rank: the tensor-parallel rank whose folder it is in.
        file: path of its file, relative to the checkpoint.
        shape: its shape.
        dtype: in a safetensors header's words.
        sha256: of its elements, little-endian in C order.
    """

    name: str
    rank: int
    file: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


def checkpoint_manifest(
    *,
    spec: FFN,
    layout: Layout,
    settings: Mapping[str, Any],
    records: Iterable[Record],
    named: Mapping[str, Named],
    aliases: Sequence[Sequence[tuple[str, int]]],
    folders: Sequence[str],
    replicated: Sequence[str],
    created: Sequence[str],
    kept: Mapping[str, str],
    proof: RowProof,
    source: Mapping[str, Any],
    training: Any,
    revision: str | None,
    model: Mapping[str, Any] | None = None,
    parameters: Mapping[str, tuple[str, str, str]] | None = None,
) -> dict[str, Any]:
    """The document.

    Args:
        spec, layout: what the FFN tensors compute, and how they lie.
        settings: config attributes that make the layout's own code compute it.
        records: every tensor.
        named: FFN tensors by name.
        aliases: groups of (name, rank) of tensors that were one in the source.
        folders: one a rank; empty for one rank.
        replicated: tensors of which every rank holds a whole copy.
        created: biases of zeros that the source does not have.
        kept: tensors that were carried over unconverted → what they are.
        proof: of the rows.
        source: path, layout, files and hashes of what was converted.
        training: the training section of the source's manifest.
        revision: of the source tree; None where it is not known.
        model: the Spec of the whole model and the family that its tensors lie as, where more than
            the FFNs was written.
        parameters: then, tensors of no FFN → (their name, the model's parameter, how stored axes
            become its axes).
    """
    records = list(records)
    dtypes = sorted({record.dtype for record in records if record.name in named})
    numerics: dict[str, Any] = {field.name: UNKNOWN for field in dataclasses.fields(Numerics)}
    numerics["stored_dtypes"] = dtypes
    n = spec.num_branches
    return {
        "manifest_version": MANIFEST_VERSION,
        "kind": KIND,
        "architecture": {
            "variant": variant_name(spec),
            "formula": formula(spec),
            "ffn": {k: v for k, v in encode(spec).items() if k not in _OF_TRAINING},
            "bias_policy": bias_policy(spec),
            "ffns": proof.total,
            **({} if model is None else {"model": dict(model)}),
        },
        "checkpoint": {
            "format": "safetensors",
            "layout": layout.name,
            "layout_row": _row(layout),
            "prefixes": [encode(p) for p in dict.fromkeys(n.prefix for n in named.values())],
            "config_attributes": dict(settings),
            "tensors": [
                {
                    **_tensor(record),
                    **stored_as(layout, named.get(record.name), n),
                    **_parameter((parameters or {}).get(record.name)),
                }
                for record in records
            ],
            "created_zeros": list(created),
            "aliases": [[{"name": name, "rank": rank} for name, rank in g] for g in aliases],
        },
        "numerics": numerics,
        "parallelism": {
            "tensor_parallel": max(1, len(folders)),
            "folders": list(folders),
            "replicated": list(replicated),
        },
        "not_converted": [{"name": name, "what": what} for name, what in kept.items()],
        "proof": _proof(proof),
        "training": dict.fromkeys(_TRAINING, UNKNOWN) if training is None else training,
        "provenance": {
            "source": dict(source),
            "project": "glu_lab",
            "version": __version__,
            "revision": revision,
        },
    }


def bias_policy(spec: FFN) -> dict[str, Any]:
    """Which biases an FFN has."""
    return {
        "branches": [branch.bias for branch in spec.branches],
        "product": spec.product_bias,
        "output": spec.output_bias,
    }


def _row(layout: Layout) -> str | None:
    """A user's own row in full; built-in ones, and blocks of any width, are found by name."""
    base = layout.name.rsplit("-interleave-", 1)[0]
    return None if layout.name in LAYOUTS or base in LAYOUTS else to_toml([layout])


def _tensor(record: Record) -> dict[str, Any]:
    return {**dataclasses.asdict(record), "shape": list(record.shape)}


def stored_as(layout: Layout, named: Named | None, n: int) -> dict[str, Any]:
    """How an FFN tensor lies; nothing but ``converted: false`` for any other."""
    if named is None:
        return {"converted": False}
    row = named.row
    return {
        "converted": True,
        "holds": row.holds,
        "axes": row.axes,
        "packing": packing(layout, row),
        "branch_order": branch_order(layout, row) if layout.num_branches in (0, n) else "",
        "branches": list(row.branches),
        "interleave": row.interleave,
    }


def _parameter(row: tuple[str, str, str] | None) -> dict[str, Any]:
    return {} if row is None else {"parameter": row[1], "pattern": row[2]}


def _proof(proof: RowProof) -> dict[str, Any]:
    first = proof.first.y[:, :_CHANNELS]
    return {
        "rows": ROWS,
        "inputs": "x_td = 4 frac((t+1)(d+1) 0.6180339887498949) - 2",
        "evaluated_ffns": [place._asdict() for place in proof.places],
        "largest_difference": proof.largest if np.isfinite(proof.largest) else None,
        "first_outputs": first.tolist() if np.isfinite(first).all() else None,
    }


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint or training run; None where the folder has none.

    Args:
        path: what is opened: a folder, or a file (which has none).

    Raises:
        ManifestError: when it is no manifest of a version that is read.
    """
    file = Path(path) / FILE
    if not Path(path).is_dir() or not file.exists():
        return None
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ManifestError(f"{file} has {file.stat().st_size:,} bytes, too many.")
        document = parse_object(file.read_bytes(), str(file))
    except (OSError, FileFormatError) as error:
        raise ManifestError(f"{file} cannot be read: {error}") from error
    version = document.get("manifest_version")
    if version != MANIFEST_VERSION:
        raise ManifestError(
            f"{file} has manifest_version {version!r}; version {MANIFEST_VERSION} is read."
        )
    return document


def spec_of(manifest: Mapping[str, Any]) -> FFN:
    """The FFN that a manifest states.

    Raises:
        ManifestError: when it states none.
    """
    try:
        return decode(FFN, section(manifest, "architecture")["ffn"], "architecture.ffn")
    except KeyError:
        raise ManifestError("the manifest has no architecture.ffn.") from None
    except ManifestError:
        raise
    except GluLabError as error:
        raise ManifestError(f"the manifest's architecture.ffn is no Spec: {error}") from error


def layout_of(manifest: Mapping[str, Any]) -> Layout:
    """The layout that a manifest states; that of a training run is the canonical one.

    Raises:
        ManifestError: when it states none that is known.
    """
    if "layout" in manifest and "checkpoint" not in manifest:
        return LAYOUTS["glu-lab"]
    checkpoint = section(manifest, "checkpoint")
    name, row = checkpoint.get("layout"), checkpoint.get("layout_row")
    if not isinstance(name, str) or not isinstance(row, str | None):
        raise ManifestError(f"the manifest's layout must be a name, got {name!r}.")
    try:
        return find(name, {} if row is None else layouts_from_toml(_toml(row), "the layout_row"))
    except GluLabError as error:
        raise ManifestError(f"the manifest's layout: {error}") from error


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LayoutError(f"layout_row is no TOML: {error}.") from error


def section(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One object of a manifest.

    Raises:
        ManifestError: when it is missing or of another type.
    """
    value = manifest.get(name)
    if not isinstance(value, Mapping):
        raise ManifestError(f"the manifest has no object {name!r}.")
    return value


def recorded_rows(manifest: Mapping[str, Any]) -> tuple[Place, np.ndarray] | None:
    """The FFN whose known rows a manifest records, and their first channels (T, C).

    Raises:
        ManifestError: when the record is no such thing.
    """
    proof = manifest.get("proof")
    if not isinstance(proof, Mapping) or proof.get("first_outputs") is None:
        return None
    try:
        outputs = np.array(proof["first_outputs"], np.float64)
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest's proof is damaged: {error}.") from error
    if outputs.ndim != 2 or len(outputs) != ROWS or not np.isfinite(outputs).all():
        raise ManifestError(f"the manifest's proof has no {ROWS} finite rows.")
    return _first_place(proof), outputs


def leading_of(manifest: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The leading axes of the FFNs that a manifest records, which shapes may leave open.

    Returns:
        Of ``layer`` and ``expert`` those that are there; None where nothing is recorded.

    Raises:
        ManifestError: when the record is damaged.
    """
    proof = None if manifest is None else manifest.get("proof")
    if not isinstance(proof, Mapping):
        return None
    place = _first_place(proof)
    axes = ("layer", place.layer), ("expert", place.expert)
    return tuple(axis for axis, number in axes if number is not None)


def prefixes_of(manifest: Mapping[str, Any] | None) -> tuple[Prefix, ...] | None:
    """Where the FFNs of a converted checkpoint stand; None where no manifest says.

    Raises:
        ManifestError: when the record is damaged.
    """
    if manifest is None or "checkpoint" not in manifest:
        return None
    recorded = section(manifest, "checkpoint").get("prefixes")
    if not isinstance(recorded, list) or not recorded:
        raise ManifestError("the manifest's checkpoint has no list of prefixes.")
    try:
        return tuple(decode(Prefix, entry, "checkpoint.prefixes") for entry in recorded)
    except GluLabError as error:
        raise ManifestError(f"the manifest's prefixes are damaged: {error}") from error


def _first_place(proof: Mapping[str, Any]) -> Place:
    try:
        first = proof["evaluated_ffns"][0]
        place = Place(first["stack"], first["layer"], first["expert"])
    except (KeyError, IndexError, TypeError) as error:
        raise ManifestError(f"the manifest's proof names no FFN: {error!r}.") from error
    numbers = (place.layer, place.expert)
    if not isinstance(place.stack, str) or not all(isinstance(n, int | None) for n in numbers):
        raise ManifestError(f"the manifest's proof names no FFN: {place!r}.")
    return place

"""What a checkpoint's files prove, what they cannot, and which layouts remain possible.

Only names, shapes and types are read. What a manifest or config beside them states is reported as
stated, never as proven.

Dimension letters: D d_model, F d_ff, N branches, P tensor-parallel degree.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import GluLabError
from glu_lab.files.tensor_file import TensorFile
from glu_lab.files.tensors import open_ranks
from glu_lab.layouts.checkpoint_manifest import ManifestError, layout_of, spec_of
from glu_lab.layouts.claims import Claims, claims_of
from glu_lab.layouts.document import packing
from glu_lab.layouts.function import branches_from_config
from glu_lab.layouts.hints import some
from glu_lab.layouts.layout import Layout
from glu_lab.layouts.lookup import layouts_of_model_type
from glu_lab.layouts.match import Candidate, Matches, match
from glu_lab.spec.formula import formula
from glu_lab.spec.variants import variant_name


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        path: what was opened.
        format: kind of the files.
        ranks: P.
        tensors, nbytes: of all ranks.
        dtypes: element type → how many tensors.
        proven: what names, shapes and types leave no doubt about, a sentence each.
        unproven: what they leave open.
        stated: what a manifest or config says: it may be wrong.
        candidates: the layouts that remain possible, the likelier first.
        rejected: layout → why, where names are like its own.
        nearest: without a candidate, layouts of similar names.
    """

    path: Path
    format: str
    ranks: int
    tensors: int
    nbytes: int
    dtypes: Mapping[str, int]
    proven: tuple[str, ...]
    unproven: tuple[str, ...]
    stated: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    rejected: Mapping[str, str]
    nearest: tuple[str, ...]


def inspect(
    path: Path,
    *,
    step: int | None = None,
    config: Path | None = None,
    layouts: Mapping[str, Layout] | None = None,
) -> Inspection:
    """Looks at a checkpoint.

    Args:
        path: of any kind that `open_ranks` opens.
        step: of a training run's checkpoint; None for the newest.
        config: a model's config; by default the ``config.json`` beside the tensors.
        layouts: the layouts to try; by default the built-in ones.

    Raises:
        FileFormatError, RecordError: when the files cannot be read.
        ManifestError: for a damaged manifest.
    """
    path = Path(path)
    claims = claims_of(path, config)
    with open_ranks(path, step) as files:
        first = files[0]
        shapes = {name: first.info(name).shape for name in first}
        found = match(shapes, layouts)
        infos = [file.info(name) for file in files for name in file]
        return Inspection(
            path=path,
            format=first.format,
            ranks=len(files),
            tensors=len(infos),
            nbytes=sum(info.nbytes for info in infos),
            dtypes=collections.Counter(info.encoding or info.dtype.name for info in infos),
            proven=tuple(_proven(found, files)),
            unproven=tuple(_unproven(found)),
            stated=tuple(_stated(claims, found)),
            candidates=found.candidates,
            rejected=found.rejected,
            nearest=found.nearest,
        )


def _proven(found: Matches, files: Sequence[TensorFile]) -> list[str]:
    """What all candidates agree on, and what the files say of themselves."""
    lines = []
    for name, letter in (("branch", "N"), ("embed", "D"), ("mlp", "F")):
        sizes = {candidate.sizes.get(name) for candidate in found.candidates}
        if len(sizes) == 1 and None not in sizes:
            (size,) = sizes
            what = {"branch": "branches", "embed": "d_model", "mlp": "d_ff"}[name]
            whole = f" in each rank, {size * len(files)} in all" if size is not None else ""
            per_rank = name == "mlp" and len(files) > 1
            lines.append(f"{what} {letter} = {size}{whole if per_rank else ''}")
    counts = {candidate.ffns for candidate in found.candidates}
    if len(counts) == 1:
        lines.append(f"{counts.pop()} FFNs, counting layers and experts")
    biases = {candidate.biases for candidate in found.candidates}
    if len(biases) == 1:
        what = {"bi": "branches", "bp": "the product", "bo": "the output"}
        (held,) = biases
        lines.append(
            "biases of " + ", ".join(what[piece] for piece in held) if held else "no biases"
        )
    if len(files) > 1:
        lines.append(f"cut into {len(files)} tensor-parallel ranks")
    for rank, file in enumerate(files):
        for names in file.aliases:
            of = f" of rank {rank}" if len(files) > 1 else ""
            lines.append(f"one storage under several names{of}: {some(names)}")
    return lines


def _unproven(found: Matches) -> list[str]:
    """What tensors of these names and shapes never say."""
    lines = list(found.undecided)
    gated = [c for c in found.candidates if c.sizes["branch"] > 1]
    if gated and not any(line.startswith("branch order") for line in lines):
        names = dict.fromkeys(
            row.name
            for candidate in gated
            for row in candidate.layout.rows(candidate.sizes["branch"])
            if row.holds == "wi"
        )
        lines.append(
            f"gate or up: which part of {some(names)} is the activated one; names follow a "
            "convention, and both parts have one shape"
        )
    packed = dict.fromkeys(
        row.name
        for candidate in gated
        for row in candidate.layout.rows(candidate.sizes["branch"])
        if row.holds == "wi"
        and packing(candidate.layout, row).startswith(("concatenated", "interleaved"))
    )
    if packed and not any(line.startswith("packing") for line in lines):
        lines.append(
            f"contiguous or interleaved: how branches lie in {some(packed)}; the shape is the same"
        )
    functions = {text for candidate in found.candidates for text in candidate.functions}
    anything = any(not candidate.functions for candidate in found.candidates)
    if anything or all(any(kind in text for text in functions) for kind in ("_tanh", "_erf")):
        lines.append(
            "tanh or erf: which GELU, if it is one; no tensor depends on the approximation"
        )
    if any(c.sizes.get("mlp") == c.sizes.get("embed") is not None for c in found.candidates):
        lines.append("in,out or out,in: D = F, so that no shape tells the orientation")
    return lines


def _stated(claims: Claims, found: Matches) -> list[str]:
    """What stands beside the tensors."""
    lines = []
    if claims.manifest is not None:
        try:
            layout, spec = layout_of(claims.manifest), spec_of(claims.manifest)
        except ManifestError as error:
            lines.append(f"manifest.json states nothing that can be used: {error}")
        else:
            lines.append(
                f"manifest.json: layout {layout.name}, function {variant_name(spec)}, "
                f"{formula(spec)} (glu-lab verify holds it against the tensors)"
            )
            if layout.name not in {c.layout.name for c in found.candidates}:
                lines.append(f"manifest.json contradicts the tensors: they cannot be {layout.name}")
    if claims.config is not None:
        lines += _from_config(claims.config, str(claims.config_path), found)
    return lines


def _from_config(config: Mapping[str, Any], where: str, found: Matches) -> list[str]:
    lines = []
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        rows = layouts_of_model_type(model_type)
        known = ", ".join(row.name for row in rows) or "no layout of the table"
        lines.append(f"{where}: model_type {model_type!r}, stored as {known}")
    said: dict[str, list[str]] = {}
    for candidate in found.candidates:
        if not candidate.layout.function.variant and not candidate.layout.function.rules:
            continue
        try:
            branches = branches_from_config(candidate.layout, config)
        except GluLabError:
            continue
        product = "*".join(str(branch.activation) for branch in branches)
        said.setdefault(product, []).append(candidate.layout.name)
    lines += [f"{where}: as {', '.join(names)}, {text}" for text, names in said.items()]
    return lines

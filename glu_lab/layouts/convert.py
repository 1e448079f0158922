"""Converts a checkpoint from one layout to another: planned, streamed, proven, then named.

Everything that names, shapes and values can refuse is refused before the first byte is written. The
target is built in a hidden folder beside its place, read back, evaluated by rows against the
source, and renamed as the last step.

Dimension letters: D d_model, F d_ff, P tensor-parallel degree.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glu_lab.errors import SpecError
from glu_lab.files.atomic import write_json
from glu_lab.files.contents import non_finite, tensor_sha256
from glu_lab.files.safetensors_writer import described, entry_from, write_shards
from glu_lab.files.staging import check_target, staged_folder
from glu_lab.files.tensor_file import TensorFile
from glu_lab.files.tensors import RankFiles, open_ranks
from glu_lab.layouts.checkpoint_manifest import (
    FILE,
    Record,
    checkpoint_manifest,
    layout_of,
    leading_of,
    prefixes_of,
    recorded_rows,
)
from glu_lab.layouts.claims import Claims, check_layout, claims_of, function_of
from glu_lab.layouts.conversion import Conversion, Progress, Request, Rest
from glu_lab.layouts.hints import some
from glu_lab.layouts.inventory import Inventory, Stored, take_stock
from glu_lab.layouts.layout import LayoutError, Prefix
from glu_lab.layouts.lookup import find
from glu_lab.layouts.outputs import Key, Output
from glu_lab.layouts.plan import Plan, plan
from glu_lab.layouts.proof import (
    RECORDED_TOLERANCE,
    compare,
    evaluate,
    known_rows,
    places_of,
    prove,
)
from glu_lab.layouts.streams import announced, cached, entry_of, is_copied


def convert(request: Request, progress: Progress = lambda *_: None) -> Conversion:
    """Runs one conversion.

    Args:
        request: what to do.
        progress: told of each step.

    Returns:
        What was written. The source is only read.

    Raises:
        UnknownNameError: for a layout that does not exist, with the nearest.
        LayoutError: for tensors that are missing, unknown, of no FFN, not finite, or do not fit
            either layout; a function that nobody states, or two state differently; a width that the
            ranks do not divide. All before anything is written.
        ProofError: when the target's tensors do not compute what the source's do, or the source's
            not what its manifest recorded; nothing is left behind.
        FileFormatError, RecordError: for a source that cannot be read, a target that exists or
            cannot be written.
    """
    target_layout = find(request.target_layout, request.layouts)
    named = request.source_layout
    source_layout = None if named is None else find(named, request.layouts)
    check_target(request.target, sources=[request.source])
    claims = claims_of(request.source, request.config)
    if source_layout is None:
        if claims.manifest is None:
            raise SpecError(
                f"{request.source} has no manifest that states its layout; name it (glu-lab "
                "layouts lists them, glu-lab inspect says which are possible)."
            )
        source_layout = layout_of(claims.manifest)
    with open_ranks(request.source, request.step) as files:
        check_layout(claims, source_layout, files[0].names())
        by_rank = [_infos(file) for file in files]
        leading = leading_of(claims.manifest) if request.leading is None else request.leading
        prefixes = _prefixes(request.source_prefix) or prefixes_of(claims.manifest)
        spec, function_from = function_of(
            claims,
            source_layout,
            by_rank,
            variant=request.variant,
            experts=request.experts,
            prefixes=prefixes,
            leading=leading,
        )
        placed = None
        if request.target_prefix is not None:
            stock = take_stock(source_layout, by_rank, spec, prefixes=prefixes, leading=leading)
            placed = _prefixes(request.target_prefix, *stock.places())
        planned = plan(
            source_layout,
            target_layout,
            by_rank,
            spec,
            ranks=request.ranks,
            source_prefixes=prefixes,
            target_prefixes=placed,
            leading=leading,
            zero_biases=request.zero_biases,
        )
        kept = _rest(planned, by_rank, request.rest)
        job = _Job(request, claims, files, planned, placed, kept, function_from, progress)
        job.check_target_names()
        hashes = job.check_values()
        job.check_recorded_rows()
        with staged_folder(request.target) as staged:
            return job.write(staged, hashes)


def _infos(file: TensorFile) -> dict[str, Stored]:
    return {name: file.info(name) for name in file}


def _prefixes(template: str | None, *stacks: str) -> tuple[Prefix, ...] | None:
    """The user's prefix, of the one stack that there is."""
    stack = stacks[0] if len(stacks) == 1 else "decoder"
    return None if template is None else (Prefix(template=template, stack=stack),)


def _rest(planned: Plan, by_rank: Sequence[Mapping[str, Stored]], policy: Rest) -> list[list[str]]:
    """The tensors of no FFN that each target rank carries.

    Raises:
        LayoutError: when they are to be refused, or lie in several ranks that do not stay.
    """
    own = {named.name for named in planned.source.recognised.named}
    held = [[name for name in tensors if name not in own] for tensors in by_rank]
    names = list(dict.fromkeys(name for rank in held for name in rank))
    if names and policy == "refuse":
        what = [
            f"{name!r} ({planned.outside[name]})" if name in planned.outside else repr(name)
            for name in names[:6]
        ]
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        raise LayoutError(
            f"{planned.source.layout.name}: {len(names)} tensors are of no FFN and would be "
            f"dropped: {', '.join(what)}{more}. Keep them unconverted (--rest keep), or convert a "
            "file without them."
        )
    if any(held[1:]) and len(by_rank) != planned.ranks:
        cut = list(dict.fromkeys(name for rank in held[1:] for name in rank))
        raise LayoutError(
            f"{planned.source.layout.name}: {some(cut)} of no FFN lie in several of "
            f"{len(by_rank)} ranks, and how they are cut is not known; they can be kept for "
            f"{len(by_rank)} ranks, not for {planned.ranks}."
        )
    return [held[rank] if rank < len(held) else [] for rank in range(planned.ranks)]


@dataclasses.dataclass(frozen=True)
class _Job:
    """A planned conversion over open files."""

    request: Request
    claims: Claims
    files: RankFiles
    planned: Plan
    target_prefixes: tuple[Prefix, ...] | None
    kept: list[list[str]]
    function_from: str
    progress: Progress

    def outputs(self, rank: int) -> list[Output]:
        return [output for output in self.planned.outputs if output.key.rank == rank]

    def kept_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for rank in self.kept for name in rank))

    def stock(self, by_rank: Sequence[Mapping[str, Stored]]) -> Inventory:
        """The target's tensors as the target's own layout reads them."""
        places = places_of(self.planned.source)
        leading = tuple(
            axis
            for axis, has in (
                ("layer", any(place.layer is not None for place in places)),
                ("expert", any(place.expert is not None for place in places)),
            )
            if has
        )
        planned, prefixes = self.planned, self.target_prefixes
        return take_stock(planned.target, by_rank, planned.spec, prefixes=prefixes, leading=leading)

    def check_target_names(self) -> None:
        """Reads the target by its own layout, from names and shapes alone."""
        by_rank: list[Mapping[str, Stored]] = []
        for rank in range(self.planned.ranks):
            infos: dict[str, Stored] = {
                output.key.name: described(output.key.name, output.shape, output.dtype)
                for output in self.outputs(rank)
            }
            for name in self.kept[rank]:
                if name in infos:
                    raise LayoutError(
                        f"{name!r} is of no FFN and would be kept, and {self.planned.target.name} "
                        "gives an FFN tensor the same name."
                    )
                infos[name] = self.files[min(rank, len(self.files) - 1)].info(name)
            by_rank.append(infos)
        self.stock(by_rank)

    def check_values(self) -> dict[Key, str]:
        """Refuses values that are not finite; hashes the tensors that are not merely copied.

        Raises:
            LayoutError: naming the tensors, for NaN anywhere and infinities in an FFN.
        """
        own = {named.name for named in self.planned.source.recognised.named}
        copied = {o.renames for o in self.planned.outputs if is_copied(o, self.files)}
        hashes: dict[Key, str] = {}
        bad = []
        for rank, file in enumerate(self.files):
            self.progress("checking", rank, len(self.files))
            where = f" of rank {rank}" if len(self.files) > 1 else ""
            for name, count in non_finite(file).items():
                if count.nan or name in own:
                    kinds = [f"{count.nan:,} NaN"] if count.nan else []
                    kinds += [f"{count.infinite:,} infinite"] if count.infinite else []
                    bad.append(f"{name!r}{where} ({' and '.join(kinds)} of {count.size:,})")
            if not bad:
                for name in file:
                    if name in own and Key(name, rank) not in copied:
                        hashes[Key(name, rank)] = tensor_sha256(file, name)
        self.progress("checking", len(self.files), len(self.files))
        if bad:
            more = f" and {len(bad) - 6} more" if len(bad) > 6 else ""
            raise LayoutError(
                f"weights that are not finite: {', '.join(bad[:6])}{more}. Nothing was written."
            )
        return hashes

    def check_recorded_rows(self) -> None:
        """Holds the source's formula against the rows that its manifest recorded."""
        recorded = None if self.claims.manifest is None else recorded_rows(self.claims.manifest)
        if recorded is None:
            return
        place, outputs = recorded
        stock = self.planned.source
        ours = evaluate(stock, cached(self.files), place, known_rows(stock.spec.d_model))
        what = f"the source's manifest, read as {stock.layout.name},"
        compare(ours, outputs, stock.spec, what, RECORDED_TOLERANCE)

    def write(self, staged: Path, source_hashes: Mapping[Key, str]) -> Conversion:
        """Fills the hidden folder, proves it, and writes its manifest."""
        planned, request = self.planned, self.request
        folders = [f"mp_rank_{r:02d}" for r in range(planned.ranks)] if planned.ranks > 1 else []
        total = sum(output.nbytes for output in planned.outputs) + sum(
            self.files[min(rank, len(self.files) - 1)].info(name).nbytes
            for rank, names in enumerate(self.kept)
            for name in names
        )
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            self.progress("writing", done, total)

        records: list[Record] = []
        for rank in range(planned.ranks):
            folder = staged / folders[rank] if folders else staged
            entries = [entry_of(output, self.files, advance) for output in self.outputs(rank)]
            origin = self.files[min(rank, len(self.files) - 1)]
            entries += [announced(entry_from(origin, name), advance) for name in self.kept[rank]]
            written = write_shards(
                folder, entries, {"format": "pt"}, max_shard_bytes=request.shard_bytes
            )
            start = f"{folders[rank]}/" if folders else ""
            records += [
                Record(t.name, rank, start + t.file, t.shape, t.dtype, t.sha256)
                for t in written.tensors
            ]
        self.progress("writing", total, total)
        with open_ranks(staged) as made:
            stock = self.stock([_infos(file) for file in made])
            proof = prove(
                planned.source,
                cached(self.files),
                stock,
                cached(made),
                every=request.every,
                on_ffn=lambda done, of: self.progress("proving", done, of),
            )
        named = {item.name: item for item in stock.recognised.named}
        digests = {Key(record.name, record.rank): record.sha256 for record in records}
        document = checkpoint_manifest(
            spec=planned.spec,
            layout=planned.target,
            settings=planned.settings,
            records=records,
            named=named,
            aliases=self._aliases(digests),
            folders=folders,
            replicated=planned.replicated,
            created=list(dict.fromkeys(o.key.name for o in planned.outputs if not o.full)),
            kept={name: planned.outside.get(name, "of no FFN") for name in self.kept_names()},
            proof=proof,
            source=self._provenance(source_hashes, digests),
            training=None if self.claims.manifest is None else self.claims.manifest.get("training"),
            revision=request.revision,
        )
        write_json(staged / FILE, document)
        return Conversion(
            request.target, planned, self.function_from, proof, self.kept_names(), total, document
        )

    def _aliases(self, digests: Mapping[Key, str]) -> list[list[Key]]:
        """Tensors of the target that were made of one and the same storage, and are equal."""
        first = {
            Key(name, rank): Key(names[0], rank)
            for rank, file in enumerate(self.files)
            for names in file.aliases
            for name in names
        }
        made = [(output.key, output.inputs) for output in self.planned.outputs]
        made += [(Key(n, rank), (Key(n, rank),)) for rank, ns in enumerate(self.kept) for n in ns]
        equal: dict[Any, list[Key]] = {}
        for key, inputs in made:
            if any(source in first for source in inputs):
                storage = tuple(first.get(source, source) for source in inputs)
                equal.setdefault((storage, digests[key]), []).append(key)
        return [keys for keys in equal.values() if len(keys) > 1]

    def _provenance(self, hashes: Mapping[Key, str], digests: Mapping[Key, str]) -> dict[str, Any]:
        """What was converted: files, and the hash of every tensor that was read."""
        known = dict(hashes)
        for output in self.planned.outputs:
            if output.renames is not None:
                known.setdefault(output.renames, digests[output.key])
        for rank, names in enumerate(self.kept):
            known.update({Key(name, rank): digests[Key(name, rank)] for name in names})
        config = self.claims.config_path
        return {
            "path": str(self.request.source.resolve()),
            "format": self.files[0].format,
            "layout": self.planned.source.layout.name,
            "tensor_parallel": len(self.files),
            "function_from": self.function_from,
            "config": None if config is None else str(config),
            "tensors": [
                {"name": key.name, "rank": key.rank, "sha256": digest}
                for key, digest in sorted(known.items(), key=lambda item: item[0][::-1])
            ],
            "aliases": [
                {"rank": rank, "names": list(names)}
                for rank, file in enumerate(self.files)
                for names in file.aliases
            ],
        }

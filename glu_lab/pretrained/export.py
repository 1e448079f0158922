"""A training run as a checkpoint of Hugging Face: config, weights, tokenizer, manifest."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from glu_lab.errors import RecordError, UnknownNameError
from glu_lab.files.atomic import write_bytes, write_json
from glu_lab.files.safetensors_writer import described, write_shards
from glu_lab.files.staging import check_target, staged_folder
from glu_lab.files.strict_json import parse_object
from glu_lab.files.tensor_file import TensorFile
from glu_lab.files.tensors import open_tensors
from glu_lab.layers.params import unflatten
from glu_lab.layouts.checkpoint_manifest import FILE, Record, checkpoint_manifest, read_manifest
from glu_lab.layouts.conversion import SHARD_BYTES
from glu_lab.layouts.function import fit
from glu_lab.layouts.inventory import Stored, take_stock
from glu_lab.layouts.lookup import CANONICAL
from glu_lab.layouts.proof import RowProof, prove
from glu_lab.layouts.streams import announced, cached
from glu_lab.pretrained.families import family_of
from glu_lab.pretrained.hugging_face import ModelType, write_config
from glu_lab.pretrained.weights import ffn_layout, origins, write_tensors
from glu_lab.spec.codec import decode, encode
from glu_lab.spec.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        target: the folder.
        step: of the run's checkpoint.
        model_type: as which architecture.
        tensors, nbytes: of the weights.
        proof: of the FFNs, by rows.
    """

    target: Path
    step: int
    model_type: str
    tensors: int
    nbytes: int
    proof: RowProof


def export(
    workdir: Path,
    target: Path,
    model_type: str,
    *,
    step: int | None = None,
    tokenizer: str = "tokenizer.model",
    shard_bytes: int = SHARD_BYTES,
    revision: str | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Export:
    """Writes a run's model so that transformers loads it.

    Args:
        workdir: the run's folder.
        target: the folder to be.
        model_type: ``llama``, ``mistral``, ``qwen2``, ``qwen3`` or ``t5``.
        step: of the checkpoint; None for the newest.
        tokenizer: name of the tokenizer's file in the run's folder.
        shard_bytes: of one file of weights.
        revision: of the source tree, for the manifest.
        progress: told of bytes written, and of how many.

    Returns:
        What was written; the run is only read, and the target appears whole or not at all.

    Raises:
        UnknownNameError: for another architecture.
        LayoutError: when that architecture does not compute the run's model, with what differs.
        RecordError: for a folder that is no run, or a target that exists.
        ProofError: when the FFNs written do not compute what the run's do.
    """
    if model_type not in get_args(ModelType):
        raise UnknownNameError("architecture", model_type, get_args(ModelType))
    workdir, target = Path(workdir), Path(target)
    check_target(target, sources=[workdir])
    if not (workdir / "config.json").is_file():
        raise RecordError(f"{workdir} is no run of `glu-lab train`: config.json is missing.")
    experiment = decode(
        Experiment, parse_object((workdir / "config.json").read_bytes(), f"{workdir}/config.json")
    )
    model = experiment.model
    config = write_config(model, model_type)  # pyright: ignore[reportArgumentType] checked above
    family = family_of("hf", model_type)
    layout = ffn_layout(family, model)
    with open_tensors(workdir, step) as file:
        tensors = write_tensors(family, unflatten({name: file.read(name) for name in file}), model)
        total = sum(array.nbytes for array in tensors.values())
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, total)

        with staged_folder(target) as staged:
            entries = [
                announced((described(name, array.shape, array.dtype), lambda a=array: a), advance)
                for name, array in tensors.items()
            ]
            written = write_shards(staged, entries, {"format": "pt"}, max_shard_bytes=shard_bytes)
            records = [
                Record(t.name, 0, t.file, t.shape, t.dtype, t.sha256) for t in written.tensors
            ]
            with open_tensors(staged) as made:
                source = take_stock(CANONICAL, [_infos(file)], model.ffn)
                stock = take_stock(layout, [_infos(made)], model.ffn)
                proof = prove(source, cached([file]), stock, cached([made]))
            manifest = read_manifest(workdir)
            document = checkpoint_manifest(
                spec=model.ffn,
                layout=layout,
                settings=fit(layout, model.ffn).settings,
                records=records,
                named={item.name: item for item in stock.recognised.named},
                aliases=[],
                folders=[],
                replicated=[],
                created=[],
                kept={},
                proof=proof,
                source=_provenance(workdir, file, manifest),
                training=None if manifest is None else manifest.get("training"),
                revision=revision,
                model={"spec": encode(model), "family": family.name},
                parameters=origins(family, model),
            )
            write_json(staged / "config.json", config)
            _write_tokenizer(workdir / tokenizer, staged)
            write_json(staged / FILE, document)
        return Export(target, file.metadata["step"], model_type, len(tensors), total, proof)


def _infos(file: TensorFile) -> dict[str, Stored]:
    return {name: file.info(name) for name in file}


def _provenance(workdir: Path, file: TensorFile, manifest: Any) -> dict[str, Any]:
    identity = None if manifest is None else manifest.get("identity_hash")
    return {
        "path": str(workdir.resolve()),
        "format": file.format,
        "layout": CANONICAL.name,
        "tensor_parallel": 1,
        "function_from": "config of the run",
        "config": str((workdir / "config.json").resolve()),
        "tensors": [],
        "aliases": [],
        "run": identity,
        "step": file.metadata["step"],
    }


def _write_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer under the names by which transformers finds it."""
    if not source.is_file():
        return
    content = source.read_bytes()
    if not content.startswith(b"{"):
        write_bytes(folder / "spiece.model", content)
        return
    document = parse_object(content, str(source))
    tokenizer = document["tokenizer"]
    write_json(folder / "tokenizer.json", tokenizer)
    names = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    names |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    roles = {f"{role}_token": names[document[f"{role}_id"]] for role in ("eos", "pad")}
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, **roles},
    )

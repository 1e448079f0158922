"""Artefacts that lie in memory or on the disk as tensors: a checkpoint, a conversion of one.

Dimension letters: D d_model, F d_ff, L layers, P tensor-parallel ranks.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glu_lab.conformance.failures.functions import draw
from glu_lab.errors import GluLabError
from glu_lab.files.contents import non_finite
from glu_lab.files.safetensors_writer import described, write_safetensors
from glu_lab.files.tensors import open_ranks
from glu_lab.layouts.conversion import Request
from glu_lab.layouts.convert import convert
from glu_lab.layouts.lookup import find
from glu_lab.layouts.match import match
from glu_lab.layouts.plan import plan
from glu_lab.layouts.transform import from_canonical
from glu_lab.spec.ffn import FFN
from glu_lab.spec.variants import variant

Tensors = Mapping[str, np.ndarray]

#: D, F and L of the checkpoints on the disk.
SIZES = (6, 8, 2)


def stored(layout: str, spec: FFN, seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of one drawn FFN in a layout."""
    tensors = from_canonical(find(layout), draw(spec, 1, seed)[0], spec)
    return {name: np.ascontiguousarray(value) for name, value in tensors.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors that are said to be of a Spec.

    Attributes:
        layout: name of the layout that they lie in.
        tensors: name → array, of one FFN in ``gate_proj``, ``up_proj``, ``down_proj``.
        spec: the Spec.
    """

    layout: str
    tensors: Tensors
    spec: FFN

    def seems_right(self) -> bool:
        """A loader that takes weights by name and asks nothing runs, and gives finite rows."""
        x = draw(self.spec, 4)[1]
        held = {name.removesuffix(".weight"): value for name, value in self.tensors.items()}
        try:
            hidden = np.tanh(x @ held["gate_proj"].T)
            if "up_proj" in held:
                hidden = hidden * (x @ held["up_proj"].T)
            y = x + hidden @ held["down_proj"].T
        except ValueError:
            return False
        return y.shape == x.shape and bool(np.isfinite(y).all())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """What a converter made of the tensors of one FFN.

    Attributes:
        source_layout, target_layout: names.
        source, target: name → array, one mapping a rank.
        spec: their function.
    """

    source_layout: str
    source: Sequence[Tensors]
    target_layout: str
    target: Sequence[Tensors]
    spec: FFN

    def with_target(self, target: Sequence[Tensors]) -> "Converted":
        """The same source beside another result."""
        return dataclasses.replace(self, target=target)

    def seems_right(self) -> bool:
        """Every name, shape and dtype is that of the target layout."""
        outputs = plan(
            find(self.source_layout),
            find(self.target_layout),
            self.source,
            self.spec,
            ranks=len(self.target),
        ).outputs
        wanted = {output.key: (output.shape, output.dtype) for output in outputs}
        there = {
            (name, rank): (array.shape, array.dtype)
            for rank, tensors in enumerate(self.target)
            for name, array in tensors.items()
        }
        return there == wanted


def conversion(
    source_layout: str,
    target_layout: str,
    spec: FFN,
    *,
    source_ranks: int = 1,
    ranks: int = 1,
) -> Converted:
    """The product's own conversion of a drawn FFN."""
    source: Sequence[Tensors] = [stored(source_layout, spec)]
    if source_ranks > 1:
        layout = find(source_layout)
        source = plan(layout, layout, source[0], spec, ranks=source_ranks).run(source)
    made = plan(find(source_layout), find(target_layout), source, spec, ranks=ranks).run(source)
    return Converted(
        source_layout=source_layout,
        source=source,
        target_layout=target_layout,
        target=[{n: np.ascontiguousarray(a) for n, a in tensors.items()} for tensors in made],
        spec=spec,
    )


# On the disk.


def write_llama(folder: Path, config: Mapping[str, Any] | None = None, seed: int = 0) -> Path:
    """A folder with the FFN tensors of a small Llama, and perhaps a config; no manifest.

    Returns:
        The folder.
    """
    D, F, L = SIZES
    spec = variant("swiglu", d_model=D, d_ff=F)
    tensors = {
        f"model.layers.{number}.mlp.{name}": array.astype(np.float32)
        for number in range(L)
        for name, array in stored("hf-llama", spec, seed + number).items()
    }
    folder.mkdir(parents=True)
    write_tensors(folder, tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_tensors(folder: Path, tensors: Tensors) -> None:
    """One safetensors file in a folder, in the place of an earlier one."""

    def producer(array: np.ndarray) -> Any:
        return lambda: array

    entries = [(described(n, a.shape, a.dtype), producer(a)) for n, a in tensors.items()]
    write_safetensors(folder / "model.safetensors", entries, {"format": "pt"}, overwrite=True)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of a folder, copied."""
    with open_ranks(folder) as files:
        return {name: np.array(files[0].read(name)) for name in files[0]}


def request(source: Path, target: Path, **fields: Any) -> Request:
    """A conversion of the small Llama to packed tensors, unless said otherwise."""
    settings: dict[str, Any] = {
        "source_layout": "hf-llama",
        "target_layout": "hf-phi3",
        "variant": "swiglu",
    }
    return Request(source=source, target=target, **(settings | fields))


def released(folder: Path, seed: int = 0, **fields: Any) -> Path:
    """A converted checkpoint with its manifest, in a folder beside its source.

    Returns:
        Its folder.
    """
    target = folder / "released"
    convert(request(write_llama(folder / "source", seed=seed), target, **fields))
    return target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """A checkpoint on the disk, as it is shipped.

    Attributes:
        path: its folder.
    """

    path: Path

    def seems_right(self) -> bool:
        """It opens, has tensors, and every number is finite."""
        with open_ranks(self.path) as files:
            bad = [name for file in files for name in non_finite(file)]
            return not bad and all(len(file) > 0 for file in files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion that somebody asks for.

    Attributes:
        request: what is asked.
        layout: the layout that the source is in, where the request leaves it to a manifest.
    """

    request: Request
    layout: str = "hf-llama"

    def seems_right(self) -> bool:
        """The source's names and shapes are those of its layout."""
        try:
            with open_ranks(self.request.source) as files:
                shapes = {name: files[0].info(name).shape for name in files[0]}
        except GluLabError:
            return False
        wanted = self.request.source_layout or self.layout
        return wanted in {candidate.layout.name for candidate in match(shapes).candidates}


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a manifest in its place."""
    path = folder / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")

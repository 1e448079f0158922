"""The tensors of a whole model as canonical parameters, and back, bit for bit.

Every stored tensor is used or named in an error, and so is every parameter of the model.

Dimension letters: D d_model, H heads, G key/value heads, K head width, V vocabulary, L layers.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import einops
import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layers.params import flatten, leaves, unflatten
from glu_lab.layouts import find, from_canonical, to_canonical
from glu_lab.layouts.hints import some
from glu_lab.layouts.layout import Layout
from glu_lab.layouts.names import pattern, recognise
from glu_lab.models import parameters
from glu_lab.pretrained.families import Family, Weight
from glu_lab.spec.model import Model

#: Gives the array of a stored tensor.
Read = Callable[[str], np.ndarray]


def axis_sizes(model: Model) -> dict[str, int]:
    """The size of every axis that a pattern can name."""
    heads = model.attention
    return {
        "vocab": model.vocab_size,
        "embed": model.d_model,
        "heads": heads.num_heads,
        "kv": heads.num_kv_heads,
        "head": heads.head_dim,
        "half": 2,
        "pair": heads.head_dim // 2,
        "buckets": model.positions.num_buckets,
    }


def _stacks(model: Model) -> dict[str, int]:
    """Stack → number of its layers."""
    stacks = {"decoder": model.num_layers}
    if model.num_encoder_layers:
        stacks["encoder"] = model.num_encoder_layers
    return stacks


def _layers_of(path: str, model: Model) -> int | None:
    """How many layers share a path; None for a parameter that is there once."""
    stack, _, rest = path.partition("/")
    return _stacks(model)[stack] if rest.startswith("layers/") else None


def _rearranged(array: np.ndarray, row: Weight, sizes: Mapping[str, int], name: str) -> np.ndarray:
    stored = row.pattern.split("->")[0]
    named = {axis: sizes[axis] for axis in _axes(stored) if axis in sizes}
    try:
        return einops.rearrange(array, row.pattern, **named)
    except einops.EinopsError as error:
        wanted = " ".join(f"{axis}={size}" for axis, size in named.items())
        raise LayoutError(
            f"{name!r} has shape {array.shape}; the model's is {stored.strip()} with {wanted}."
        ) from error


def _axes(side: str) -> list[str]:
    return side.replace("(", " ").replace(")", " ").split()


def _written(row: Weight) -> Weight:
    """The row read backwards."""
    stored, canonical = row.pattern.split(" -> ")
    return row._replace(pattern=f"{canonical} -> {stored}")


def ffn_layout(family: Family, model: Model) -> Layout:
    """How the FFNs of a model lie in a family.

    Raises:
        LayoutError: when the family has none of so many branches.
    """
    count = model.ffn.num_branches
    if count not in family.ffn:
        raise LayoutError(
            f"{family.name} stores FFNs of {' or '.join(map(str, family.ffn))} branches; the "
            f"model's have {count}."
        )
    return find(family.ffn[count])


def read_params(family: Family, names: Collection[str], read: Read, model: Model) -> dict[str, Any]:
    """Canonical parameters of a model, of the dtypes that are stored.

    Args:
        family: how the tensors lie.
        names: all tensors of the checkpoint.
        read: gives their arrays, one after another.
        model: which function, and its sizes.

    Raises:
        LayoutError: naming tensors that are missing, unknown, of another shape, or that differ from
            the one that they must equal.
    """
    table = dict(leaves(parameters(model)))
    flat: dict[str, np.ndarray] = {}
    used: set[str] = set()
    missing: list[str] = []
    sizes = axis_sizes(model)

    def one(row: Weight, layer: int | None) -> np.ndarray | None:
        name = row.name if layer is None else row.name.replace("{layer}", str(layer))
        if name not in names:
            missing.append(name)
            return None
        used.add(name)
        return _rearranged(read(name), row, sizes, name)

    for row in family.weights:
        if row.path not in table:
            continue
        layers = _layers_of(row.path, model)
        if layers is None:
            found = one(row, None)
            if found is not None:
                flat[row.path] = found
            continue
        parts = [one(row, layer) for layer in range(layers)]
        present = [part for part in parts if part is not None]
        if len(present) == layers:
            flat[row.path] = np.stack(present)
    if missing:
        raise LayoutError(
            f"{family.name}: the checkpoint has no {some(missing)}, which the model needs."
        )
    flat |= _read_ffns(family, names, read, model, used)
    _check_rest(family, names, read, used)
    for path, parameter in table.items():
        if path not in flat:
            raise LayoutError(
                f"{family.name} stores no {path!r}, a parameter of the model; it cannot hold it."
            )
        if flat[path].shape != parameter.shape:
            raise LayoutError(
                f"{family.name}: {path!r} came out as {flat[path].shape}, the model's is "
                f"{parameter.shape}."
            )
    return unflatten(flat)


def _read_ffns(
    family: Family, names: Collection[str], read: Read, model: Model, used: set[str]
) -> dict[str, np.ndarray]:
    layout = ffn_layout(family, model)
    found = recognise(layout, names, model.ffn.num_branches)
    flat = {}
    for stack, layers in _stacks(model).items():
        mine = [named.name for named in found.named if named.prefix.stack == stack]
        used.update(mine)
        params = to_canonical(layout, {name: read(name) for name in mine}, model.ffn)
        for name, array in params.items():
            if len(array) != layers:
                raise LayoutError(
                    f"{family.name}: the checkpoint has {len(array)} FFNs in its {stack}; the "
                    f"model has {layers} layers."
                )
            flat[f"{stack}/layers/ffn/{name}"] = array
    return flat


def _check_rest(family: Family, names: Collection[str], read: Read, used: set[str]) -> None:
    """Holds copies against what they copy, and refuses every other tensor that is left."""
    copies = {alias.name: alias.of for alias in family.aliases}
    left = []
    for name in names:
        if name in used or any(pattern(known).fullmatch(name) for known in family.ignored):
            continue
        original = copies.get(name)
        if original is None:
            left.append(name)
        elif not np.array_equal(read(name), read(original)):
            raise LayoutError(
                f"{name!r} differs from {original!r}; in the model that is stated they are one. "
                "Is it one with an output matrix of its own (model.tie_embeddings=False)?"
            )
    if left:
        raise LayoutError(
            f"{family.name}: the model has no place for {some(left)}, and drops nothing silently."
        )


def write_tensors(family: Family, params: Mapping[str, Any], model: Model) -> dict[str, np.ndarray]:
    """The tensors of a family from canonical parameters; the inverse of `read_params`.

    Args:
        family: how the tensors shall lie.
        params: a tree of arrays, as `glu_lab.models.parameters` names them.
        model: their function.

    Returns:
        Name → array, contiguous; tied tensors once.

    Raises:
        LayoutError: for a parameter that the family has no place for.
    """
    flat = {path: np.asarray(array) for path, array in flatten(params).items()}
    sizes = axis_sizes(model)
    out: dict[str, np.ndarray] = {}
    done: set[str] = set()
    for row in family.weights:
        if row.path not in flat:
            continue
        done.add(row.path)
        array, back = flat[row.path], _written(row)
        if _layers_of(row.path, model) is None:
            out[row.name] = _rearranged(array, back, sizes, row.path)
            continue
        for name, part in zip(_numbered(row.name, len(array)), array, strict=True):
            out[name] = _rearranged(part, back, sizes, row.path)
    layout = ffn_layout(family, model)
    for stack in _stacks(model):
        start = f"{stack}/layers/ffn/"
        mine = {path.removeprefix(start): a for path, a in flat.items() if path.startswith(start)}
        done.update(start + name for name in mine)
        prefix = next(prefix for prefix in layout.prefixes if prefix.stack == stack)
        out |= from_canonical(layout, mine, model.ffn, leading=("layer",), prefix=prefix)
    if left := [path for path in flat if path not in done]:
        raise LayoutError(f"{family.name} has no place for the parameters {some(left)}.")
    return {name: np.ascontiguousarray(array) for name, array in out.items()}


def origins(family: Family, model: Model) -> dict[str, Weight]:
    """Tensor of a family outside of the FFNs → the row that it was written by."""
    table = dict(leaves(parameters(model)))
    out = {}
    for row in family.weights:
        if row.path in table:
            layers = _layers_of(row.path, model)
            names = [row.name] if layers is None else _numbered(row.name, layers)
            out |= dict.fromkeys(names, row)
    return out


def _numbered(name: str, layers: int) -> list[str]:
    return [name.replace("{layer}", str(layer)) for layer in range(layers)]

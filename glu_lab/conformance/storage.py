"""One cell of Spec × Layout: parameters stored, evaluated as they lie, and read back.

A layout's owner multiplies rows by the packed tensor first and splits the result after. That is
done here with the oracle's own index arithmetic, on the function that the owner's code computes
under the settings that the conversion reports; nothing is taken from the transforms that made the
tensors.

Dimension letters: T rows, D d_model, F d_ff, N branches, L layers, E experts.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from glu_lab.conformance.cases import Build, rounded
from glu_lab.conformance.cells import Result, raised
from glu_lab.conformance.measures import Compared, compare
from glu_lab.errors import LayoutError
from glu_lab.layouts import Layout, Tensor, branches_from_config, fit, from_canonical, to_canonical
from glu_lab.layouts.axes import Group, parse
from glu_lab.layouts.biases import check_biases
from glu_lab.oracle import ffn as oracle
from glu_lab.oracle import packing
from glu_lab.oracle.tolerances import tolerance
from glu_lab.spec.ffn import FFN, Branch
from glu_lab.spec.variants import branches_of, with_bias

#: F is a multiple of every interleave width of the table, and D does not divide it.
ROWS, D_MODEL, D_FF = 4, 12, 64

#: Sizes of the leading axes that a layout asks for: two, so that one can be taken for the other.
_LEADING = {"layer": 2, "expert": 2}


def leading_axes(layout: Layout) -> tuple[str, ...]:
    """The axes ``layer`` and ``expert`` without which a layout stores no FFN."""
    groups = [group for row in layout.tensors for group in parse(row.axes) if not group.optional]
    needed = {factor for group in groups for factor in group.factors}
    named = any("{expert}" in row.name for row in layout.tensors)
    return tuple(axis for axis in _LEADING if axis in needed or (axis == "expert" and named))


def run(layout: Layout, build: Build, dtype: str, seed: int = 0) -> Result:
    """The cell of a Spec and a layout.

    Args:
        layout: how the tensors lie.
        build: the Spec.
        dtype: of the stored tensors; it is kept bit for bit.
        seed: of the values.
    """
    spec = build(D_MODEL, D_FF)
    try:
        settings = fit(layout, spec).settings
        check_biases(layout, spec)
    except LayoutError as error:
        return Result("not_stored", detail=str(error))
    leading = leading_axes(layout)
    sizes = tuple(_LEADING[axis] for axis in leading)
    rng = np.random.default_rng(seed)
    params = {
        name: rounded(0.5 * rng.normal(size=(*sizes, *shape)), dtype, dtype)
        for name, shape in oracle.shapes(spec).items()
    }
    x = rng.normal(size=(ROWS, D_MODEL))
    try:
        tensors = from_canonical(layout, params, spec, leading=leading)
        back = to_canonical(
            layout, tensors, spec, leading=leading if layout.name == "glu-lab" else None
        )
        problem = _differences(params, back)
        if problem:
            return Result("failed", detail=problem)
        worst: Compared | None = None
        for index in itertools.product(*map(range, sizes)):
            mine = {name: value[index] for name, value in params.items()}
            at = dict(zip(leading, index, strict=True))
            got = evaluate(layout, tensors, spec, settings, x, at)
            found = compare(
                "output",
                got,
                oracle.forward(mine, x, spec),
                oracle.spread(mine, x, spec),
                tolerance("float64", "float64", max(D_MODEL, D_FF)),
                "float64",
                max(D_MODEL, D_FF),
            )
            worst = found if worst is None else worst.join(found)
    except Exception as error:
        return raised(error)
    assert worst is not None
    return Result(worst.status, worst)


def _differences(params: Mapping[str, np.ndarray], back: Mapping[str, np.ndarray]) -> str:
    """What is not the same, bit for bit, after the way to the layout and back."""
    if params.keys() != back.keys():
        return f"parameters {sorted(params)} came back as {sorted(back)}"
    for name, value in params.items():
        other = np.asarray(back[name])
        if (other.shape, other.dtype) != (value.shape, value.dtype):
            return f"{name} {value.dtype} {value.shape} came back as {other.dtype} {other.shape}"
        if other.tobytes() != value.tobytes():
            return f"{name} came back with {int(np.sum(other != value))} other values"
    return ""


def owners_branches(layout: Layout, spec: FFN, settings: Mapping[str, Any]) -> tuple[Branch, ...]:
    """The branches in the layout's numbering, as its owner's code would compute them.

    Args:
        layout: the storage convention.
        spec: what was stored.
        settings: what the owner's config has to say.

    Raises:
        LayoutError: when the settings state no function.
    """
    function = layout.function
    if not function.texts():
        return with_bias(spec.branches, False)
    stated = [rule.attribute for rule in function.rules if rule.attribute in settings]
    if function.variant or stated:
        return branches_from_config(layout, _nested(settings))
    for text in function.also:
        if sorted(map(repr, branches_of(text))) == sorted(
            map(repr, with_bias(spec.branches, False))
        ):
            return branches_of(text)
    raise LayoutError(f"{layout.name}: the settings {dict(settings)} state no function.")


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` as a config has it, ``{"a": {"b": 1}}``."""
    config: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        place = config
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return config


def evaluate(
    layout: Layout,
    tensors: Mapping[str, np.ndarray],
    spec: FFN,
    settings: Mapping[str, Any],
    x: np.ndarray,
    at: Mapping[str, int],
) -> np.ndarray:
    """Rows through one FFN as its tensors lie, in float64.

    Args:
        layout: how they lie.
        tensors: by their own names.
        spec: its widths, and the function where the layout stores any.
        settings: of the owner's config.
        x: rows (T, D).
        at: which layer and expert.

    Returns:
        (T, D).
    """
    branches = owners_branches(layout, spec, settings)
    N = len(branches)
    z: list[Any] = [0.0] * N
    biased, scalars, vectors = set(), {}, {}
    wo = None
    for row in layout.rows(N):
        for name, slots, scalar in _names(layout, row, N, branches, at):
            if name not in tensors:
                continue
            stored = _apart(row, tensors[name], len(slots), spec, at)
            if row.holds in ("wi", "bi"):
                packed = x @ stored if row.holds == "wi" else stored
                parts = _split(row, packed, len(slots))
                for position, slot in enumerate(slots):
                    z[slot] = z[slot] + parts[..., position, :]
                    biased |= {slot} if row.holds == "bi" else set()
            elif row.holds == "wo":
                wo = stored.T
            elif row.holds == "phi":
                scalars[f"phi_{slots[0]}_{scalar}"] = stored
            else:
                vectors[row.holds] = stored
    assert wo is not None
    owner = spec.replace(
        branches=tuple(
            dataclasses.replace(branch, bias=i in biased) for i, branch in enumerate(branches)
        ),
        product_bias="bp" in vectors,
        output_bias="bo" in vectors,
    )
    H = oracle.hidden({**scalars, **vectors}, z, owner)
    return owner.output_scale * (H @ wo + vectors.get("bo", 0.0))


def _names(
    layout: Layout, row: Tensor, N: int, branches: tuple[Branch, ...], at: Mapping[str, int]
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, the layout's numbers of the branches in it, learned scalar) of a row's tensors."""
    held = layout.branches_of(row, N) if row.holds in ("wi", "bi", "phi") else ()
    name = row.name.replace("{expert}", str(at.get("expert")))
    if row.holds == "phi":
        for slot in held:
            for scalar in branches[slot].activation.row.learned:
                one = name.replace("{branch}", str(slot)).replace("{scalar}", scalar)
                yield one, (slot,), scalar
    elif "{branch}" in name:
        for slot in held:
            yield name.replace("{branch}", str(slot)), (slot,), ""
    else:
        yield name, held, ""


def _factors(row: Tensor) -> list[Group]:
    return [group for group in parse(row.axes) if not group.optional]


def _apart(
    row: Tensor, tensor: np.ndarray, held: int, spec: FFN, at: Mapping[str, int]
) -> np.ndarray:
    """One FFN's part of a stored tensor in float64: (D, packed) of a matrix, or (packed,)."""
    sizes = {"embed": spec.d_model, "mlp": spec.d_ff, "branch": held, **_LEADING}
    split: list[tuple[str, int]] = []
    for group in _factors(row):
        factors = [(factor, sizes[factor]) for factor in group.factors]
        names = list(group.factors)
        if "mlp" in names and "branch" in names[names.index("mlp") :]:
            # Blocks of one branch alternate: F/width, N, width.
            place = names.index("mlp")
            factors[place] = ("mlp", spec.d_ff // row.interleave)
            factors.insert(names.index("branch") + 1, ("within", row.interleave))
        split += factors
    array = np.asarray(tensor, np.float64).reshape([size for _, size in split])
    names = [name for name, _ in split]
    for axis in ("layer", "expert"):
        if axis in names:
            array = np.take(array, at[axis], axis=names.index(axis))
            names.remove(axis)
    if "embed" in names:
        array = np.moveaxis(array, names.index("embed"), 0)
        return array.reshape(spec.d_model, -1) if len(names) > 1 else array
    return array.reshape(-1) if names else array


def _split(row: Tensor, packed: np.ndarray, held: int) -> np.ndarray:
    """(..., packed) as (..., branches held, F), by the stated order of the axes."""
    names = [factor for group in _factors(row) for factor in group.factors]
    block = packed.shape[-1] // held
    if "branch" in names and names.index("mlp") < names.index("branch"):
        block = row.interleave
    return packing.unpack(packed, order=tuple(range(held)), block=block)

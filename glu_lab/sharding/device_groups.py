"""The groups in which devices communicate, from a compiled program's text to axes of a mesh."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from glu_lab.errors import SpecError
from glu_lab.sharding.hlo import split


def group_axes(groups: Sequence[Sequence[int]] | np.ndarray, mesh: Mapping[str, int]) -> list[str]:
    """The mesh axes over which the devices of a group differ.

    Args:
        groups: of device numbers, as the mesh counts its devices: in that order jit assigns them.
        mesh: sizes of its axes, in order.

    Raises:
        SpecError: for a device that the mesh does not have.
    """
    box = tuple(mesh.values())
    differ = np.zeros(len(box), bool)
    for group in groups:
        if max(group) >= math.prod(box):
            raise SpecError(
                f"the program is for more devices than the {math.prod(box)} of the mesh "
                f"{dict(mesh)}: it names device {max(group)}."
            )
        places = np.stack(np.unravel_index(np.asarray(group), box))
        differ |= (places != places[:, :1]).any(axis=1)
    return [name for name, differs in zip(mesh, differ, strict=True) if differs]


def device_groups(text: str, devices: int) -> np.ndarray | list[list[int]]:
    """The groups in which devices communicate.

    Args:
        text: the value of ``replica_groups``, in any of XLA's forms: ``{{0,1},{2,3}}``, ``{}`` for
            one group of all, ``[2,4]<=[8]``, ``[4,2]<=[2,4]T(1,0)`` (numbers counted in a box,
            its axes exchanged, and cut into rows), or ``mesh['a'=2,'b'=4] {'b'}`` (all numbers
            that differ along axis b alone; ``'b':(2)2`` is a part of an axis: of size 2, behind
            one of size 2).
        devices: how many there are.

    Returns:
        One row of device numbers a group.

    Raises:
        SpecError: for another form.
    """
    text = text.strip()
    if text == "{}":
        return np.arange(devices)[None]
    if text.startswith("{"):
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,\s]+)\}", text)]
    if text.startswith("["):
        groups, _, box = text.partition("<=")
        return _counted(box).reshape(_numbers(groups))
    mesh = re.match(r"@?mesh[\[<](.*?)[\]>](?:,\s*device_ids=\((.*)\))?\s*\{(.*)\}$", text)
    if mesh is None:
        raise SpecError(f"replica_groups={text} is in a form that is not known here.")
    sizes = {name: int(size) for name, size in re.findall(r"'?([^',=]+)'?=(\d+)", mesh[1])}
    ids = mesh[2]
    if not ids:
        numbers = np.arange(math.prod(sizes.values()))
    else:
        numbers = _counted(ids) if ids.startswith("[") else np.array(_numbers(ids))
    return _along(numbers.reshape(-1), sizes, split(mesh[3]))


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _counted(text: str) -> np.ndarray:
    """Numbers from 0 in the order that ``[2,4]T(1,0)`` says."""
    box, _, order = text.partition("T")
    dims = _numbers(box)
    counted = np.arange(math.prod(dims)).reshape(dims)
    return counted.transpose(_numbers(order) or range(len(dims)))


def _along(numbers: np.ndarray, sizes: dict[str, int], axes: Sequence[str]) -> np.ndarray:
    """Groups of the numbers that differ along some axes, or parts of axes, of a box."""
    parts: dict[str, list[tuple[int, int]]] = {}
    for axis in axes:
        name, _, part = axis.strip().partition(":")
        name = name.strip("'")
        before, size = _numbers(part) if part else (1, sizes[name])
        parts.setdefault(name, []).append((before, size))
    dims: list[int] = []
    chosen: list[int] = []
    for name, whole in sizes.items():
        done = 1
        for before, size in sorted(parts.get(name, [])):
            dims += [before // done, size]
            chosen.append(len(dims) - 1)
            done = before * size
        dims.append(whole // done)
    kept = [i for i in range(len(dims)) if i not in chosen]
    per_group = math.prod(dims[i] for i in chosen)
    return numbers.reshape(dims).transpose(kept + chosen).reshape(-1, per_group)

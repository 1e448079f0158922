"""Looking at an array on a mesh: which device holds which piece, and what is in it.

Works on any `jax.Array`. In a terminal `print(look(x))`, in a notebook `look(x)`; `draw` and
`heat_maps` make matplotlib figures.
"""

import dataclasses
import html
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from glu_lab.errors import SpecError
from glu_lab.layers import ffn
from glu_lab.layers.params import map_table
from glu_lab.layers.placement import Placement, partition_spec
from glu_lab.sharding.mesh import check_table
from glu_lab.spec.ffn import FFN
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import Rules, check_size

#: Colours of pieces, in the order in which they appear (Okabe–Ito, distinguishable when printed).
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00", "#999999")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """One contiguous part of an array, and the devices that hold a copy.

    Attributes:
        start, stop: its bounds along every dimension.
        devices: ids of the devices that hold it.
        rms, mean, low, high: of its numbers; None where no device of this process holds it.
        exact_zero: fraction of exact zeros.
        non_finite: number of NaN and infinite values.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    devices: tuple[int, ...]
    rms: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    exact_zero: float | None = None
    non_finite: int | None = None

    @property
    def where(self) -> str:
        """Its place in NumPy's notation."""
        return ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    ranges = [s.indices(n) for s, n in zip(index, shape, strict=True)]
    return tuple(r[0] for r in ranges), tuple(r[1] for r in ranges)


def _statistics(values: np.ndarray) -> dict[str, Any]:
    wide = np.asarray(values).astype(np.float64)
    if wide.size == 0:
        return {}
    return {
        "rms": float(np.sqrt(np.mean(wide * wide))),
        "mean": float(wide.mean()),
        "low": float(wide.min()),
        "high": float(wide.max()),
        "exact_zero": float(np.mean(wide == 0)),
        "non_finite": int(np.sum(~np.isfinite(wide))),
    }


def pieces(x: Array) -> list[Piece]:
    """The distinct parts of an array in the order of their place, with statistics of each."""
    holders: dict[Any, list[int]] = {}
    for device, index in x.sharding.devices_indices_map(x.shape).items():
        holders.setdefault(_bounds(index or (), x.shape), []).append(device.id)
    here = {_bounds(shard.index, x.shape): shard.data for shard in x.addressable_shards}
    return [
        Piece(
            start=start,
            stop=stop,
            devices=tuple(sorted(holders[start, stop])),
            **(_statistics(np.asarray(here[start, stop])) if (start, stop) in here else {}),
        )
        for start, stop in sorted(holders)
    ]


@dataclasses.dataclass(frozen=True)
class Look:
    """An array's layout as text, as a table of a notebook, or as data.

    Attributes:
        name: what to call the array.
        shape, dtype: its own.
        spec: how its dimensions are split, as text.
        pieces: its parts.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: str
    pieces: tuple[Piece, ...]

    _COLUMNS = ("piece", "devices", "rms", "mean", "min", "max", "zeros")

    @property
    def title(self) -> str:
        """Name, type and split, in one line."""
        shape = "×".join(map(str, self.shape)) or "scalar"
        copies = {len(piece.devices) for piece in self.pieces}
        each = f", {next(iter(copies))} copies of each" if copies != {1} else ""
        return (
            f"{self.name}: {self.dtype} {shape}, split {self.spec}; {len(self.pieces)} pieces{each}"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        def number(value: float | None, form: str = ".3g") -> str:
            return "–" if value is None else format(value, form)

        return [
            (
                f"[{piece.where}]",
                ",".join(map(str, piece.devices)),
                number(piece.rms),
                number(piece.mean),
                number(piece.low),
                number(piece.high),
                number(piece.exact_zero, ".1%"),
            )
            for piece in self.pieces
        ]

    def __str__(self) -> str:
        table = [self._COLUMNS, *self._rows()]
        widths = [max(len(row[i]) for row in table) for i in range(len(self._COLUMNS))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in table]
        return "\n".join([self.title, *lines])

    def _repr_html_(self) -> str:
        colours = {piece.where: COLOURS[i % 8] for i, piece in enumerate(self.pieces)}
        head = "".join(f"<th>{name}</th>" for name in self._COLUMNS)
        body = ""
        for piece, row in zip(self.pieces, self._rows(), strict=True):
            mark = f"<td style='border-left: 1em solid {colours[piece.where]}'>"
            cells = "</td><td>".join(html.escape(cell) for cell in row)
            body += f"<tr>{mark}{cells}</td></tr>"
        return (
            f"<p><code>{html.escape(self.title)}</code></p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def look(x: Array, name: str = "array") -> Look:
    """Which devices hold which piece of an array, and statistics of each piece."""
    sharding = x.sharding
    spec = "nowhere"
    if isinstance(sharding, NamedSharding):
        # Axes of size 1 split nothing.
        sizes = sharding.mesh.shape
        parts = []
        for entry in (*sharding.spec, *(None,) * (x.ndim - len(sharding.spec))):
            axes = entry if isinstance(entry, tuple) else (entry,)
            real = [f"{axis}={sizes[axis]}" for axis in axes if axis and sizes[axis] > 1]
            parts.append("×".join(real) or "·")
        spec = "(" + ", ".join(parts) + ")"
    return Look(name, x.shape, str(x.dtype), spec, tuple(pieces(x)))


def _plane(x: Array) -> tuple[int, int]:
    """The two dimensions to show: those that are split, else the last ones."""
    if x.ndim < 1:
        raise SpecError("a scalar has no pieces to draw.")
    found = pieces(x)
    split = [d for d in range(x.ndim) if len({piece.start[d] for piece in found}) > 1]
    if len(split) > 2:
        raise SpecError(
            f"the array is split along {len(split)} dimensions {tuple(split)}; a picture shows "
            "two. Draw a slice of it."
        )
    others = [d for d in reversed(range(x.ndim)) if d not in split]
    while len(split) < min(2, x.ndim):
        split.append(others.pop(0))
    rows, columns = sorted(split) if len(split) == 2 else (split[0], split[0])
    return rows, columns


def draw(x: Array, name: str = "array", axes: Any = None) -> Any:
    """A picture of which device holds what: the two split dimensions, one rectangle a piece.

    Args:
        x: split along at most two of its dimensions.
        name: title.
        axes: matplotlib axes to draw into; None makes a figure.

    Returns:
        The axes.
    """
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    if axes is None:
        _, axes = pyplot.subplots(figsize=(4, 3), layout="constrained")
    rows, columns = _plane(x)
    flat = rows == columns
    for number, piece in enumerate(pieces(x)):
        top, bottom = (0, 1) if flat else (piece.start[rows], piece.stop[rows])
        left, right = piece.start[columns], piece.stop[columns]
        axes.add_patch(
            Rectangle(
                (left, top),
                right - left,
                bottom - top,
                facecolor=COLOURS[number % 8],
                edgecolor="white",
                linewidth=2,
            )
        )
        axes.text(
            (left + right) / 2,
            (top + bottom) / 2,
            "device " + ",".join(map(str, piece.devices)),
            ha="center",
            va="center",
            fontsize=8,
        )
    axes.set_xlim(0, x.shape[columns])
    axes.set_ylim(1 if flat else x.shape[rows], 0)
    axes.set_xlabel(f"dimension {columns}")
    axes.set_ylabel("" if flat else f"dimension {rows}")
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{name} {'×'.join(map(str, x.shape))}", fontsize=9)
    return axes


def heat_maps(x: Array, name: str = "array") -> Any:
    """The numbers of every piece, one image a piece, on one colour scale.

    Dimensions that are not shown are averaged.

    Returns:
        The matplotlib figure.
    """
    from matplotlib import pyplot

    rows, columns = _plane(x)
    parts = pieces(x)
    data = {_bounds(shard.index, x.shape): np.asarray(shard.data) for shard in x.addressable_shards}
    hidden = tuple(d for d in range(x.ndim) if d not in (rows, columns))
    images = {}
    for piece in parts:
        if (piece.start, piece.stop) in data:
            wide = data[piece.start, piece.stop].astype(np.float64)
            images[piece] = np.atleast_2d(wide.mean(axis=hidden))
    limit = max((float(np.nanmax(np.abs(image))) for image in images.values()), default=1.0) or 1.0
    across = len({piece.start[columns] for piece in parts})
    down = math.ceil(len(parts) / across)
    figure, grid = pyplot.subplots(
        down, across, figsize=(2.2 * across + 1, 1.6 * down + 0.6), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    shown = None
    for axes, piece in zip(grid.flat, parts, strict=False):
        axes.set_title(f"device {','.join(map(str, piece.devices))}", fontsize=8)
        axes.tick_params(labelsize=6)
        if piece in images:
            extent = (
                piece.start[columns],
                piece.stop[columns],
                piece.stop[rows],
                piece.start[rows],
            )
            if rows == columns:
                extent = (piece.start[columns], piece.stop[columns], 1, 0)
            shown = axes.imshow(
                images[piece], cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", extent=extent
            )
    if shown is not None:
        figure.colorbar(shown, ax=grid, shrink=0.8)
    figure.suptitle(name, fontsize=9)
    return figure


def capture(
    params: Mapping[str, Array],
    x: Array,
    spec: FFN,
    mesh: Mesh,
    rules: Rules = Rules(),
    numerics: Numerics = Numerics(),
) -> dict[str, Array]:
    """Every intermediate of an FFN as it lies on a mesh.

    Args:
        params: of the FFN, in canonical form, anywhere; laid out by the rules.
        x: rows (B, S, D), anywhere; laid out as a batch.
        spec: which FFN.
        mesh: with Explicit axes, as `glu_lab.sharding.mesh.make_mesh` makes it.
        rules: the layout.
        numerics: number formats.

    Returns:
        ``input (B, S, D)``, for every branch i ``argument_i`` and ``branch_i (B, S, F)``,
        ``product (B, S, F)`` and ``output (B, S, D)``.

    Raises:
        SpecError: for sizes that do not divide.
    """
    table = ffn.parameters(spec)
    check_table(table, rules, mesh.shape)
    check_size("rows", x.shape[0], rules.batch, mesh.shape)
    place = Placement(rules)

    def run(params: Any, x: Array) -> dict[str, Array]:
        seen: dict[str, Array] = {}
        used = {name: place.use(params[name], entry.axes) for name, entry in table.items()}
        ffn.apply(used, x, spec, numerics=numerics, tap=seen.__setitem__, place=place)
        shown = {name: seen[name] for name in ("input", "product", "output")}
        for i in range(spec.num_branches):
            shown[f"argument_{i}"] = seen["pre_activation"][..., i, :]
            shown[f"branch_{i}"] = seen["branches"][..., i, :]
        return shown

    stored = map_table(
        lambda _, p: NamedSharding(mesh, partition_spec(rules.splits(p.axes))), table
    )
    rows = NamedSharding(mesh, partition_spec(rules.splits(("batch", "seq", None))))
    with jax.set_mesh(mesh):
        return jax.jit(run)(jax.device_put(dict(params), stored), jax.device_put(x, rows))

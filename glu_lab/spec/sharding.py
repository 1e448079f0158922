"""How the named axes of a model's arrays are laid out over a device mesh; plain data.

A mesh has three axes. Batches are split over ``data`` and ``fsdp``; parameters and optimiser state
are stored in pieces over ``fsdp`` and gathered where a layer uses them; ``model`` splits the
dimensions inside a layer (tensor parallelism).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from glu_lab.errors import SpecError, UnknownNameError

#: Axes of the mesh, in order.
MESH_AXES: tuple[str, ...] = ("data", "fsdp", "model")

#: One dimension of an array: the mesh axes that split it, major first; () for none.
Split = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Logical axis → mesh axes, the same for every array of a model.

    Attributes:
        batch: examples, or rows.
        seq: positions of a row.
        embed: the model's width, of parameters; activations keep it whole.
        branch: branches of a gated FFN. Splitting it would separate the factors of a product.
        mlp: hidden width of the FFN.
        heads: query heads.
        kv: key and value heads.
        head: channels of one head.
        vocab: rows of the embedding and columns of the logits.
        buckets: of the relative position bias.
        layers: layers of a stack.
    """

    batch: Split = ("data", "fsdp")
    seq: Split = ()
    embed: Split = ("fsdp",)
    branch: Split = ()
    mlp: Split = ("model",)
    heads: Split = ("model",)
    kv: Split = ("model",)
    head: Split = ()
    vocab: Split = ("model",)
    buckets: Split = ()
    layers: Split = ()

    def __post_init__(self):
        for name, split in vars(self).items():
            for axis in split:
                if axis not in MESH_AXES:
                    raise UnknownNameError(f"mesh axis in the rule for {name!r}", axis, MESH_AXES)
            if len(set(split)) != len(split):
                raise SpecError(f"the rule for {name!r} names a mesh axis twice: {split}.")

    def splits(self, axes: Iterable[str | None]) -> tuple[Split, ...]:
        """The split of every dimension of an array.

        Args:
            axes: logical name of each dimension; None for one that is never split.

        Raises:
            UnknownNameError: for a logical axis without a rule.
            SpecError: when two dimensions lie on one mesh axis.
        """
        axes = tuple(axes)
        taken: dict[str, str] = {}
        out = []
        for axis in axes:
            if axis is None:
                out.append(())
                continue
            if axis not in LOGICAL_AXES:
                raise UnknownNameError("logical axis", axis, LOGICAL_AXES)
            split: Split = getattr(self, axis)
            for mesh_axis in split:
                if mesh_axis in taken:
                    raise SpecError(
                        f"an array with axes {axes} cannot be laid out: {taken[mesh_axis]!r} and "
                        f"{axis!r} both lie on mesh axis {mesh_axis!r}; one mesh axis splits one "
                        "dimension of an array. Change one of the two rules."
                    )
                taken[mesh_axis] = axis
            out.append(split)
        return tuple(out)

    def used(self, axes: Iterable[str | None]) -> tuple[Split, ...]:
        """As `splits`, of a parameter where a layer computes with it.

        Mesh axes that also split the batch are gathered: each of their devices has rows of its own
        and needs the whole weight.
        """
        return tuple(
            tuple(axis for axis in split if axis not in self.batch) for split in self.splits(axes)
        )


LOGICAL_AXES: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Rules))


def parse_mesh(text: str, devices: int | None) -> dict[str, int]:
    """Sizes of the mesh axes, from text such as ``"data=2,fsdp=1,model=4"``.

    Args:
        text: ``axis=size`` pairs; axes left out have size 1; one size may be -1 for the rest.
        devices: how many there are; None takes any number (a mesh that is only planned), and then
            no size may be -1.

    Raises:
        UnknownNameError: for an axis that a mesh does not have.
        SpecError: for another typo, or sizes that do not multiply to the number of devices.
    """
    sizes: dict[str, int] = dict.fromkeys(MESH_AXES, 1)
    seen = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SpecError(f"mesh {text!r}: write axis=size, as in 'data=2,model=4'.")
        if name not in sizes:
            raise UnknownNameError("mesh axis", name, MESH_AXES)
        if name in seen:
            raise SpecError(f"mesh {text!r} names axis {name!r} twice.")
        seen.add(name)
        try:
            sizes[name] = int(number)
        except ValueError:
            raise SpecError(f"mesh {text!r}: the size of {name!r} must be an integer.") from None
        if sizes[name] < 1 and sizes[name] != -1:
            raise SpecError(f"mesh {text!r}: the size of {name!r} must be ≥ 1, or -1 for the rest.")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise SpecError(f"mesh {text!r}: only one axis can take the rest, got {', '.join(free)}.")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if devices is None:
        if free:
            raise SpecError(
                f"mesh {text!r}: {free[0]}=-1 takes the devices that are there; a mesh that is "
                "only planned states every size."
            )
    elif free:
        if devices % fixed:
            raise SpecError(f"mesh {text!r}: {fixed} does not divide the {devices} devices here.")
        sizes[free[0]] = devices // fixed
    elif fixed != devices:
        raise SpecError(f"mesh {text!r} needs {fixed} devices; there are {devices}.")
    return sizes


def check_size(name: str, size: int, over: Split, mesh: Mapping[str, int], hint: str = "") -> None:
    """Checks that a size divides over mesh axes.

    Raises:
        SpecError: with the nearest sizes that do, and the hint.
    """
    parts = math.prod(mesh[axis] for axis in over)
    if size % parts == 0:
        return
    below, above = size // parts * parts, -(-size // parts) * parts
    nearest = f"sizes that do are {below} and {above}" if below else f"size that does is {above}"
    shown = " × ".join(f"{axis}={mesh[axis]}" for axis in over)
    raise SpecError(f"{name} = {size} does not divide over {shown}; the nearest {nearest}.{hint}")


def check_divides(
    dimensions: Iterable[tuple[str, int]], rules: Rules, mesh: Mapping[str, int]
) -> None:
    """Checks that every dimension divides over its devices.

    Args:
        dimensions: (logical axis, size) of the arrays' dimensions, repeats allowed.
        rules: which mesh axes split each.
        mesh: their sizes.

    Raises:
        SpecError: naming the dimension, the nearest sizes that divide, and the sizes of the mesh
            axis that all dimensions on it admit.
    """
    split = {(axis, n): getattr(rules, axis) for axis, n in dimensions if getattr(rules, axis)}
    for (axis, n), over in split.items():
        hint = ""
        if len(over) == 1:
            alike = {f"{a} = {m}": m for (a, m), others in split.items() if others == over}
            common = math.gcd(*alike.values())
            admitted = ", ".join(str(d) for d in range(1, common + 1) if common % d == 0)
            hint = f" {', '.join(alike)} together admit {over[0]} = {admitted}."
        check_size(axis, n, over, mesh, hint)

"""Short ways of writing the tensors that most layouts have."""

from glu_lab.layouts.layout import Piece, Prefix, Tensor

#: ``nn.Linear`` stores (out, in); Flax and Conv1D kernels are (in, out).
OUT_IN = {"wi": "mlp embed", "wo": "embed mlp"}
IN_OUT = {"wi": "embed mlp", "wo": "mlp embed"}

_BIAS_AXES = {"bi": "mlp", "bp": "mlp", "bo": "embed"}


def wi(name: str, branch: int = 0, axes: str = OUT_IN["wi"]) -> Tensor:
    """The input projection of one branch."""
    return Tensor(name=name, holds="wi", axes=axes, branches=(branch,))


def packed(name: str, axes: str, branches: tuple[int, ...] = (0, 1), **fields) -> Tensor:
    """The input projections of several branches in one tensor."""
    return Tensor(name=name, holds="wi", axes=axes, branches=branches, **fields)


def wo(name: str, axes: str = OUT_IN["wo"]) -> Tensor:
    """The output projection."""
    return Tensor(name=name, holds="wo", axes=axes)


def bi(name: str, branch: int = 0, *, axes: str = "mlp", optional: bool = True) -> Tensor:
    """The bias of one branch."""
    return Tensor(name=name, holds="bi", axes=axes, branches=(branch,), optional=optional)


def packed_bi(
    name: str, axes: str, branches: tuple[int, ...] = (0, 1), *, optional: bool = True, **fields
) -> Tensor:
    """The biases of several branches in one tensor."""
    return Tensor(name=name, holds="bi", axes=axes, branches=branches, optional=optional, **fields)


def bias(holds: Piece, name: str, *, axes: str = "", optional: bool = True) -> Tensor:
    """An output or product bias."""
    return Tensor(name=name, holds=holds, axes=axes or _BIAS_AXES[holds], optional=optional)


def decoder(*templates: str, **fields) -> tuple[Prefix, ...]:
    """Prefixes of a decoder's FFNs, the one for writing first."""
    return tuple(Prefix(template=template, stack="decoder", **fields) for template in templates)


def encoder(*templates: str, **fields) -> tuple[Prefix, ...]:
    """Prefixes of an encoder's FFNs, the one for writing first."""
    return tuple(Prefix(template=template, stack="encoder", **fields) for template in templates)

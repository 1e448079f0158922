"""Several branches in one packed array, read by a stated order; plain index arithmetic, no JAX.

A packed axis has N·F entries. ``order`` names the branch of each slot and ``block`` says how many
channels of one branch stand together: channel f of the branch in slot k stands at

    (f // block)·N·block + k·block + f % block

With ``block = F`` that is [gate; up], with 1 or 32 an interleaved weight, and with F/P the ranks'
[gate_r; up_r] laid end to end. Nothing here can be told from a shape, so that everything is stated.

Dimension letters: N branches, F d_ff, P slices of tensor parallelism.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

from glu_lab.errors import SpecError


def positions(order: Sequence[int], block: int, d_ff: int) -> Shaped[np.ndarray, "N F"]:
    """Where every channel of every branch stands on the packed axis.

    Args:
        order: the branch of each slot; (0, 1) is gate first where branch 0 is the gate.
        block: channels of one branch that stand together; it divides F.
        d_ff: F.

    Raises:
        SpecError: for an order that is none, or a block that does not divide F.
    """
    slots = len(order)
    if sorted(order) != list(range(slots)) or not slots:
        raise SpecError(
            f"order must name each branch 0 to N − 1 once, for example (0, 1), got {tuple(order)}."
        )
    if isinstance(block, bool) or not isinstance(block, int) or block < 1 or d_ff % block:
        raise SpecError(f"block must divide d_ff={d_ff} (d_ff itself: halves), got {block!r}.")
    channel = np.arange(d_ff)
    start = channel // block * slots * block + channel % block
    return np.stack([start + order.index(branch) * block for branch in range(slots)])


def unpack(packed: Any, *, order: Sequence[int], block: int) -> Shaped[np.ndarray, "... N F"]:
    """A packed last axis (..., N·F) as branches and channels (..., N, F).

    Of a weight (D, N·F) the canonical ``wi``; of a bias (N·F,) the rows ``bi_<i>``; of packed
    pre-activations (..., N·F) those of every branch. A weight stored (N·F, D) is transposed first.

    Raises:
        SpecError: as `positions`, and for an axis that N does not divide.
    """
    array = np.asarray(packed)
    if array.ndim < 1 or array.shape[-1] % max(len(order), 1):
        raise SpecError(
            f"a last axis of {len(order)} packed branches was expected, got shape {array.shape}."
        )
    return array[..., positions(order, block, array.shape[-1] // max(len(order), 1))]


def pack(branches: Any, *, order: Sequence[int], block: int) -> Shaped[np.ndarray, "... NF"]:
    """Branches and channels (..., N, F) on one packed axis (..., N·F): `unpack` undone.

    Raises:
        SpecError: as `positions`, and for an order of another number of branches.
    """
    array = np.asarray(branches)
    if array.ndim < 2 or array.shape[-2] != len(order):
        raise SpecError(
            f"order {tuple(order)} needs an array (..., {len(order)}, F), got shape {array.shape}."
        )
    count, d_ff = array.shape[-2:]
    packed = np.empty((*array.shape[:-2], count * d_ff), array.dtype)
    packed[..., positions(order, block, d_ff)] = array
    return packed

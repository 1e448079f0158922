"""Tensor-parallel resharding: the FFNs of p ranks as those of q.

Every rank holds F/p channels of every branch, packed like the whole. A packed tensor cut in equal
contiguous parts is not such a rank, though it has its shape.

Dimension letters: D d_model, F d_ff, P tensor-parallel degree.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts.inventory import Tensors, take_stock
from glu_lab.layouts.layout import Layout, Prefix
from glu_lab.layouts.measure import stand_in_spec
from glu_lab.layouts.plan import Plan, plan
from glu_lab.spec.ffn import FFN


def plan_reshard(
    layout: Layout,
    by_rank: Sequence[Tensors],
    ranks: int,
    *,
    spec: FFN | None = None,
    prefixes: Sequence[Prefix] | None = None,
    experts: int | None = None,
) -> Plan:
    """Plans the same tensors over another number of ranks, names kept.

    Args:
        layout: how the tensors of each rank lie.
        by_rank: name → anything with ``shape`` and ``dtype``, one mapping a rank.
        ranks: of the result.
        spec: their function; by default sizes and biases are read off the tensors, since what they
            compute does not matter here.
        prefixes: where the FFNs stand; by default the layout's own and that of an FFN alone.
        experts: E, for layouts that join the experts with another axis.

    Raises:
        LayoutError: when F is divisible by neither, with the nearest widths that are; and for all
            that `plan` refuses.
    """
    if not by_rank:
        raise LayoutError(f"{layout.name}: no ranks were given.")
    if spec is None:
        spec = stand_in_spec(layout, by_rank, prefixes=prefixes, experts=experts)
    stock = take_stock(layout, by_rank, spec, prefixes=prefixes)
    used = dict.fromkeys(at.named.prefix for at in stock.blocks.values())
    return plan(
        layout,
        layout,
        by_rank,
        spec,
        ranks=ranks,
        source_prefixes=list(used),
        target_prefixes=list(used),
    )


def reshard(
    layout: Layout,
    by_rank: Sequence[Mapping[str, np.ndarray]],
    ranks: int,
    *,
    spec: FFN | None = None,
    prefixes: Sequence[Prefix] | None = None,
    experts: int | None = None,
) -> list[dict[str, np.ndarray]]:
    """The tensors of p ranks as those of `ranks`, in memory, bit for bit.

    A bias of the output is whole in every rank: it is kept once, never summed, and ranks that
    disagree on it are an error.

    Args:
        layout, by_rank, ranks, spec, prefixes, experts: as in `plan_reshard`, with arrays.

    Returns:
        Name → array, one mapping a rank.
    """
    planned = plan_reshard(layout, by_rank, ranks, spec=spec, prefixes=prefixes, experts=experts)
    return planned.run(by_rank)


def join_data_shards(shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One tensor-parallel rank's tensors from its FSDP shards.

    FSDP cuts every tensor of a rank, whatever it holds, in contiguous parts along its first axis.
    The parts of one rank must be joined before ranks are: a part of a packed tensor is of one
    branch, or of two.

    Args:
        shards: name → part, in the order of the data-parallel ranks. A tensor shorter than the
            number of shards is absent from, or empty in, the last of them.

    Raises:
        LayoutError: when parts differ in anything but their first axis.
    """
    joined: dict[str, np.ndarray] = {}
    names = dict.fromkeys(name for shard in shards for name in shard)
    for name in names:
        parts = [shard[name] for shard in shards if name in shard]
        kinds = {(part.dtype, part.shape[1:], part.ndim) for part in parts}
        if len(kinds) > 1 or parts[0].ndim == 0:
            raise LayoutError(
                f"FSDP shards of {name!r} differ: "
                f"{', '.join(f'{part.dtype} {part.shape}' for part in parts)}."
            )
        joined[name] = np.concatenate(parts, axis=0)
    return joined


def split_data_shards(
    tensors: Mapping[str, np.ndarray], shards: int
) -> list[dict[str, np.ndarray]]:
    """The FSDP shards of one rank's tensors, cut as ``torch.chunk`` does.

    Args:
        tensors: name → array of one tensor-parallel rank.
        shards: number of data-parallel ranks.
    """
    if shards < 1:
        raise LayoutError(f"shards must be ≥ 1, got {shards}.")
    cut: list[dict[str, np.ndarray]] = [{} for _ in range(shards)]
    for name, array in tensors.items():
        size = -(-array.shape[0] // shards)
        for i in range(shards):
            cut[i][name] = array[i * size : (i + 1) * size]
    return cut

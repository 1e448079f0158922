"""One FFN out of a whole file, as canonical parameters: what a proof by rows evaluates.

It joins the blocks of one layer and expert by itself, not by a plan, so that a plan can be held
against it.

Dimension letters: D d_model, F d_ff, N branches.
"""

import numpy as np

from glu_lab.errors import LayoutError
from glu_lab.layouts.axes import access
from glu_lab.layouts.inventory import Block, Inventory, blocks_of
from glu_lab.layouts.layout import PIECE_AXES
from glu_lab.layouts.outputs import Key, Reader


def ffns_of(stock: Inventory) -> list[tuple[str, int | None, int | None]]:
    """Stack, layer and expert of every FFN in a file, in order."""
    return [
        (stack, layer, expert)
        for stack, layers in stock.places().items()
        for layer, experts in layers.items()
        for expert in experts
    ]


def read_ffn(
    stock: Inventory,
    read: Reader,
    stack: str = "",
    layer: int | None = None,
    expert: int | None = None,
) -> dict[str, np.ndarray]:
    """The parameters of one FFN, without leading axes.

    Args:
        stock: what is in the file, from `take_stock`, or a plan's ``source``.
        read: gives the array of a stored tensor; only those of this FFN are asked for.
        stack, layer, expert: which FFN; one of `ffns_of`.

    Returns:
        Canonical parameters: ``wi (D, N, F)``, ``wo (F, D)`` and those that the Spec has besides.

    Raises:
        LayoutError: when there is no such FFN.
    """
    wanted = blocks_of(stock.spec, stack, layer, expert)
    if wanted[0] not in stock.blocks:
        raise LayoutError(
            f"{stock.layout.name}: no FFN of stack {stack!r}, layer {layer}, expert {expert}; the "
            f"first is {ffns_of(stock)[0]}."
        )
    found = {block: _block(stock, read, block) for block in wanted}
    params = {"wi": np.stack([a for b, a in found.items() if b.piece == "wi"], axis=1)}
    for block, array in found.items():
        if block.piece in ("wo", "bp", "bo"):
            params[block.piece] = array
        elif block.piece == "bi":
            params[f"bi_{block.branch}"] = array
        elif block.piece == "phi":
            params[f"phi_{block.branch}_{block.scalar}"] = array
    return params


def _block(stock: Inventory, read: Reader, block: Block) -> np.ndarray:
    """One block, of all ranks together."""
    location = stock.blocks[block]
    axes = PIECE_AXES[block.piece]
    sizes = location.sizes
    where = access(
        location.dimensions,
        sizes,
        block_axes=axes,
        at=location.at,
        mlp=(0, sizes["mlp"]),
        interleave=location.named.row.interleave,
    )
    ranks = range(stock.ranks if "mlp" in axes else 1)
    parts = [where.read(read(Key(location.named.name, rank))) for rank in ranks]
    return np.concatenate(parts, axis=axes.index("mlp")) if len(parts) > 1 else parts[0]

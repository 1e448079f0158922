"""Failures 24 and 25: branches cut, packed and read.

Dimension letters: T rows, D d_model, F d_ff, P tensor-parallel ranks.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from glu_lab.conformance.failures.functions import (
    Function,
    Params,
    numerics_of,
    sublayer,
)
from glu_lab.conformance.failures.proposed import Sharding
from glu_lab.conformance.failures.row import Failure, Planted
from glu_lab.conformance.failures.stored import (
    Converted,
    Folder,
    Tensors,
    conversion,
    edit_manifest,
    released,
)
from glu_lab.layers import ffn
from glu_lab.layouts.reshard import join_data_shards, split_data_shards
from glu_lab.oracle.ffn import shard
from glu_lab.spec.ffn import FFN
from glu_lab.spec.sharding import Rules
from glu_lab.spec.variants import variant

_SPEC = variant("swiglu", d_model=4, d_ff=8)
_BIASED = variant("swiglu", d_model=4, d_ff=8, bias=True)


# 24: shards.


def over_ranks(parts: int, finish_each: bool) -> Function:
    """The sum over P ranks' blocks of channels; each rank finishes its own, or the sum is."""

    def run(params: Params, x: Array, spec: FFN) -> Array:
        numerics = numerics_of(x.dtype)
        summands = []
        for held in shard(params, spec, parts):
            y = ffn.down(held, ffn.product(held, x, spec, numerics), numerics)
            summands.append(ffn.finish(held, y, spec, numerics) if finish_each else y)
        total = functools.reduce(jnp.add, summands)
        return total if finish_each else ffn.finish(params, total, spec, numerics)

    return run


def _cut_in_equal_parts(packed: np.ndarray, ranks: int) -> list[np.ndarray]:
    """A packed [gate; up] in contiguous parts, which have the shape of a rank's own."""
    return np.split(packed, ranks, axis=0)


def _replaced(right: Converted, name: str, arrays: Sequence[np.ndarray]) -> Converted:
    """A conversion with one tensor of every rank exchanged."""
    pairs = zip(right.target, arrays, strict=True)
    return right.with_target([{**t, name: np.ascontiguousarray(a)} for t, a in pairs])


_FC1 = "linear_fc1.weight"


def _resharded_wrongly() -> list[Planted]:
    """Packed weights cut and joined as if they were not packed: 1 → 4, 4 → 1, and 4 → 2."""
    planted = []
    for source_ranks, ranks in ((1, 4), (4, 1), (4, 2)):
        right = conversion("megatron", "megatron", _SPEC, source_ranks=source_ranks, ranks=ranks)
        whole = np.concatenate([tensors[_FC1] for tensors in right.source])
        planted.append(
            Planted(
                name=f"packed [gate; up] of {source_ranks} ranks, joined and cut for {ranks}",
                check="row proof",
                fault=_replaced(right, _FC1, _cut_in_equal_parts(whole, ranks)),
                clean=right,
            )
        )
    return planted


def _channels_apart() -> Planted:
    """Gate by blocks of channels and up by every P-th."""
    right = conversion("hf-llama", "megatron", _SPEC, ranks=4)
    (source,) = right.source
    gate = np.split(source["gate_proj.weight"], 4)
    up = [source["up_proj.weight"][rank::4] for rank in range(4)]
    packed = [np.concatenate(pair) for pair in zip(gate, up, strict=True)]
    return Planted(
        name="gate cut in blocks of channels, up dealt out channel by channel",
        check="row proof",
        fault=_replaced(right, _FC1, packed),
        clean=right,
    )


def _data_shards_in_the_wrong_order() -> Planted:
    """2 tensor-parallel × 4 data-parallel files, joined as if ranks ran the other way."""
    right = conversion("hf-llama", "megatron", _SPEC, ranks=2)
    files = [split_data_shards(tensors, 4) for tensors in right.target]
    listed = [files[rank][part] for rank in range(2) for part in range(4)]
    wrong: list[Tensors] = [join_data_shards(listed[rank::2]) for rank in range(2)]
    return Planted(
        name="FSDP shards of two ranks joined in the order of the other mesh axis",
        check="row proof",
        fault=right.with_target(wrong),
        clean=right.with_target([join_data_shards(shards) for shards in files]),
    )


def apart(folder: Path) -> list[Planted]:
    """24: channels of one branch on another rank than those of the other."""
    biased = [
        Planted(
            name=f"the output bias added by each of {parts} ranks ({check})",
            check=check,
            fault=sublayer(over_ranks(parts, finish_each=True), _BIASED),
            clean=sublayer(over_ranks(parts, finish_each=False), _BIASED),
        )
        for parts, check in ((2, "oracle"), (4, "oracle"), (4, "gradients"))
    ]
    split = {"spec": _SPEC, "mesh": {"data": 1, "fsdp": 1, "model": 2}}
    return [
        _channels_apart(),
        *_resharded_wrongly(),
        _data_shards_in_the_wrong_order(),
        *biased,
        Planted(
            name="branches and channels both split over 'model'",
            check="sharding rules",
            fault=Sharding(rules=Rules(branch=("model",)), **split),
            clean=Sharding(rules=Rules(), **split),
        ),
    ]


# 25: packing.


def _halves_exchanged(packed: np.ndarray) -> np.ndarray:
    return np.concatenate(np.split(packed, 2)[::-1])


def misread_packing(folder: Path) -> list[Planted]:
    """25: one packing written, another one stated."""
    planted = []
    for target, name, ranks in (("hf-phi3", "gate_up_proj.weight", 1), ("megatron", _FC1, 4)):
        right = conversion("hf-llama", target, _SPEC, ranks=ranks)
        halves = [_halves_exchanged(tensors[name]) for tensors in right.target]
        each = f" in each of {ranks} ranks" if ranks > 1 else ""
        planted.append(
            Planted(
                name=f"[up; gate] where {target} has [gate; up]{each}",
                check="row proof",
                fault=_replaced(right, name, halves),
                clean=right,
            )
        )
    wide = variant("swiglu", d_model=4, d_ff=64)
    halves = conversion("hf-llama", "megatron", wide).target[0][_FC1]
    for width in (1, 32):
        right = conversion("hf-llama", f"megatron-interleave-{width}", wide)
        planted.append(
            Planted(
                name=f"[gate; up] in halves where blocks of {width} alternate",
                check="row proof",
                fault=_replaced(right, _FC1, [halves]),
                clean=right,
            )
        )
    right = released(folder / "right", target_layout="megatron")
    wrong = released(folder / "wrong", target_layout="megatron")
    edit_manifest(wrong, lambda m: m["checkpoint"].update(layout="megatron-interleave-1"))
    planted.append(
        Planted(
            name="a manifest that says interleaved of tensors in halves",
            check="manifest",
            fault=Folder(path=wrong),
            clean=Folder(path=right),
        )
    )
    return planted


ROWS: tuple[Failure, ...] = (
    Failure(
        id=24,
        title="Gate and up sharded differently",
        symptom="Local shapes fit and the product runs; outputs are of unrelated channels.",
        cause="A packed weight cut as if it were one matrix; files joined along the wrong mesh "
        "axis; a bias that each rank adds.",
        detector="Known rows through the ranks' tensors; the sum over ranks against the oracle, "
        "outputs and gradients; rules that would split branches are refused.",
        fix="Cut F, never the packed axis: each rank holds [gate_r; up_r].",
        build=apart,
    ),
    Failure(
        id=25,
        title="One packing written, another one read",
        symptom="Shape, type and memory are the same; the function is not.",
        cause="Value-first and gate-first, halves and interleaved blocks: nothing in the tensor "
        "tells.",
        detector="Known rows through both readings; a manifest records what they came out as.",
        fix="State order and block width in the layout, and verify against the recorded rows.",
        build=misread_packing,
    ),
)

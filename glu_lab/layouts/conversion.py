"""What a conversion is asked to do, and what it did; data alone.

Dimension letters: E experts, P tensor-parallel degree.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from glu_lab.layouts.layout import Layout
from glu_lab.layouts.plan import Plan
from glu_lab.layouts.proof import RowProof

#: Bytes of one file of the target.
SHARD_BYTES = 5 * 10**9

Rest = Literal["refuse", "keep"]
#: Called with a phase (``checking``, ``writing``, ``proving``), how much is done, of how much.
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to convert, and how.

    Attributes:
        source: a checkpoint of any kind that `open_ranks` opens.
        target: the folder to be.
        source_layout: name; None where the source's manifest states it.
        target_layout: name.
        ranks: P of the target.
        variant: the function, where the user states it.
        config: the model's config; by default the ``config.json`` beside the source.
        rest: what to do with tensors that are of no FFN.
        zero_biases: lets biases of zeros be created where the target always has some.
        experts: E, for layouts that join the experts with another axis.
        source_prefix, target_prefix: everything before an FFN's own names, with ``{layer}``, where
            it is none that the layout knows.
        leading: for FFNs alone, which leading axes they have; by default as the manifest says.
        step: of a training run's checkpoint; None for the newest.
        every: whether every FFN is evaluated by rows, not only the first and last of a stack.
        layouts: a user's own layouts.
        shard_bytes: of one file of the target.
        revision: of the source tree, for the manifest.
    """

    source: Path
    target: Path
    source_layout: str | None
    target_layout: str
    ranks: int = 1
    variant: str | None = None
    config: Path | None = None
    rest: Rest = "refuse"
    zero_biases: bool = False
    experts: int | None = None
    source_prefix: str | None = None
    target_prefix: str | None = None
    leading: tuple[str, ...] | None = None
    step: int | None = None
    every: bool = False
    layouts: Mapping[str, Layout] = dataclasses.field(default_factory=dict)
    shard_bytes: int = SHARD_BYTES
    revision: str | None = None


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What was written.

    Attributes:
        target: the folder.
        plan: what was done.
        function_from: who stated the function.
        proof: of the rows.
        kept: tensors that were carried over unconverted.
        nbytes: of all tensors written.
        manifest: the document in the folder.
    """

    target: Path
    plan: Plan
    function_from: str
    proof: RowProof
    kept: tuple[str, ...]
    nbytes: int
    manifest: Mapping[str, Any]

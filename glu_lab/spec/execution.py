"""How a model is run: time and memory, never the function."""

import dataclasses
from typing import Literal

from glu_lab.spec.checks import check_choices
from glu_lab.spec.sharding import Rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """Choices that may change on resume.

    Attributes:
        scan_layers: one compiled layer body in a loop (True) or the layers written out (False).
        remat: what backward recomputes: ``none``; ``block`` everything but each layer's input;
            ``dots`` everything but matrix products.
        mesh: sizes of the mesh axes, ``"data=1,fsdp=1,model=1"``; -1 takes the remaining devices.
        rules: which mesh axes split which dimensions.
    """

    scan_layers: bool = True
    remat: Literal["none", "block", "dots"] = "none"
    mesh: str = "data=-1,fsdp=1,model=1"
    rules: Rules = Rules()

    def __post_init__(self):
        check_choices(self)

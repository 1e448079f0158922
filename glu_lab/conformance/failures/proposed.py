"""Artefacts that are proposed and not made yet: a comparison, a sharding; a small experiment.

Dimension letters: D d_model, F d_ff.
"""

import dataclasses
import math
from collections.abc import Mapping

from glu_lab.layers import ffn
from glu_lab.spec.experiment import (
    Data,
    Experiment,
    Optimizer,
    Recording,
    Schedule,
    Training,
)
from glu_lab.spec.ffn import FFN
from glu_lab.spec.model import Attention, Model
from glu_lab.spec.sharding import Rules, Split
from glu_lab.spec.variants import variant
from glu_lab.studies.overlay import apply_overlay
from glu_lab.studies.study import Study

#: D and F of the small decoder, with 512 words of vocabulary: seconds on a CPU.
_WIDTHS = (32, 84)


def small_experiment(text: str = "swiglu", steps: int = 60) -> Experiment:
    """A decoder of two layers on State of the Union addresses."""
    D, F = _WIDTHS
    return Experiment(
        name=f"small/{text}",
        model=Model(
            kind="decoder",
            vocab_size=512,
            d_model=D,
            num_layers=2,
            max_length=64,
            attention=Attention(num_heads=2, num_kv_heads=1, head_dim=D // 2),
            ffn=variant(text, d_model=D, d_ff=F),
        ),
        data=Data(
            corpus="sotu",
            vocab_size=512,
            objective="causal_lm",
            input_length=64,
            validation_fraction=0.01,
        ),
        training=Training(
            steps=steps,
            batch_size=16,
            optimizer=Optimizer(kind="adamw", clip_norm=1.0),
            schedule=Schedule(kind="cosine", peak=0.01, warmup_steps=10, warmup="linear"),
        ),
        recording=Recording(log_every=max(steps, 1)),
        eval_batch_size=64,
    )


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A study, as somebody proposes it.

    Attributes:
        study: its points and the budget that it promises.
    """

    study: Study

    def seems_right(self) -> bool:
        """Every point is a config that builds, at the same d_model."""
        built = [apply_overlay(self.study.base, point.overlay) for point in self.study.points]
        return len({experiment.model.d_model for experiment in built}) == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharding:
    """Rules by which an FFN's parameters are to be laid out.

    Attributes:
        rules: logical → mesh axes.
        spec: the FFN.
        mesh: axis → size.
    """

    rules: Rules
    spec: FFN
    mesh: Mapping[str, int]

    def layouts(self) -> dict[str, tuple[Split, ...]]:
        """The split of every parameter.

        Raises:
            SpecError: where there is none.
        """
        table = ffn.parameters(self.spec)
        return {name: self.rules.splits(entry.axes) for name, entry in table.items()}

    def seems_right(self) -> bool:
        """Every dimension divides by the devices that are to split it."""
        return all(
            size % math.prod(self.mesh[axis] for axis in getattr(self.rules, name)) == 0
            for entry in ffn.parameters(self.spec).values()
            for name, size in zip(entry.axes, entry.shape, strict=True)
        )

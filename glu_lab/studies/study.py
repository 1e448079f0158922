"""A study: one question, the points that answer it, and the budget that makes them comparable.

`expand` turns a study into its runs and refuses, before anything is trained, a comparison that is
not at the budget the study promises.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from glu_lab.budget import ledger
from glu_lab.errors import BudgetError, SpecError, UnknownNameError
from glu_lab.spec.codec import encode
from glu_lab.spec.experiment import Experiment
from glu_lab.spec.identity import difference, identity
from glu_lab.spec.model import Model
from glu_lab.spec.variants import variant_name
from glu_lab.studies.axes import Point
from glu_lab.studies.overlay import apply_overlay

Policy = Literal["params", "macs", "width", "none"]

#: What each budget policy holds equal, in words.
POLICIES: Mapping[str, str] = {
    "params": "parameters of one FFN",
    "macs": "multiply-accumulates per token of one FFN",
    "width": "d_ff",
    "none": "nothing",
}

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# Fields of a Model, outside its FFN, that change no parameter count.
_NO_PARAMETERS = {
    "": (
        "max_length",
        "embedding_scale",
        "logits_scale",
        "residual_dropout",
        "embedding_dropout",
        "final_dropout",
        "embedding_init",
        "logits_init",
        "depth_scaled_output",
    ),
    "attention": ("scale_scores", "dropout", "q_init", "k_init", "v_init", "o_init"),
    "norm": ("eps", "placement"),
    "positions": ("rope_theta", "max_distance", "relative_init"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A set of runs that differ in declared places only.

    Attributes:
        name: folder of its results.
        question: what it asks, one sentence.
        base: the config that every point is laid over.
        axes: the points, made with the combinators of `glu_lab.studies.axes`; several axes become
            one list of points with `product`, `zip_` or `chain`.
        seeds: every point is run with each; seeds pair runs across points.
        budget: what the points have equal: ``params``, ``macs``, ``width`` or ``none``.
        tolerance: largest relative difference to the baseline's budget; 0 for exact equality. A
            decimal number means that decimal (0.01 is 1/100).
        metric: what is compared; lower is better.
        baseline: name of the point that the others are compared with.
        notes: for readers of the table.
    """

    name: str
    question: str
    base: Experiment
    axes: Sequence[Point]
    baseline: str
    seeds: tuple[int, ...] = (0, 1, 2)
    budget: Policy = "params"
    tolerance: float = 0.0
    metric: Literal["log_perplexity"] = "log_perplexity"
    notes: str = ""

    def __post_init__(self):
        if not _SAFE_NAME.fullmatch(self.name):
            raise SpecError(
                f"study name {self.name!r} names a folder; use letters, digits, '.', '_' and '-'."
            )
        if self.budget not in POLICIES:
            raise UnknownNameError("budget policy", str(self.budget), POLICIES)
        if self.metric != "log_perplexity":
            raise UnknownNameError("metric", str(self.metric), ("log_perplexity",))
        if not 0 <= self.tolerance < 1:
            raise SpecError(
                f"tolerance is a relative difference in [0, 1), got {self.tolerance!r}; "
                "1 % is 0.01."
            )
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not self.axes:
            raise SpecError(f"study {self.name!r} has no points.")
        for point in self.axes:
            if not isinstance(point, Point):
                raise SpecError(
                    f"axes of study {self.name!r} must be points, got {point!r}; join several axes "
                    "with product, zip_ or chain."
                )
        if not self.seeds:
            raise SpecError(f"study {self.name!r} has no seeds; give at least one, for example 0.")
        for seed in self.seeds:
            if isinstance(seed, bool) or not isinstance(seed, int):
                raise SpecError(f"seeds are integers, got {seed!r}.")
        _refuse_repeats("seed", self.seeds)
        names = [point.name for point in self.points]
        _refuse_repeats("point", names)
        if self.baseline not in names:
            raise UnknownNameError("baseline point", str(self.baseline), names)
        for point in self.points:
            for key in ("seed", "name"):
                if key in point.overlay:
                    raise SpecError(
                        f"point {point.name!r} sets {key!r}; a study sets it itself"
                        + (" from Study.seeds." if key == "seed" else ".")
                    )

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of the axes."""
        return tuple(self.axes)

    @property
    def axis_keys(self) -> tuple[str, ...]:
        """The config keys that points set, in order of appearance."""
        return tuple(dict.fromkeys(key for point in self.points for key in point.overlay))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One run of a study.

    Attributes:
        point: name of its point.
        seed: its seed.
        experiment: the resolved config.
        variant: name of the FFN's variant.
        d_ff, params, macs_per_token: realised width and budget of one FFN.
        param_delta, mac_delta: differences to the baseline's FFN.
    """

    point: str
    seed: int
    experiment: Experiment
    variant: str
    d_ff: int
    params: int
    macs_per_token: int
    param_delta: int
    mac_delta: int

    @property
    def num_ffns(self) -> int:
        """FFN sublayers of the whole model."""
        model = self.experiment.model
        return model.num_layers + model.num_encoder_layers

    @property
    def label(self) -> str:
        """Point and seed, for people."""
        return f"{self.point} · seed {self.seed}"


def expand(study: Study) -> list[Member]:
    """The runs of a study, all seeds of a point together, checked for a matched budget.

    Returns:
        One member a point and seed, in the order of points, then seeds.

    Raises:
        SpecError: for a point that builds nothing, or a cell that is there twice.
        BudgetError: when a point's budget or the rest of its model differs from the baseline's by
            more than the study allows; all offenders are listed with their numbers.
    """
    experiments = {point.name: _resolve(study, point) for point in study.points}
    _refuse_repeated_cells(experiments)
    baseline = experiments[study.baseline]
    reference = ledger(baseline.model.ffn)
    members = []
    for point, experiment in experiments.items():
        ffn = experiment.model.ffn
        cost = ledger(ffn)
        for seed in study.seeds:
            members.append(
                Member(
                    point=point,
                    seed=seed,
                    experiment=dataclasses.replace(
                        experiment, seed=seed, name=f"{study.name}/{point}/s{seed}"
                    ),
                    variant=variant_name(ffn),
                    d_ff=ffn.d_ff,
                    params=cost.params,
                    macs_per_token=cost.macs_per_token,
                    param_delta=cost.params - reference.params,
                    mac_delta=cost.macs_per_token - reference.macs_per_token,
                )
            )
    _refuse_unmatched(study, members)
    return members


def _resolve(study: Study, point: Point) -> Experiment:
    try:
        return apply_overlay(study.base, point.overlay)
    except UnknownNameError:
        raise
    except SpecError as error:
        raise type(error)(f"point {point.name!r}: {error}") from error


def _refuse_repeats(kind: str, values: Sequence[Any]) -> None:
    repeated = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    if repeated:
        raise SpecError(
            f"{kind} {', '.join(map(repr, repeated))} is there more than once; a study has each "
            f"{kind} once."
        )


def _refuse_repeated_cells(experiments: Mapping[str, Experiment]) -> None:
    """Two names for one run would be trained once and averaged twice."""
    seen: dict[Any, str] = {}
    for name, experiment in experiments.items():
        # A run is named by its data's content, unknown here; places stand in for it.
        places = f"{experiment.data.path}|{experiment.data.tokenizer}"
        key = repr(identity(experiment, places))
        if key in seen:
            raise SpecError(
                f"points {seen[key]!r} and {name!r} are the same cell: they resolve to one run "
                "(execution and recording do not name a run). Remove one of them."
            )
        seen[key] = name


def _refuse_unmatched(study: Study, members: Sequence[Member]) -> None:
    if study.budget == "none":
        return
    baseline = next(member for member in members if member.point == study.baseline)
    tolerance = Fraction(str(study.tolerance))
    attribute = {"params": "params", "macs": "macs_per_token", "width": "d_ff"}[study.budget]
    allowed = getattr(baseline, attribute)
    lines = []
    for member in members:
        if member.seed != study.seeds[0]:
            continue
        value = getattr(member, attribute)
        if abs(value - allowed) > tolerance * allowed:
            lines.append(_unmatched_line(member, baseline, attribute))
        rest = difference(
            _parameters_outside_ffn(baseline.experiment.model),
            _parameters_outside_ffn(member.experiment.model),
        )
        if rest:
            lines.append(f"  {member.point}: the model outside its FFNs differs: {'; '.join(rest)}")
    if lines:
        limit = "exactly" if not tolerance else f"within {study.tolerance:.6%}"
        raise BudgetError(
            f"study {study.name!r} compares at equal {POLICIES[study.budget]} ({limit}), but not "
            f"every point is at the budget of {study.baseline!r}:\n"
            + "\n".join(lines)
            + "\nUse variants_matched for the widths, widen tolerance, or state budget='none'."
        )


def _unmatched_line(member: Member, baseline: Member, attribute: str) -> str:
    value, allowed = getattr(member, attribute), getattr(baseline, attribute)
    unit = {
        "params": " parameters an FFN",
        "macs_per_token": " MACs per token and FFN",
        "d_ff": " hidden channels",
    }[attribute]
    line = (
        f"  {member.point} (d_ff {member.d_ff}): {value:,}{unit}, baseline {allowed:,}: "
        f"{value - allowed:+,} ({(value - allowed) / allowed:+.3%})"
    )
    if member.num_ffns == baseline.num_ffns and member.param_delta:
        line += (
            f"; over its {member.num_ffns} FFNs the model has "
            f"{member.param_delta * member.num_ffns:+,} parameters"
        )
    return line


def _parameters_outside_ffn(model: Model) -> dict[str, Any]:
    """The fields of a model, FFN aside, that decide how many parameters it has."""
    fields = encode(model)
    del fields["ffn"]
    for part, names in _NO_PARAMETERS.items():
        target = fields[part] if part else fields
        for name in names:
            del target[name]
    return fields

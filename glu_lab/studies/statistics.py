"""Comparisons of points by paired seeds.

Runs of one seed see the same batches and share every weight they have in common, so their losses
move together: the difference within a seed is steadier than either loss. Differences are therefore
taken seed by seed, and their mean gets a Student interval (W. S. Gosset, "The Probable Error of a
Mean", Biometrika 1908). Only complete runs enter; what else there is is reported, never averaged.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from scipy import stats

from glu_lab.errors import SpecError, name_list

CONFIDENCE = 0.95

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        n: number of values.
        mean: their mean; None for no values.
        se: standard error of the mean, sd/√n with n − 1 in the variance; None for n < 2.
        ci95: Student interval with n − 1 degrees of freedom; None for n < 2.
        p_value: two-sided, of the mean being 0; None for n < 2.
    """

    n: int
    mean: float | None
    se: float | None
    ci95: Interval | None
    p_value: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, standard error and 95 % interval of a few values.

    Raises:
        SpecError: for a value that is not finite.
    """
    for value in values:
        if not math.isfinite(value):
            raise SpecError(f"only finite values are averaged, got {value!r}.")
    n = len(values)
    if n == 0:
        return Estimate(0, None, None, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(1, mean, None, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    se = math.sqrt(variance / n)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)) * se
    if se > 0:
        p_value = float(2 * stats.t.sf(abs(mean) / se, n - 1))
    else:
        p_value = 1.0 if mean == 0 else 0.0
    return Estimate(n, mean, se, (mean - half, mean + half), p_value)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One point minus another, paired by seed; negative means that the first is better.

    Attributes:
        name, other: the points.
        seeds: seeds that both have.
        unpaired: seeds that only one has, which take no part.
        estimate: of the paired differences.
    """

    name: str
    other: str
    seeds: tuple[int, ...]
    unpaired: tuple[int, ...]
    estimate: Estimate

    @property
    def separated(self) -> bool | None:
        """Whether the 95 % interval excludes 0; None without an interval."""
        if self.estimate.ci95 is None:
            return None
        low, high = self.estimate.ci95
        return low > 0 or high < 0

    def __str__(self) -> str:
        if self.estimate.mean is None:
            return "no common seed"
        seeds = f"{self.estimate.n} seed{'s' if self.estimate.n > 1 else ''}"
        if self.estimate.ci95 is None:
            return f"{self.estimate.mean:+.4f}, {seeds}, no interval"
        low, high = self.estimate.ci95
        return f"{self.estimate.mean:+.4f} [{low:+.4f}, {high:+.4f}], {seeds}"


def paired(
    name: str, values: Mapping[int, float], other: str, other_values: Mapping[int, float]
) -> Difference:
    """The differences of two points over their common seeds.

    Args:
        name, other: the points.
        values, other_values: seed → result of a complete run.
    """
    common = tuple(sorted(values.keys() & other_values.keys()))
    unpaired = tuple(sorted(values.keys() ^ other_values.keys()))
    differences = [values[seed] - other_values[seed] for seed in common]
    return Difference(name, other, common, unpaired, estimate(differences))


def holm(p_values: Mapping[str, float], level: float = 1 - CONFIDENCE) -> list[str]:
    """The names that Holm's step-down procedure rejects (Holm, Scand. J. Statist. 6, 1979)."""
    rejected = []
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for index, (name, p_value) in enumerate(ordered):
        if p_value > level / (len(ordered) - index):
            break
        rejected.append(name)
    return rejected


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All points of a study against its baseline, and against their neighbours in rank.

    Attributes:
        baseline: name of the baseline.
        means: point → mean over its complete seeds.
        differences: point → difference to the baseline, the baseline itself left out.
        neighbours: differences of points adjacent in rank, worse minus better.
        statements: what can and cannot be said, in words.
    """

    baseline: str
    means: Mapping[str, Estimate]
    differences: Mapping[str, Difference]
    neighbours: tuple[Difference, ...]
    statements: tuple[str, ...]


def compare(results: Mapping[str, Mapping[int, float]], baseline: str) -> Comparison:
    """Compares points by their log-perplexity, lower being better.

    Args:
        results: point → seed → result, of complete runs only; a point without any is allowed.
        baseline: a point of `results`.

    Returns:
        Estimates and the sentences that they support. Where an interval contains 0 the sentence
        says that the order is not established.
    """
    means = {
        name: estimate([values[s] for s in sorted(values)]) for name, values in results.items()
    }
    differences = {
        name: paired(name, values, baseline, results[baseline])
        for name, values in results.items()
        if name != baseline
    }
    ranked = sorted(
        (name for name in results if means[name].mean is not None),
        key=lambda name: means[name].mean or 0.0,
    )
    neighbours = tuple(
        paired(worse, results[worse], better, results[better])
        for better, worse in itertools.pairwise(ranked)
    )
    statements = (
        *_baseline_statements(baseline, means, differences),
        *_pairing_statements(differences),
        *_rank_statements(neighbours),
    )
    return Comparison(baseline, means, differences, neighbours, statements)


def _baseline_statements(
    baseline: str, means: Mapping[str, Estimate], differences: Mapping[str, Difference]
) -> list[str]:
    if means[baseline].mean is None:
        return [f"The baseline {baseline} has no complete run: no differences can be given."]
    judged = {name: d for name, d in differences.items() if d.separated is not None}
    statements = []
    for side, word in ((-1, "Better"), (1, "Worse")):
        names = [n for n, d in judged.items() if d.separated and side * (d.estimate.mean or 0) > 0]
        if names:
            listed = "; ".join(f"{name} {judged[name]}" for name in names)
            statements.append(
                f"{word} than {baseline}, the 95 % interval of the paired difference excluding 0: "
                f"{listed}."
            )
    tied = [name for name, d in judged.items() if not d.separated]
    if tied:
        listed = "; ".join(f"{name} {judged[name]}" for name in tied)
        statements.append(f"Not separated from {baseline}: {listed}.")
    single = [n for n, d in differences.items() if d.estimate.n == 1]
    if single:
        statements.append(
            f"One common seed gives no interval, so nothing is said of: {name_list(single)}. "
            "Run more seeds."
        )
    none = [n for n, d in differences.items() if d.estimate.n == 0]
    if none:
        statements.append(f"No complete run shares a seed with {baseline}: {name_list(none)}.")
    known = {n: d.estimate.p_value for n, d in judged.items() if d.estimate.p_value is not None}
    if len(known) > 1:
        kept = holm(known)
        statements.append(
            f"Each interval is for one comparison. Corrected for all {len(known)} (Holm, 5 %), "
            f"separated from {baseline}: {name_list(kept) or 'none'}."
        )
    return statements


def _pairing_statements(differences: Mapping[str, Difference]) -> list[str]:
    return [
        f"{d.name} and {d.other} are paired on seeds {', '.join(map(str, d.seeds))} only; what one "
        f"of them has beyond (seeds {', '.join(map(str, d.unpaired))}) enters its mean but not the "
        "difference."
        for d in differences.values()
        if d.unpaired and d.seeds
    ]


def _rank_statements(neighbours: Sequence[Difference]) -> list[str]:
    statements = []
    open_ranks = [d for d in neighbours if d.separated is False]
    if open_ranks:
        listed = "; ".join(f"{d.other} and {d.name} ({d})" for d in open_ranks)
        statements.append(f"Adjacent ranks that are not separated, so not an order: {listed}.")
    settled = [d for d in neighbours if d.separated]
    if settled:
        listed = "; ".join(f"{d.other} before {d.name} ({d})" for d in settled)
        statements.append(f"Adjacent ranks that are separated: {listed}.")
    unknown = [d for d in neighbours if d.separated is None]
    if unknown:
        listed = "; ".join(f"{d.other} and {d.name}" for d in unknown)
        statements.append(f"Adjacent ranks without an interval, so not an order: {listed}.")
    return statements

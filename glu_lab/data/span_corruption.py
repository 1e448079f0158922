"""Span corruption: hide spans of tokens in the input, ask for them in the target.

The objective and its arithmetic are T5's (Raffel et al. 2020, arXiv 1910.10683, section 3.1.4): of
n raw tokens ``round(n · density)`` are noise, in ``round(noise / mean span length)`` spans. The
input holds the other tokens and one sentinel for each span; the target holds, for each span, the
same sentinel and the span's tokens; both end with end-of-sequence.

One departure: T5's mask alternates runs and starts with kept tokens, so it always ends in noise and
the first token is never hidden. Here the spans are put into gaps between kept tokens that are drawn
without replacement, the gaps before the first and after the last kept token among them. Any
placement of separate spans is equally likely.

Letters: B batch, N raw tokens, S input length, R target length, K spans.
"""

import dataclasses

import numpy as np

from glu_lab.errors import DataError


@dataclasses.dataclass(frozen=True)
class Lengths:
    """What n raw tokens become.

    Attributes:
        raw: n.
        noise: tokens in spans.
        spans: number of spans.
    """

    raw: int
    noise: int
    spans: int

    @property
    def inputs(self) -> int:
        """Kept tokens, sentinels and end-of-sequence."""
        return self.raw - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        """Noise tokens, sentinels and end-of-sequence."""
        return self.noise + self.spans + 1

    @property
    def gaps(self) -> int:
        """Places for a span: before, between and after the kept tokens."""
        return self.raw - self.noise + 1


def lengths(raw: int, density: float, mean_span: float) -> Lengths:
    """The numbers of noise tokens and spans among `raw` ≥ 1 tokens.

    At least one token is noise and, of two or more, at least one is kept. There are never more
    spans than noise tokens, nor than gaps to put them in.
    """
    noise = min(max(round(raw * density), 1), max(raw - 1, 1))
    spans = min(max(round(noise / mean_span), 1), noise, raw - noise + 1)
    return Lengths(raw=raw, noise=noise, spans=spans)


def fit(input_length: int, density: float, mean_span: float) -> Lengths:
    """The largest number of raw tokens whose input is no longer than `input_length`.

    With density 0.15 and mean span 3, 512 inputs come from 568 raw tokens and have 114 targets.

    Raises:
        DataError: when not even two raw tokens fit, or so many spans that they would touch.
    """
    if lengths(2, density, mean_span).inputs > input_length:
        raise DataError(
            f"data.input_length={input_length} is too short for span corruption; it must be ≥ 3 "
            "(one kept token, one sentinel, end-of-sequence)."
        )
    # The length of the input never falls as raw tokens are added, so bisection finds the last fit.
    low, high = 2, 4
    while lengths(high, density, mean_span).inputs <= input_length:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if lengths(middle, density, mean_span).inputs <= input_length:
            low = middle
        else:
            high = middle
    found = lengths(low, density, mean_span)
    wanted = round(found.noise / mean_span)
    if wanted > found.gaps:
        raise DataError(
            f"data.noise_density={density} with data.mean_span_length={mean_span} asks for "
            f"{wanted} spans between {found.raw - found.noise} kept tokens, which would touch; "
            "lower the density or lengthen the spans."
        )
    return found


def draws_per_example(size: Lengths) -> int:
    """Uniform random numbers that `noise_mask` takes for one example."""
    return size.gaps + size.noise - 1


def noise_mask(size: Lengths, uniform: np.ndarray) -> np.ndarray:
    """Marks the noise tokens.

    Args:
        size: the numbers of tokens and spans.
        uniform: (B, `draws_per_example(size)`) random numbers in [0, 1).

    Returns:
        (B, N) bool with exactly `size.noise` True in exactly `size.spans` runs, a row.
    """
    batch = len(uniform)
    gap_has_span = _choose(uniform[:, : size.gaps], size.spans)
    starts_span = np.ones((batch, size.noise), bool)
    starts_span[:, 1:] = _choose(uniform[:, size.gaps :], size.spans - 1)
    # Each noise token stands after the kept tokens before its span's gap and the noise before it.
    gap_of_span = np.nonzero(gap_has_span)[1].reshape(batch, size.spans)
    span_of_token = np.cumsum(starts_span, axis=1) - 1
    place = np.take_along_axis(gap_of_span, span_of_token, axis=1) + np.arange(size.noise)
    mask = np.zeros((batch, size.raw), bool)
    np.put_along_axis(mask, place, True, axis=1)
    return mask


def _choose(uniform: np.ndarray, count: int) -> np.ndarray:
    """Marks the `count` smallest of each row: a uniform choice without replacement."""
    marked = np.zeros(uniform.shape, bool)
    if count:
        chosen = np.argpartition(uniform, count - 1, axis=1)[:, :count]
        np.put_along_axis(marked, chosen, True, axis=1)
    return marked


def corrupt(
    raw: np.ndarray, mask: np.ndarray, *, eos_id: int, first_sentinel: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits raw tokens into inputs and targets.

    Args:
        raw: (B, N) tokens.
        mask: (B, N) bool, the same number of noise tokens and of runs in every row.
        eos_id: ends both sequences.
        first_sentinel: id of the first span's sentinel; the next are counted down.

    Returns:
        inputs (B, S) and targets (B, R), int32, without padding.
    """
    batch = len(raw)
    starts = mask.copy()
    starts[:, 1:] &= ~mask[:, :-1]
    sentinel = first_sentinel + 1 - np.cumsum(starts, axis=1)
    eos = np.full((batch, 1), eos_id, np.int32)
    # Boolean selection reads row by row, and every row keeps the same number of entries.
    kept = np.where(starts, sentinel, raw)[starts | ~mask].reshape(batch, -1)
    pairs = np.stack([sentinel, raw], axis=-1)[np.stack([starts, mask], axis=-1)]
    inputs = np.concatenate([kept, eos], axis=1, dtype=np.int32)
    targets = np.concatenate([pairs.reshape(batch, -1), eos], axis=1, dtype=np.int32)
    return inputs, targets

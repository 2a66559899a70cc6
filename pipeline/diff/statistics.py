"""How sure a difference is. A sample has units: connections, groups of many connections, or parts of few ones. Messages
of one unit depend on each other, so units are resampled (bootstrap), never messages.

A difference is larger than the relative change `least` that matters, after `floor` is added to both sides: the null
hypothesis is a change of at most that much. No p-value is below the one of an exact permutation of the units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.01  # share of false differences among those reported
SUSPICIOUS = 0.05  # p-value of what is named although there are too few units
LARGE = math.log(2)  # change that is named where there are too few units for a p-value
RESAMPLES = 600
SMALLEST_UNITS = 4  # of each side, for a test
BINS = 50  # of a histogram, for each power of ten
FEWEST_IN_TAIL = 5  # values beyond a quantile


@dataclass(frozen=True)
class Change:
    """A value before and after, the confidence interval of the relative change (NaN for one from 0), and the p-value of
    no change that matters. `smallest_p`: the smallest that so many units can have; `large`: there is no p-value, but
    the change is large."""

    before: float
    after: float
    low: float
    high: float
    p: float
    effect: float
    smallest_p: float
    large: bool = False

    @property
    def tested(self) -> bool:
        """Whether there are units enough."""
        return self.smallest_p <= LEVEL


@dataclass(frozen=True)
class Sample:
    """Units of one side: `part` and `of` of a rate (float64, units), or counts of a histogram (float64, units x bins)
    whose first bin is `first`."""

    part: Any = None
    of: Any = None
    counts: Any = None
    first: int = 0
    connections: int = 0

    @property
    def units(self) -> int:
        return len(self.of) if self.counts is None else len(self.counts)


def rate(sample: Sample, rows: Any = None) -> Any:
    """The rate of all units, or of each resample of units (rows: int64, ... x units)."""
    if rows is None:
        return sample.part.sum() / max(sample.of.sum(), 1e-300)
    return sample.part[rows].sum(axis=-1) / np.maximum(sample.of[rows].sum(axis=-1), 1e-300)


def quantile(sample: Sample, of: float, rows: Any = None) -> Any:
    """A quantile of all units, or of each resample, from the histogram; within a bin by proportion, in logarithms."""
    if rows is None:
        counts = sample.counts.sum(axis=0)[None]
    else:
        flat = rows.reshape(-1, rows.shape[-1])
        times = np.zeros((len(flat), sample.units))
        np.add.at(times, (np.arange(len(flat))[:, None], flat), 1)
        counts = times @ sample.counts
    summed = counts.cumsum(axis=1)
    target = of * summed[:, -1:]
    at = np.minimum((summed < target).sum(axis=1), counts.shape[1] - 1)
    index = np.arange(len(counts))
    before = summed[index, at] - counts[index, at]
    inside = np.clip((target[:, 0] - before) / np.maximum(counts[index, at], 1e-300), 0, 1)
    found = 10 ** ((sample.first + at + inside) / BINS)
    return float(found[0]) if rows is None else found.reshape(rows.shape[:-1])


def compare(before: Sample, after: Sample, least: float, floor: float, of: float | None = None) -> Change | None:
    """The change of a rate, or of a quantile; None if it is too small to matter."""

    def value(sample: Sample, rows: Any = None) -> Any:
        return rate(sample, rows) if of is None else quantile(sample, of, rows)

    old, new = float(value(before)), float(value(after))
    effect = math.log((new + floor) / (old + floor))
    matters = math.log1p(least)
    if abs(effect) <= matters:
        return None
    if min(before.units, after.units) < SMALLEST_UNITS:
        return Change(old, new, math.nan, math.nan, 1.0, effect, 1.0, abs(effect) >= LARGE)
    low, high, error = interval(
        before.units, after.units, lambda i, j: np.log((value(after, j) + floor) / (value(before, i) + floor))
    )
    smallest = smallest_p(before.units, after.units)
    p = max(tail(abs(effect) - matters, error, before.units + after.units - 2), smallest)
    # Nothing shrinks by more than all of it.
    bounds = [max(((old + floor) * math.exp(x) - floor) / old - 1, -1.0) if old else math.nan for x in (low, high)]
    return Change(old, new, bounds[0], bounds[1], p, effect, smallest)


def few_in_tail(before: Sample, after: Sample, of: float) -> bool:
    """Whether a quantile above the median has too few values beyond it."""
    return of > 0.5 and min(sample.counts.sum() for sample in (before, after)) * (1 - of) < FEWEST_IN_TAIL


def tail_quantile(before: Sample, after: Sample) -> float | None:
    """The highest percentile up to the 99th that has enough values beyond it on both sides; None below the 90th."""
    fewest = min(sample.counts.sum() for sample in (before, after))
    of = math.floor(100 - 100 * FEWEST_IN_TAIL / fewest) / 100
    return min(of, 0.99) if of >= 0.9 else None


def interval(before: int, after: int, statistic: Any) -> tuple[float, float, float]:
    """Bounds of the confidence interval and the standard error of a statistic of two samples of units."""
    from scipy import stats

    units = np.arange(before), np.arange(after)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a statistic that never varies has no error
        found = stats.bootstrap(
            units, lambda i, j, axis=-1: statistic(i, j), n_resamples=RESAMPLES, confidence_level=1 - LEVEL,
            method="percentile", vectorized=True, batch=100, rng=np.random.default_rng(0),
        )  # fmt: skip
    bounds = found.confidence_interval
    return float(bounds.low), float(bounds.high), float(found.standard_error)


def tail(excess: float, error: float, freedom: int) -> float:
    """Two-sided p-value of an excess with its standard error."""
    from scipy import stats

    if not error > 0:
        return 0.0
    return float(2 * stats.t.sf(excess / error, freedom))


def smallest_p(before: int, after: int) -> float:
    """The smallest p-value of an exact permutation test of two samples."""
    return min(1.0, 2 / math.comb(before + after, before)) if before and after else 1.0


def shares(before: int, of_before: int, after: int, of_after: int) -> float:
    """Fisher's exact test of two shares."""
    from scipy import stats

    return float(stats.fisher_exact([[before, of_before - before], [after, of_after - after]]).pvalue)


def counts(before: int, after: int, expected: float) -> float:
    """Exact test of two counts, of which `expected` is the share that falls before if nothing changed."""
    from scipy import stats

    return float(stats.binomtest(before, before + after, expected).pvalue) if before + after else 1.0


def confident(p_values: Sequence[float]) -> list[bool]:
    """Which differences there are, so that at most LEVEL of them are false (Benjamini and Hochberg)."""
    from scipy import stats

    if not p_values:
        return []
    return [bool(p <= LEVEL) for p in stats.false_discovery_control(np.clip(p_values, 0, 1))]

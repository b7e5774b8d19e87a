"""Percentile bootstrap: 95 % intervals over sentences or pairs (Efron and Tibshirani 1993, chapter 13).

The same seed and number of rows give the same resamples, so intervals of two figures of one set are paired.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from leap.evidence.spearman import Array, Counts

# Entries of a block of resamples: bounds memory at some tens of megabytes whatever the size of the set.
BLOCK = 2_000_000


def mean_interval(values: Array, draws: int, seed: int) -> list[float]:
    """Return the 95 % interval [low, high] of a mean of [N] float64 by that many draws."""
    means = [counts @ values / len(values) for counts in resamples(len(values), draws, seed)]
    return percentile_interval(means)


def resamples(n: int, draws: int, seed: int) -> Iterator[Counts]:
    """Yield blocks of resamples with replacement: how often each of n rows was drawn, [S, n] int64."""
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // n)
    for start in range(0, draws, block):
        size = min(block, draws - start)
        drawn = generator.integers(n, size=(size, n)) + np.arange(size)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)


def percentile_interval(parts: list[np.ndarray[Any, np.dtype[np.float64]]]) -> list[float]:
    """Return [low, high]: the middle 95 % of a figure's values in blocks of resamples."""
    low, high = np.percentile(np.concatenate(parts), [2.5, 97.5])
    return [float(low), float(high)]

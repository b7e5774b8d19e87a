"""Spearman's rank correlation, for one sample and for thousands of resamples at once."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]


def spearman(x: Array, y: Array) -> float:
    """Return the correlation of average ranks of x and y, [N] float64 each, as scipy.stats.spearmanr computes it.

    0 where one side is constant, for a constant orders nothing.
    """
    return float(spearman_of_resamples(x, y, np.ones((1, len(x)), dtype=np.int64))[0])


def spearman_of_resamples(x: Array, y: Array, counts: Counts) -> Array:
    """Return the correlation in every resample, [S] float64 or [C, S], without sorting any of them.

    Args:
        x: [N] float64, or [C, N] for several at once.
        y: [N] float64.
        counts: [S, N] int64, how often each pair is in each resample; rows of one sum.
    """
    middle = (counts[0].sum() + 1) / 2
    dy = _ranks(y, counts) - middle
    spread = np.einsum("sn,sn,sn->s", counts, dy, dy)
    correlations: Array = np.stack([_of_one(row, counts, middle, dy, spread) for row in np.atleast_2d(x)])
    return correlations if x.ndim == 2 else correlations[0]


def _of_one(x: Array, counts: Counts, middle: float, dy: Array, spread: Array) -> Array:
    dx = _ranks(x, counts) - middle
    both = np.einsum("sn,sn,sn->s", counts, dx, dy)
    scale = np.sqrt(np.einsum("sn,sn,sn->s", counts, dx, dx) * spread)
    correlations: Array = np.divide(both, scale, out=np.zeros_like(both), where=scale > 0)
    return correlations


def _ranks(values: Array, counts: Counts) -> Array:
    """The average rank of each value within each resample, [S, N]."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Array = (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]
    return ranks

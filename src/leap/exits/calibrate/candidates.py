"""Candidate exit policies: thresholds a layer, made on sentences that the test does not see."""

from collections.abc import Sequence

import torch
from torch import Tensor

# A layer's threshold must let at least this share of the sentences leave: fewer are chance, and no saving.
SMALLEST_SHARE = 0.01
# Shares of bad rows that the thresholds aim at, relative to the risk demanded.
LEVELS = tuple(step / 20 for step in range(21))


def candidates(scores: Tensor, bad: Tensor, risk: float, levels: Sequence[float] = LEVELS) -> Tensor:
    """Policies for every first exit layer and every level of caution.

    Args:
        scores: [L, N] float32, minus infinity where a layer has none.
        bad: [L, N] bool, whether the layer's vector lies below the floor.
        risk: the share of bad rows that is allowed.
        levels: fractions of `risk`.

    Returns:
        [C, L] float32, different thresholds; none where no layer can be left at all.
    """
    found = [
        layer_thresholds(scores, bad, first, level * risk) for first in range(1, len(scores)) for level in levels
    ]
    different = {tuple(thresholds.tolist()): thresholds for thresholds in found if thresholds.isfinite().any()}
    return torch.stack([*different.values()]) if different else torch.empty(0, len(scores))


def layer_thresholds(scores: Tensor, bad: Tensor, first: int, allowed: float) -> Tensor:
    """The lowest thresholds, layer after layer, at which the share of bad ones among the leavers is allowed.

    Args:
        scores: [L, N].
        bad: [L, N].
        first: the first layer that may be left at.
        allowed: the share, for every layer.

    Returns:
        [L]; infinity below `first`, at L, and where no threshold will do.
    """
    depth, rows = scores.shape
    thresholds = torch.full((depth,), torch.inf)
    stays = torch.ones(rows, dtype=torch.bool)
    for layer in range(first - 1, depth - 1):
        found = lowest_threshold(scores[layer, stays], bad[layer, stays], allowed, SMALLEST_SHARE * rows)
        thresholds[layer] = found
        stays &= scores[layer] < found
    return thresholds


def lowest_threshold(scores: Tensor, bad: Tensor, allowed: float, least: float) -> float:
    """The lowest score such that, of the rows that reach it, the share of bad ones is at most `allowed`.

    Args:
        scores: [N].
        bad: [N].
        allowed: the share.
        least: how many rows must reach it.

    Returns:
        Infinity where there is none.
    """
    ordered, order = scores.sort(descending=True)
    reached = torch.arange(1, len(scores) + 1)
    # Rows of equal score leave together.
    last_of_equals = torch.ones(len(scores), dtype=torch.bool)
    last_of_equals[:-1] = ordered[:-1] != ordered[1:]
    fits = (bad[order].cumsum(0) <= allowed * reached) & last_of_equals & (reached >= least)
    fits &= ordered.isfinite()
    return ordered[fits.nonzero()[-1, 0]].item() if fits.any() else torch.inf

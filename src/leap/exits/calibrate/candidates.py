"""Candidate exit policies: thresholds a layer, made on sentences that the test does not see."""

import torch
from torch import Tensor

# A layer's threshold must let at least this share of the sentences leave: fewer are chance, and no saving.
SMALLEST_SHARE = 0.01
# Shares of bad rows that the thresholds aim at, relative to the risk demanded.
LEVELS = tuple(step / 20 for step in range(21))
# Neighbours may need vectors nearer than the floor asks for: floors so far on the way from it to cosine 1.
HIGHER_FLOORS = (0.25, 0.5, 0.75)
COARSE_LEVELS = (0.0, 0.5, 1.0)


def candidates(scores: Tensor, similarity: Tensor, floor: float, risk: float) -> Tensor:
    """Make policies for every first exit layer, for several floors and levels of caution.

    Args:
        scores: [L, N] float32, minus infinity where a layer has none.
        similarity: [L, N] float32, cosine of the layer's vector to full depth.
        floor: the lowest cosine that is good enough.
        risk: the share of vectors below the floor that is allowed.

    Returns:
        [C, L] float32, different thresholds; none where no layer can be left at all.
    """
    families = [(similarity < floor, LEVELS)]
    families += [(similarity < floor + part * (1 - floor), COARSE_LEVELS) for part in HIGHER_FLOORS]
    made = [
        layer_thresholds(scores, bad, first, level * risk)
        for bad, levels in families
        for first in range(1, len(scores))
        for level in levels
    ]
    different = {tuple(thresholds.tolist()): thresholds for thresholds in made if thresholds.isfinite().any()}
    return torch.stack([*different.values()]) if different else torch.empty(0, len(scores))


def layer_thresholds(scores: Tensor, bad: Tensor, first: int, allowed: float) -> Tensor:
    """Find the lowest thresholds, layer after layer, with an allowed share of bad ones among the leavers.

    Args:
        scores: [L, N], and so is bad.
        first: the first layer that may be left at.
        allowed: the share, for every layer.

    Returns:
        [L]; infinity below `first`, at L, and where no threshold will do.
    """
    depth, rows = scores.shape
    thresholds = torch.full((depth,), torch.inf)
    stays = torch.ones(rows, dtype=torch.bool)
    for layer in range(first - 1, depth - 1):
        lowest = lowest_threshold(scores[layer, stays], bad[layer, stays], allowed, SMALLEST_SHARE * rows)
        thresholds[layer] = lowest
        stays &= scores[layer] < lowest
    return thresholds


def lowest_threshold(scores: Tensor, bad: Tensor, allowed: float, least: float) -> float:
    """Find the lowest score such that, of the rows that reach it, the share of bad ones is at most `allowed`.

    `scores` and `bad` are [N]. Infinity where there is none that at least `least` rows reach.
    """
    ordered, order = scores.sort(descending=True)
    reached = torch.arange(1, len(scores) + 1)
    # Rows of equal score leave together.
    last_of_equals = torch.ones(len(scores), dtype=torch.bool)
    last_of_equals[:-1] = ordered[:-1] != ordered[1:]
    fits = (bad[order].cumsum(0) <= allowed * reached) & last_of_equals & (reached >= least)
    fits &= ordered.isfinite()
    return ordered[fits.nonzero()[-1, 0]].item() if fits.any() else torch.inf

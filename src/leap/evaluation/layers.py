"""What each layer is worth: the figures of the paper's layer tables, from pooled layers [L + 1, N, D] alone.

Layers are counted from 1; index 0 of `pooled` is the embedding layer.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluation.neighbours import neighbours, overlap
from leap.exits.rules import ExitRule, consecutive_similarity, converged, near_final, similarity_to_final

# Paper, Table "Per-layer early exit analysis": a layer is viable from here on.
VIABLE_SIMILARITY = 0.95
VIABLE_NN = 0.80


def layer_rows(pooled: Tensor, rule: ExitRule, overlaps: Tensor) -> list[dict[str, Any]]:
    """One row a layer, as docs/architecture.md lists them.

    Args:
        pooled: [L + 1, N, D] float32.
        rule: the deployable rule; the oracle uses its threshold alone, as the paper's tables do.
        overlaps: [L, N], of `layer_overlaps`.
    """
    depth = len(pooled) - 1
    similarity = similarity_to_final(pooled).mean(1).tolist()
    stability = consecutive_similarity(pooled, 1).mean(1).tolist()
    deployable = cumulative_rates(converged(pooled, rule), depth)
    oracle = cumulative_rates(near_final(pooled, rule.threshold), depth)
    kept = overlaps.mean(1).tolist()
    contractions, alignments = contraction(pooled), alignment(pooled)
    return [
        {
            "layer": layer + 1,
            "similarity_to_final": similarity[layer],
            "stability": stability[layer] if layer else None,
            "exit_rate_converged": deployable[layer],
            "exit_rate_near_final": oracle[layer],
            "nn_at_10": kept[layer],
            "nn_fail_50": share_below(overlaps[layer], 0.5),
            "nn_fail_30": share_below(overlaps[layer], 0.3),
            "contraction": contractions[layer],
            "alignment": alignments[layer],
            "viable": similarity[layer] >= VIABLE_SIMILARITY and kept[layer] >= VIABLE_NN,
        }
        for layer in range(depth)
    ]


def layer_overlaps(pooled: Tensor, k: int) -> Tensor:
    """NN@k of every sentence at every layer against the last layer, [L, N] float64."""
    reference = neighbours(pooled[-1], k)
    found = [overlap(neighbours(layer, k), reference) for layer in pooled[1:-1]]
    return torch.stack([*found, torch.ones(pooled.shape[1], dtype=torch.float64)])


def cumulative_rates(exits: Tensor, depth: int) -> list[float]:
    """The share of rows that have left by each layer; [N] int64 to L numbers, the last of them 1."""
    counts = torch.bincount(exits, minlength=depth + 1)[1:]
    return (counts.cumsum(0).double() / len(exits)).tolist()


def share_below(overlaps: Tensor, bound: float) -> float:
    """The share of sentences with an overlap below the bound."""
    return (overlaps < bound).double().mean().item()


def contraction(pooled: Tensor) -> list[float | None]:
    """gamma_l = |p_{l+1} - p_l| / |p_l - p_{l-1}|, the median over sentences (paper, Equation 5).

    Returns:
        L numbers; null at 1, where the step starts at the embeddings, at L, and where no sentence moves.
    """
    steps = pooled.diff(dim=0).norm(dim=-1)
    medians: list[float | None] = [None]
    for before, after in pairwise(steps[1:]):
        moving = before > 0
        median = (after[moving] / before[moving]).median().item() if moving.any() else math.nan
        medians.append(median if math.isfinite(median) else None)
    return [*medians, None][: len(steps)]


def alignment(pooled: Tensor) -> list[float | None]:
    """Final-aligned displacement cos(p_l - p_{l-1}, p_L - p_{l-1}), the mean over sentences; null at 1."""
    cosines = F.cosine_similarity(pooled.diff(dim=0), pooled[-1] - pooled[:-1], dim=-1)
    return [None, *cosines[1:].mean(1).tolist()]


def is_monotonic(values: Sequence[float]) -> bool:
    """Whether no value is below the one before it."""
    return all(after >= before for before, after in pairwise(values))


def interpolated(by_layer: Sequence[float], expected_layers: float) -> float:
    """A layer's figure at a depth between two layers: what cutting the model there would give.

    Args:
        by_layer: L numbers; the first is layer 1's.
        expected_layers: from 1 to L.
    """
    floor = math.floor(expected_layers)
    share = expected_layers - floor
    return by_layer[floor - 1] * (1 - share) + by_layer[math.ceil(expected_layers) - 1] * share

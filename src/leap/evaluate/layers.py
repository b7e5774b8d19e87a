"""The worth of each layer: the figures of the paper's layer tables, from pooled layers [L + 1, N, D] alone.

Layers are counted from 1; index 0 of `pooled` is the embedding layer.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.neighbours import NeighbourOverlap
from leap.exits.rules import ExitRule, consecutive_similarity, converged, near_final, similarity_to_final

# Paper, Table "Per-layer early exit analysis": a layer is viable from here on.
VIABLE_SIMILARITY = 0.95
VIABLE_NN = 0.80
# Of a mean of float32 cosines.
ROUNDING = 1e-6


def layer_rows(
    pooled: Tensor, rule: ExitRule, overlaps: Tensor, returned: Tensor | None = None
) -> list[dict[str, Any]]:
    """Tabulate the layers, as docs/formats.md lists them.

    Args:
        pooled: [L + 1, N, D] float32.
        rule: the deployable rule; the oracle uses its threshold alone, as the paper's tables do.
        overlaps: [L, N], of `layer_overlaps`.
        returned: what an exit at each layer gives, through the exit heads; `pooled` if None.
    """
    depth = len(pooled) - 1
    returned = pooled if returned is None else returned
    similarity = similarity_to_final(returned).mean(1).tolist()
    stability = consecutive_similarity(pooled, 1).mean(1).tolist()
    deployable, oracle = converged(pooled, rule), near_final(returned, rule.threshold)
    rates = {"converged": cumulative_rates(deployable, depth), "near_final": cumulative_rates(oracle, depth)}
    shares = {"converged": exit_shares(deployable, depth), "near_final": exit_shares(oracle, depth)}
    overlap = overlaps.mean(1).tolist()
    contractions, alignments = contraction(pooled), alignment(pooled)
    return [
        {
            "layer": layer + 1,
            "similarity_to_final": similarity[layer],
            "stability": stability[layer] if layer else None,
            "gradient": similarity[layer] - similarity[layer - 1] if layer else None,
            **{f"exit_rate_{name}": rates[name][layer] for name in rates},
            **{f"exit_share_{name}": shares[name][layer] for name in shares},
            "nn_at_10": overlap[layer],
            "nn_fail_50": share_below(overlaps[layer], 0.5),
            "nn_fail_30": share_below(overlaps[layer], 0.3),
            "contraction": contractions[layer],
            "alignment": alignments[layer],
            "viable": similarity[layer] >= VIABLE_SIMILARITY and overlap[layer] >= VIABLE_NN,
        }
        for layer in range(depth)
    ]


def layer_overlaps(overlaps: NeighbourOverlap) -> Tensor:
    """Return NN@k of every sentence at every layer against the last layer, [L, N] float64."""
    return torch.stack([overlaps(layer) for layer in range(1, len(overlaps.pooled))])


def cumulative_rates(exits: Tensor, depth: int) -> list[float]:
    """Return the share of rows that have left by each layer; [N] int64 to L numbers, the last of them 1."""
    counts = torch.bincount(exits, minlength=depth + 1)[1:]
    return (counts.cumsum(0).double() / len(exits)).tolist()


def exit_shares(exits: Tensor, depth: int) -> list[float]:
    """Return the share of rows that leave at each layer; [N] int64 to L numbers, which sum to 1."""
    counts = torch.bincount(exits, minlength=depth + 1)[1:]
    return (counts.double() / len(exits)).tolist()


def share_below(overlaps: Tensor, bound: float) -> float:
    """Return the share of sentences with an overlap below the bound."""
    return (overlaps < bound).double().mean().item()


def contraction(pooled: Tensor) -> list[float | None]:
    """Return gamma_l = |p_{l+1} - p_l| / |p_l - p_{l-1}|, the median over sentences (paper, Equation 5).

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
    """Return cos(p_l - p_{l-1}, p_L - p_{l-1}), final-aligned displacement, the mean over sentences; null at 1."""
    cosines = F.cosine_similarity(pooled.diff(dim=0), pooled[-1] - pooled[:-1], dim=-1)
    return [None, *cosines[1:].mean(1).tolist()]


def median_contraction(contractions: Sequence[float | None]) -> float | None:
    """Return the median over the layers that have a contraction ratio; the paper's LEAP has 0.911."""
    known = [value for value in contractions if value is not None]
    return median(known) if known else None


def is_monotonic(values: Sequence[float]) -> bool:
    """Tell whether no layer steps away from the final one (paper, "Monotonic Similarity Gradient").

    The paper asks for a positive derivative; a layer that changes nothing, as idle late layers do, is no step
    away, so a fall counts only from the rounding of float32 means on.
    """
    return all(after >= before - ROUNDING for before, after in pairwise(values))


def interpolate(by_layer: Sequence[float], expected_layers: float) -> float:
    """Return a figure, given at layers 1 to L, at a depth between two layers: cutting the model there gives it."""
    floor = math.floor(expected_layers)
    share = expected_layers - floor
    return by_layer[floor - 1] * (1 - share) + by_layer[math.ceil(expected_layers) - 1] * share

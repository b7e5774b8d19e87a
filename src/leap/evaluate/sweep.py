"""The trade-off between quality and depth: every combination of theta, l_min and k, after one pass.

Which point to use: `leap.evidence.bounds.recommended`.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch import Tensor

from leap.evaluate.judge import Judge
from leap.evidence.bounds import passes
from leap.exits.rules import consecutive_similarity, first_layer_at

Point = dict[str, Any]


def sweep(
    pooled: Tensor, judge: Judge, thresholds: Sequence[float], min_layers: Sequence[int], patiences: Sequence[int]
) -> list[Point]:
    """Judge every rule, in the order of patience, l_min (below the model's depth) and theta.

    Returns:
        threshold, min_layer, patience, the judge's figures, `passes` (the three bounds) and `efficient` (no
        other point is at once nearer to full depth and no deeper).
    """
    depth = len(pooled) - 1
    points = []
    for patience in (k for k in patiences if k < depth):
        scores = consecutive_similarity(pooled, patience)
        for min_layer, threshold in product((low for low in min_layers if low < depth), thresholds):
            figures = judge(first_layer_at(scores, threshold, min_layer))
            rule = {"threshold": threshold, "min_layer": min_layer, "patience": patience}
            points.append({**rule, **figures, "passes": passes(figures)})
    best = -1.0
    for point in sorted(points, key=lambda point: (point["expected_layers"], -point["similarity"])):
        point["efficient"] = point["similarity"] > best
        best = max(best, point["similarity"])
    return points

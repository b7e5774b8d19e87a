"""The trade-off between quality and depth: every combination of theta, l_min and k, after one pass.

Recommended is the point of fewest expected layers among those that pass the three bounds of the paper's
deployment checklist; of points with equal depth the one nearer to full depth.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch import Tensor

from leap.evaluation.bounds import ENOUGH_EXITS, ENOUGH_NEIGHBOURS, NEAR
from leap.evaluation.judge import Judge
from leap.exits.rules import ExitRule, consecutive_similarity, first_layer_at

Point = dict[str, Any]


def sweep(
    pooled: Tensor,
    judge: Judge,
    thresholds: Sequence[float],
    min_layers: Sequence[int],
    patiences: Sequence[int],
) -> list[Point]:
    """A row a combination, by depth.

    Args:
        pooled: [L + 1, N, D] float32.
        judge: of the same pooled layers.
        thresholds: theta.
        min_layers: l_min; those below the model's depth are taken.
        patiences: k, the same.

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
    points.sort(key=lambda point: (point["expected_layers"], -point["similarity"]))
    for point in points:
        point["efficient"] = point["similarity"] > best
        best = max(best, point["similarity"])
    return points


def passes(figures: Point) -> bool:
    """Whether a choice of layers keeps the paper's three bounds (Deployment Checklist)."""
    return bool(
        figures["rate"] > ENOUGH_EXITS
        and figures["similarity"] >= NEAR
        and figures["nn_at_10"] >= ENOUGH_NEIGHBOURS
    )


def recommended(points: Sequence[Point]) -> Point | None:
    """The rule of the recommended point, with its figures; null where no point passes."""
    passing = [point for point in points if point["passes"]]
    return min(passing, key=lambda point: (point["expected_layers"], -point["similarity"]), default=None)


def rule_of(point: Point) -> ExitRule:
    """A point's exit rule."""
    return ExitRule(point["threshold"], point["min_layer"], point["patience"])

"""Thresholds by token count: for each length the lowest theta that keeps its texts near full depth.

Long texts converge otherwise than short ones. The thresholds are chosen on one half of the texts and judged
on the other, both ways round, so no text is judged by a threshold that it helped to choose.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluate.lengths import ENOUGH, length_bins
from leap.evidence.bounds import NEAR
from leap.exits.rules import ExitRule, at_layers, consecutive_similarity, first_layer_at

# No cosine reaches it: texts of such a length use all layers.
NEVER = 2.0


def chosen_thresholds(
    pooled: Tensor, tokens: Tensor, rule: ExitRule, thresholds: Sequence[float], edges: Sequence[int]
) -> list[dict[str, Any]]:
    """For each length bin the lowest threshold at which its texts' mean similarity to full depth is kept.

    Args:
        pooled: [L + 1, N, D] float32, held-out texts.
        tokens: [N] int64.
        rule: l_min and k.
        thresholds: theta to choose from.
        edges: of the bins.

    Returns:
        A row a bin with enough texts: `tokens` [from, to], `threshold` (null: none keeps it, so all layers),
        `n`.
    """
    scores = consecutive_similarity(pooled, rule.patience)
    rows: list[dict[str, Any]] = []
    for bounds, mask in length_bins(tokens.numpy(), edges):
        inside = torch.from_numpy(mask)
        kept = [
            theta
            for theta in sorted(thresholds)
            if _similarity(pooled[:, inside], scores[:, inside], theta, rule) >= NEAR
        ]
        rows.append({"tokens": bounds, "threshold": kept[0] if kept else None, "n": int(inside.sum())})
    return rows


def exits_by_tokens(pooled: Tensor, tokens: Tensor, rule: ExitRule, table: list[dict[str, Any]]) -> Tensor:
    """Each row's exit layer, by the threshold of its length; [N] int64.

    A length that no bin of the table has takes the rule's own threshold.

    Args:
        pooled: [L + 1, N, D] float32.
        tokens: [N] int64.
        rule: l_min, k and the threshold of other lengths.
        table: of `chosen_thresholds`.
    """
    theta = torch.full(tokens.shape, rule.threshold)
    for row in table:
        low, high = row["tokens"]
        inside = (tokens >= low) & (tokens <= (high or tokens.max()))
        theta[inside] = NEVER if row["threshold"] is None else row["threshold"]
    scores = consecutive_similarity(pooled, rule.patience)
    return first_layer_at(scores - theta, 0.0, rule.min_layer)


def cross_fitted(
    pooled: Tensor, tokens: Tensor, rule: ExitRule, thresholds: Sequence[float], edges: Sequence[int]
) -> Tensor | None:
    """Each text's exit layer by thresholds chosen on the other half, [N] int64; null for too few texts."""
    if pooled.shape[1] < 2 * ENOUGH:
        return None
    half = torch.arange(len(tokens)) % 2 == 0
    exits = torch.empty_like(tokens)
    for judged in (half, ~half):
        table = chosen_thresholds(pooled[:, ~judged], tokens[~judged], rule, thresholds, edges)
        exits[judged] = exits_by_tokens(pooled[:, judged], tokens[judged], rule, table)
    return exits


def _similarity(pooled: Tensor, scores: Tensor, threshold: float, rule: ExitRule) -> float:
    exits = first_layer_at(scores, threshold, rule.min_layer)
    return F.cosine_similarity(at_layers(pooled, exits), pooled[-1], dim=-1).double().mean().item()

"""The diagnosis of a model's exits: its layers, the mixture that really leaves, its rivals, and a verdict."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluation.bootstrap import mean_interval
from leap.evaluation.layers import (
    interpolated,
    is_monotonic,
    layer_overlaps,
    layer_rows,
    share_below,
)
from leap.evaluation.neighbours import neighbours, overlap
from leap.exits.rules import ExitRule, at_layers, converged, near_final

# Paper, Deployment Checklist.
ENOUGH_EXITS = 0.5
NEAR = 0.94


def diagnose(pooled: Tensor, rule: ExitRule, k: int, draws: int, seed: int) -> dict[str, Any]:
    """Everything in diagnose.json below its head, `n` and `set` aside (docs/architecture.md).

    Args:
        pooled: [L + 1, N, D] float32, of unique sentences.
        rule: the deployable rule.
        k: neighbours of NN@k; below N.
        draws: bootstrap resamples.
        seed: of the resamples.
    """
    depth = len(pooled) - 1
    layers = layer_rows(pooled, rule, layer_overlaps(pooled, k))
    exits = converged(pooled, rule)
    mixture = exit_figures(pooled, exits, k, draws, seed)
    similarities = [row["similarity_to_final"] for row in layers]
    oracle = near_final(pooled, rule.threshold)
    return {
        "depth": depth,
        "layers": layers,
        "exit": mixture,
        "oracle": {"rate": exit_rate(oracle, depth), "expected_layers": oracle.double().mean().item()},
        "truncation": {
            "similarity": interpolated(similarities, mixture["expected_layers"]),
            "nn_at_10": interpolated([row["nn_at_10"] for row in layers], mixture["expected_layers"]),
        },
        "monotonic": is_monotonic(similarities),
        "verdict": verdict(mixture["rate"], mixture["similarity"]),
    }


def exit_figures(pooled: Tensor, exits: Tensor, k: int, draws: int, seed: int) -> dict[str, Any]:
    """The exited mixture against full depth: how many leave, how early, how near.

    NN@k compares the neighbours among exited vectors with the neighbours among full ones: an index built of
    exited vectors against one built of full ones.

    Args:
        pooled: [L + 1, N, D] float32.
        exits: [N] int64, each sentence's exit layer.
        k: neighbours.
        draws: bootstrap resamples over sentences.
        seed: of the resamples.
    """
    depth = len(pooled) - 1
    exited = at_layers(pooled, exits)
    similarity = F.cosine_similarity(exited, pooled[-1], dim=-1).double()
    kept = overlap(neighbours(exited, k), neighbours(pooled[-1], k))
    expected = exits.double().mean().item()
    counts = torch.bincount(exits).tolist()
    return {
        "rate": exit_rate(exits, depth),
        "expected_layers": expected,
        "layer_reduction": depth / expected,
        "layers": {str(layer): count for layer, count in enumerate(counts) if count},
        "similarity": similarity.mean().item(),
        "similarity_ci95": mean_interval(similarity.numpy(), draws, seed),
        "similarity_p05": float(np.percentile(similarity.numpy(), 5)),
        "nn_at_10": kept.mean().item(),
        "nn_at_10_ci95": mean_interval(kept.numpy(), draws, seed),
        "nn_fail_50": share_below(kept, 0.5),
    }


def exit_rate(exits: Tensor, depth: int) -> float:
    """The share of sentences that leave before the last layer."""
    return (exits < depth).double().mean().item()


def verdict(rate: float, similarity: float) -> str:
    """The three states of a model's exits, by the bounds of the paper's deployment checklist.

    A model that at most half of the sentences leave early counts as never exiting: it saves little, and how
    near its few early ones are says nothing about the rest.

    Args:
        rate: the share that leaves before the last layer.
        similarity: mean cosine of the exited mixture to full depth.
    """
    if rate <= ENOUGH_EXITS:
        return "never exits"
    return "exits and is near" if similarity >= NEAR else "exits and is far (false convergence)"

"""The diagnosis of a model's exits: its layers, the mixture that really leaves, its rivals, and a verdict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluate.gain import matched_oracle, mean_gain
from leap.evaluate.layers import (
    interpolate,
    is_monotonic,
    layer_overlaps,
    layer_rows,
    median_contraction,
    share_below,
)
from leap.evaluate.lengths import Mask, length_bins
from leap.evidence.bootstrap import mean_interval
from leap.evidence.bounds import ENOUGH_EXITS, NEAR
from leap.evidence.spearman import Array
from leap.exits.neighbours import NeighbourOverlap
from leap.exits.rules import ExitRule, at_layers, converged, near_final, similarity_to_final


def diagnose(
    neighbours: NeighbourOverlap,
    rule: ExitRule,
    tokens: Tensor,
    length_edges: Sequence[int],
    draws: int,
    seed: int,
    own: Tensor | None = None,
) -> dict[str, Any]:
    """Compute what diagnose.json says of one model's layers and exits (docs/formats.md).

    Args:
        neighbours: hold what exits of unique sentences return at each layer, [L + 1, N, D] float32.
        rule: the deployable rule.
        tokens: [N] int64, each sentence's length.
        length_edges: of the bins by length.
        draws: bootstrap resamples, of this seed.
        own: the layers' own vectors, which the rule compares; those of `neighbours` if None, without exit heads.
    """
    pooled = neighbours.pooled
    own = pooled if own is None else own
    depth = len(pooled) - 1
    overlaps = layer_overlaps(neighbours)
    layers = layer_rows(own, rule, overlaps, pooled)
    exits = converged(own, rule)
    mixture = exit_figures(neighbours, exits, draws, seed)
    similarities = [row["similarity_to_final"] for row in layers]
    oracle = near_final(pooled, rule.threshold)
    matched, threshold = matched_oracle(pooled, mixture["expected_layers"])
    curves = {"similarity": similarity_to_final(pooled).double().numpy(), "nn_at_10": overlaps.numpy()}
    chosen = {name: _chosen(neighbours, layers_of) for name, layers_of in (("gain", exits), ("ceiling", matched))}
    of_each = {"gain": exits, "ceiling": matched}
    return {
        "depth": depth,
        "layers": layers,
        "exit": mixture,
        "oracle": {"rate": exit_rate(oracle, depth), "expected_layers": oracle.double().mean().item()},
        "truncation": {
            "similarity": interpolate(similarities, mixture["expected_layers"]),
            "nn_at_10": interpolate([row["nn_at_10"] for row in layers], mixture["expected_layers"]),
        },
        "adaptive": {
            **adaptive_gains(curves, chosen, of_each, draws, seed),
            "ceiling_expected_layers": matched.double().mean().item(),
            "ceiling_threshold": threshold,
        },
        "by_length": [
            {
                "tokens": bounds,
                "n": int(inside.sum()),
                "rate": exit_rate(exits[torch.from_numpy(inside)], depth),
                "expected_layers": float(exits.numpy()[inside].mean()),
                **{name: float(chosen["gain"][name][inside].mean()) for name in curves},
                **adaptive_gains(curves, chosen, of_each, draws, seed, inside),
            }
            for bounds, inside in length_bins(tokens.numpy(), length_edges)
        ],
        "monotonic": is_monotonic(similarities),
        "contraction_median": median_contraction([row["contraction"] for row in layers]),
        "verdict": verdict(mixture["rate"], mixture["similarity"]),
    }


def exit_figures(overlaps: NeighbourOverlap, exits: Tensor, draws: int, seed: int) -> dict[str, Any]:
    """Compare the exited mixture with full depth: how many leave, how early, how near; exits are [N] int64.

    NN@k compares the neighbours among exited vectors with the neighbours among full ones: an index built of
    exited vectors against one built of full ones.
    """
    depth = len(overlaps.pooled) - 1
    own = _chosen(overlaps, exits)
    similarity, shared = own["similarity"], own["nn_at_10"]
    expected = exits.double().mean().item()
    counts = torch.bincount(exits).tolist()
    return {
        "rate": exit_rate(exits, depth),
        "expected_layers": expected,
        "layer_reduction": depth / expected,
        "layers": {str(layer): count for layer, count in enumerate(counts) if count},
        "similarity": float(similarity.mean()),
        "similarity_ci95": mean_interval(similarity, draws, seed),
        "similarity_p05": float(np.percentile(similarity, 5)),
        "nn_at_10": float(shared.mean()),
        "nn_at_10_ci95": mean_interval(shared, draws, seed),
        "nn_fail_50": share_below(torch.from_numpy(shared), 0.5),
        "nn_fail_30": share_below(torch.from_numpy(shared), 0.3),
    }


def adaptive_gains(
    curves: dict[str, Array],
    chosen: dict[str, dict[str, Array]],
    layers: dict[str, Tensor],
    draws: int,
    seed: int,
    some: Mask | None = None,
) -> dict[str, Any]:
    """Compute the adaptive gain of every figure and its ceiling, with intervals (see `leap.evaluate.gain`).

    Args:
        curves: figure to [L, N].
        chosen: "gain" and "ceiling", each figure to [N] at the chosen layers.
        layers: "gain" and "ceiling" to the chosen layers, [N] int64.
        some: [N] bool, the sentences that count; all if None.
    """
    rows = np.ones(len(layers["gain"]), dtype=np.bool_) if some is None else some
    gains: dict[str, Any] = {}
    for figure, curve in curves.items():
        for kind, own in chosen.items():
            where = layers[kind].double().numpy()[rows]
            gain = mean_gain(curve[:, rows], own[figure][rows], where, draws, seed)
            gains |= gain.as_evidence(f"{figure}_{kind}")
    return gains


def exit_rate(exits: Tensor, depth: int) -> float:
    return (exits < depth).double().mean().item()


def verdict(rate: float, similarity: float) -> str:
    """Name the state of a model's exits, by the bounds of the paper's deployment checklist.

    A model that at most half of the sentences leave early counts as never exiting: it saves little, and how
    near its few early ones are says nothing about the rest. `similarity` is the exited mixture's mean cosine to
    full depth.
    """
    if rate <= ENOUGH_EXITS:
        return "never exits"
    return "exits and is near" if similarity >= NEAR else "exits and is far (false convergence)"


def _chosen(overlaps: NeighbourOverlap, layers: Tensor) -> dict[str, Array]:
    vectors = at_layers(overlaps.pooled, layers)
    similarity = F.cosine_similarity(vectors, overlaps.pooled[-1], dim=-1).double()
    return {"similarity": similarity.numpy(), "nn_at_10": overlaps(layers).numpy()}

"""Adaptive gain: what choosing a depth for each text wins over one depth for all.

The rival is the same model cut at the same expected depth, interpolated between the layers below and above.
Positive means that adapting pays. The ceiling is the same gain for an oracle that sees the last layer
(`near_final`), at a threshold that makes it stop at the same expected depth: what is left to win.

Intervals are over resamples of texts or pairs, in each of which the expected depth is taken again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from leap.evidence.bootstrap import percentile_interval, resamples
from leap.evidence.spearman import Array, Counts, spearman_of_resamples
from leap.exits.rules import first_layer_at, similarity_to_final

# Halvings of the range of a cosine: the threshold is then exact to float32.
HALVINGS = 30


@dataclass(frozen=True)
class Gain:
    """A gain and its 95 % interval, [low, high]."""

    value: float
    interval: list[float]

    def as_evidence(self, name: str) -> dict[str, Any]:
        """Return the value under a name, its interval under `<name>_ci95`, as evidence has them."""
        return {name: self.value, f"{name}_ci95": self.interval}


def matched_oracle(pooled: Tensor, expected_layers: float) -> tuple[Tensor, float]:
    """Run the oracle `near_final` at the highest threshold whose expected depth is not above another rule's.

    Returns:
        Each row's layer, [N] int64, and the threshold.
    """
    scores = similarity_to_final(pooled)
    low, high = -1.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if first_layer_at(scores, middle, 1).double().mean().item() <= expected_layers:
            low = middle
        else:
            high = middle
    return first_layer_at(scores, low, 1), low


def mean_gain(by_layer: Array, chosen: Array, layers: Array, draws: int, seed: int) -> Gain:
    """Compute the gain of a figure that is a mean over texts.

    Args:
        by_layer: [L, N], each text's figure at each layer.
        chosen: [N], each text's figure at its own layer.
        layers: [N], each text's own layer, counted from 1.
    """
    parts = [_mean_gains(by_layer, chosen, layers, np.ones((1, len(chosen)), dtype=np.int64))]
    parts += [_mean_gains(by_layer, chosen, layers, counts) for counts in resamples(len(chosen), draws, seed)]
    return Gain(float(parts[0][0]), percentile_interval(parts[1:]))


def spearman_gains(by_layer: Array, layers: Array, chosen: Array, counts: Counts, scores: Array) -> Array:
    """Compute the gain in Spearman's correlation in every resample, [S].

    Args:
        by_layer: [L, P], each pair's cosine with both sides at one layer.
        layers: [P], the mean layer of both sides of each pair.
        chosen: [P], each pair's cosine with each side at its own layer.
        counts: [S, P] int64, of `resamples`.
        scores: [P].
    """
    depths = counts @ layers / counts[0].sum()
    needed = np.unique(np.concatenate(_between(depths, len(by_layer))))
    correlations = spearman_of_resamples(np.concatenate([chosen[None], by_layer[needed]]), scores, counts)
    curve = np.zeros((len(by_layer), len(counts)))
    curve[needed] = correlations[1:]
    gains: Array = correlations[0] - at_depths(curve, depths)
    return gains


def at_depths(curves: Array, depths: Array) -> Array:
    """Read each resample's curve over the layers, [L, S], at the resample's own depth between two layers, [S]."""
    lower, upper = _between(depths, len(curves))
    share = np.clip(depths - 1 - lower, 0.0, 1.0)
    columns = np.arange(len(depths))
    read: Array = curves[lower, columns] + (curves[upper, columns] - curves[lower, columns]) * share
    return read


def _between(depths: Array, layers: int) -> Sequence[Any]:
    """The indices of the layers below and above; a sum may miss 1 or L by its last bit."""
    lower = np.clip(np.floor(depths).astype(np.int64) - 1, 0, layers - 1)
    return lower, np.minimum(lower + 1, layers - 1)


def _mean_gains(by_layer: Array, chosen: Array, layers: Array, counts: Counts) -> Array:
    weights = counts / counts[0].sum()
    gains: Array = weights @ chosen - at_depths(by_layer @ weights.T, weights @ layers)
    # Sums of the same numbers in another order differ in their last bit; no gain is 0, not -1e-16.
    return gains.round(12) + 0.0

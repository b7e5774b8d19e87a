"""Any choice of exit layers, judged on pooled layers that are there already: no forward pass."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluate.layers import interpolate
from leap.evidence.spearman import Array, spearman
from leap.exits.neighbours import NeighbourOverlap
from leap.exits.rules import at_layers

GAINED = ("similarity", "nn_at_10", "spearman")


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs among N sentences.

    one, two: [P] int64, each side's place among the sentences.
    scores: [P] float64.
    """

    one: Tensor
    two: Tensor
    scores: Array


class Judge:
    """Quality and cost of exit layers, against full depth of the same model."""

    def __init__(self, overlaps: NeighbourOverlap, pairs: ScoredPairs | None = None) -> None:
        """Take what all choices share; `overlaps` holds [L + 1, N, D]; without `pairs` there is no Spearman."""
        self._overlap, self._pairs = overlaps, pairs
        self.pooled = overlaps.pooled
        full = torch.full((self.pooled.shape[1],), len(self.pooled) - 1)
        self._full = self._spearman(full) if pairs else None

    def __call__(self, exits: Tensor) -> dict[str, Any]:
        """Compute the figures of a choice of layers, [N] int64, counted from 1.

        Returns:
            rate, expected_layers, layer_reduction, similarity, nn_at_10; with pairs also spearman and
            quality, its share of full depth's (null where that is not above 0).
        """
        depth = len(self.pooled) - 1
        expected = exits.double().mean().item()
        exited = at_layers(self.pooled, exits)
        figures = {
            "rate": (exits < depth).double().mean().item(),
            "expected_layers": expected,
            "layer_reduction": depth / expected,
            "similarity": F.cosine_similarity(exited, self.pooled[-1], dim=-1).double().mean().item(),
            "nn_at_10": self._overlap(exits).mean().item(),
        }
        if self._full is None:
            return figures
        correlation = self._spearman(exits)
        quality = correlation / self._full if self._full > 0 else None
        return {**figures, "spearman": correlation, "quality": quality}

    def gains(self, figures: dict[str, Any]) -> dict[str, float]:
        """Compute what a choice of layers wins over cutting the same model at the same expected depth.

        Returns:
            similarity_gain, nn_at_10_gain and with pairs spearman_gain; 0 where nothing adapts.
        """
        depth = figures["expected_layers"]
        return {
            # Sums of the same numbers in another order differ in their last bit.
            f"{name}_gain": round(figures[name] - interpolate([row[name] for row in self._cut], depth), 9) + 0.0
            for name in GAINED
            if name in figures
        }

    @cached_property
    def _cut(self) -> list[dict[str, Any]]:
        rows = self.pooled.shape[1]
        return [self(torch.full((rows,), layer)) for layer in range(1, len(self.pooled))]

    def _spearman(self, exits: Tensor) -> float:
        assert self._pairs is not None
        vectors = at_layers(self.pooled, exits).double()
        cosines = F.cosine_similarity(vectors[self._pairs.one], vectors[self._pairs.two], dim=-1)
        return spearman(cosines.numpy().round(9), self._pairs.scores)

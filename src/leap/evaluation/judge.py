"""Any choice of exit layers, judged on pooled layers that are there already: no forward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evaluation.neighbours import KeptNeighbours
from leap.evaluation.spearman import Array, spearman
from leap.exits.rules import at_layers


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

    def __init__(self, kept: KeptNeighbours, pairs: ScoredPairs | None = None) -> None:
        """Takes what all choices share.

        Args:
            kept: holds the pooled layers, [L + 1, N, D] float32.
            pairs: for Spearman's correlation; none leaves it out.
        """
        self._kept, self._pairs = kept, pairs
        self._pooled = kept.pooled
        full = torch.full((self._pooled.shape[1],), len(self._pooled) - 1)
        self._full = self._spearman(full) if pairs else None

    def __call__(self, exits: Tensor) -> dict[str, Any]:
        """Figures of a choice of layers.

        Args:
            exits: [N] int64, counted from 1.

        Returns:
            rate, expected_layers, layer_reduction, similarity, nn_at_10; with pairs also spearman and
            quality, its share of full depth's (null where that is not above 0).
        """
        depth = len(self._pooled) - 1
        expected = exits.double().mean().item()
        exited = at_layers(self._pooled, exits)
        figures = {
            "rate": (exits < depth).double().mean().item(),
            "expected_layers": expected,
            "layer_reduction": depth / expected,
            "similarity": F.cosine_similarity(exited, self._pooled[-1], dim=-1).double().mean().item(),
            "nn_at_10": self._kept(exits).mean().item(),
        }
        if self._full is None:
            return figures
        correlation = self._spearman(exits)
        quality = correlation / self._full if self._full > 0 else None
        return {**figures, "spearman": correlation, "quality": quality}

    def _spearman(self, exits: Tensor) -> float:
        assert self._pairs is not None
        vectors = at_layers(self._pooled, exits).double()
        cosines = F.cosine_similarity(vectors[self._pairs.one], vectors[self._pairs.two], dim=-1)
        return spearman(cosines.numpy().round(9), self._pairs.scores)

"""Likeness to the teacher: a measure that models of any depth and width share, for comparing rivals.

Vectors of two models have no cosine with each other, but what is near what can be compared: the neighbours
of a sentence, and its similarities to all other sentences.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.evidence.spearman import Array
from leap.exits.neighbours import neighbours, overlap

# Rows of similarities held at a time.
BLOCK = 512


@dataclass(frozen=True)
class Likeness:
    """The likeness of a model's order of N sentences to the teacher's.

    neighbours: [N] float64, the share of the teacher's k nearest that are the model's too.
    similarity: [N] float64, Pearson's correlation of a sentence's cosines to all others in both models.
    """

    neighbours: Array
    similarity: Array

    def figures(self, mode: str) -> dict[str, Any]:
        return {
            f"nn_at_10_{mode}": float(self.neighbours.mean()),
            f"similarity_{mode}": float(self.similarity.mean()),
        }


def likeness(vectors: Tensor, teacher: Tensor, k: int) -> Likeness:
    """Compare the vectors of one model, [N, D], with the teacher's of the same sentences, [N, T]; k is below N."""
    return Likeness(
        overlap(neighbours(vectors, k), neighbours(teacher, k)).numpy(), row_correlations(vectors, teacher).numpy()
    )


def row_correlations(one: Tensor, two: Tensor) -> Tensor:
    """Return Pearson's correlation of each row's cosines to all other rows; [N, D] and [N, T] to [N] float64.

    0 where one side's cosines are all alike.
    """
    one, two = (F.normalize(vectors.double(), dim=-1) for vectors in (one, two))
    correlations = []
    for start in range(0, len(one), BLOCK):
        rows = torch.arange(start, min(start + BLOCK, len(one)))
        left, right = (_others(vectors, rows) for vectors in (one, two))
        correlations.append(F.cosine_similarity(left, right, dim=1))
    return torch.cat(correlations)


def _others(vectors: Tensor, rows: Tensor) -> Tensor:
    """The centred cosines of some rows to all rows but themselves, [R, N - 1]."""
    cosines = vectors[rows] @ vectors.T
    others = torch.ones_like(cosines, dtype=torch.bool)
    others[torch.arange(len(rows)), rows] = False
    rest = cosines[others].view(len(rows), -1)
    return rest - rest.mean(1, keepdim=True)

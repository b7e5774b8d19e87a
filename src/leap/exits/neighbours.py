"""NN@k: how many of a sentence's nearest neighbours stay the same (paper, Appendix "NN@10")."""

import torch
from torch import Tensor

from leap.exits.rules import at_layers
from leap.exits.search import nearest


def neighbours(vectors: Tensor, k: int) -> Tensor:
    """Find each vector's k nearest others by cosine; [N, D] to [N, k] int64, best first.

    Raises:
        ValueError: there are not k others.
    """
    if k >= len(vectors):
        raise ValueError(f"{len(vectors)} vectors have no {k} neighbours each")
    return nearest(vectors, vectors, k, own=torch.arange(len(vectors)))


def overlap(candidates: Tensor, reference: Tensor) -> Tensor:
    """Return the share of each row's reference neighbours among the candidates; [N, k] int64 to [N] float64."""
    shared = (candidates[:, :, None] == reference[:, None, :]).any(2)
    return shared.double().mean(1)


class NeighbourOverlap:
    """NN@k of any choice of layers against full depth; a choice that was seen before costs nothing.

    The vectors at the chosen layers are an index of their own, compared with an index of full-depth vectors.
    """

    def __init__(self, pooled: Tensor, k: int) -> None:
        self.pooled = pooled
        self.k = k
        self._reference = neighbours(pooled[-1], k)
        self._seen: dict[bytes, Tensor] = {}

    def __call__(self, layers: Tensor | int) -> Tensor:
        """Return each text's share of neighbours that stay, [N] float64; one layer for all, or [N] int64."""
        chosen = torch.as_tensor(layers, dtype=torch.int64).expand(self.pooled.shape[1])
        key = chosen.contiguous().numpy().tobytes()
        if key not in self._seen:
            nearest = neighbours(at_layers(self.pooled, chosen), self.k)
            self._seen[key] = overlap(nearest, self._reference)
        return self._seen[key]

"""The share of its nearest neighbours that a sentence keeps when it, and what it searches, leave early."""

import torch
from torch import Tensor

from leap.exits.neighbours import overlap
from leap.exits.search import nearest


class Neighbourhood:
    """Queries and an index of documents, each with its vector at every layer.

    The index is fixed and the queries are independent draws, so the shares kept are independent draws as well.
    That is why the queries do not search one another, as NN@k in `leap.exits.neighbours` does.
    """

    def __init__(self, queries: Tensor, documents: Tensor, k: int) -> None:
        """Search once at full depth.

        Args:
            queries: [L, N, D] float32, what an exit at each layer returns.
            documents: [L, M, D] float32; M above k.
            k: how many neighbours.
        """
        self.queries, self.documents, self.k = queries, documents, k
        self._full = nearest(queries[-1], documents[-1], k)
        self._seen: dict[bytes, Tensor] = {}

    def overlap(self, query_layers: Tensor, document_layers: Tensor) -> Tensor:
        """Return the share of the k nearest documents at full depth that each query finds again, [N] float64.

        Args:
            query_layers: [N] int64, exit layers counted from 1.
            document_layers: [M] int64.
        """
        key = torch.cat([query_layers, document_layers]).numpy().tobytes()
        if key not in self._seen:
            again = nearest(_at(self.queries, query_layers), _at(self.documents, document_layers), self.k)
            self._seen[key] = overlap(again, self._full)
        return self._seen[key]


def _at(vectors: Tensor, layers: Tensor) -> Tensor:
    return vectors[layers - 1, torch.arange(vectors.shape[1])]

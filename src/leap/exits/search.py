"""Exact search by cosine, with a total order: the result depends on nothing but the vectors.

Block sizes and devices change the last bits of a product, and top-k functions leave ties open. So cosines are
computed in float64 and rounded to nine decimals, and equal ones rank by the documents' order.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# The key of a pair holds the rounded cosine in its upper bits and the document's place in the lower 31.
_SCALE = 1e9
_PLACES = 2**31
_NEVER = torch.iinfo(torch.int64).min


def nearest(
    queries: Tensor,
    documents: Tensor,
    k: int,
    own: Tensor | None = None,
    query_block: int = 256,
    document_block: int = 8192,
    device: torch.device | None = None,
) -> Tensor:
    """Find the k documents nearest to each query; [Q, k] int64, best first, -1 where there is no further one.

    Args:
        queries: [Q, D], any length above 0; a zero vector has cosine 0 with everything.
        documents: [N, D], as queries; where cosines are equal the earlier document ranks first.
        k: how many.
        own: [Q] int64, a document that must not be found by the query, -1 for none.
        query_block: queries computed at a time; no result depends on it.
        document_block: documents computed at a time; no result depends on it.
        device: where a block is computed, the documents' own if None: a card never holds more than one
            block of each side, whatever the size of the corpus.
    """
    search = Search(queries, k, own, query_block, device or documents.device)
    for start in range(0, len(documents), document_block):
        block = documents[start : start + document_block]
        search.add(block, torch.arange(start, start + len(block)))
    return search.best()


class Search:
    """A search over documents that come a block at a time and are not held: only the best k stay."""

    def __init__(
        self,
        queries: Tensor,
        k: int,
        own: Tensor | None = None,
        query_block: int = 256,
        device: torch.device | None = None,
    ) -> None:
        self._k, self._block = k, query_block
        self._device = device or queries.device
        self._queries = F.normalize(queries.double(), dim=-1)
        self._own = own
        self._best = torch.full((len(queries), k), _NEVER, dtype=torch.int64)

    def add(self, documents: Tensor, places: Tensor) -> None:
        """Search more documents, [N, D]; `places` [N] int64 below 2**31 are their order of ties, none twice."""
        block = F.normalize(documents.to(self._device).double(), dim=-1)
        places = places.to(self._device)
        for start in range(0, len(self._queries), self._block):
            rows = slice(start, start + self._block)
            keys = (self._queries[rows].to(self._device) @ block.T).mul_(_SCALE).round_().long()
            keys.mul_(_PLACES).add_(_PLACES - 1 - places)
            if self._own is not None:
                keys[self._own[rows].to(self._device)[:, None] == places] = _NEVER
            both = torch.cat([self._best[rows].to(self._device), keys], dim=1)
            self._best[rows] = both.topk(self._k, dim=1).values.cpu()

    def best(self) -> Tensor:
        """Return the places of each query's nearest documents, [Q, k] int64, best first; -1 where none is left."""
        places = _PLACES - 1 - self._best.remainder(_PLACES)
        return torch.where(self._best == _NEVER, -1, places)

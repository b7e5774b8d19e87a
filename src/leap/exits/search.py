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
    """The k documents nearest to each query.

    Args:
        queries: [Q, D], any length above 0; a zero vector has cosine 0 with everything.
        documents: [N, D], as queries; where cosines are equal the earlier document ranks first.
        k: how many.
        own: [Q] int64, a document that must not be found by the query, -1 for none.
        query_block: queries computed at a time; no result depends on it.
        document_block: documents computed at a time; no result depends on it.
        device: where a block is computed, the documents' own if None: a card never holds more than one
            block of each side, whatever the size of the corpus.

    Returns:
        [Q, k] int64 indices of documents, best first; -1 where there is no further document.
    """
    device = device or documents.device
    found = torch.full((len(queries), k), -1, dtype=torch.int64)
    for start in range(0, len(queries), query_block):
        rows = slice(start, start + query_block)
        left_out = None if own is None else own[rows].to(device)
        block = queries[rows].to(device)
        found[rows] = _nearest_of_block(block, documents, k, left_out, document_block).cpu()
    return found


def _nearest_of_block(
    queries: Tensor, documents: Tensor, k: int, own: Tensor | None, document_block: int
) -> Tensor:
    queries = F.normalize(queries.double(), dim=-1)
    best = torch.full((len(queries), k), _NEVER, dtype=torch.int64, device=queries.device)
    for start in range(0, len(documents), document_block):
        block = F.normalize(documents[start : start + document_block].to(queries.device).double(), dim=-1)
        places = torch.arange(start, start + len(block), device=queries.device)
        keys = (queries @ block.T).mul_(_SCALE).round_().long().mul_(_PLACES).add_(_PLACES - 1 - places)
        if own is not None:
            keys[own[:, None] == places] = _NEVER
        best = torch.cat([best, keys], dim=1).topk(k, dim=1).values
    indices = _PLACES - 1 - best.remainder(_PLACES)
    return torch.where(best == _NEVER, -1, indices)

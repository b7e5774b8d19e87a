"""NN@k: how many of a sentence's nearest neighbours stay the same (paper, Appendix "NN@10")."""

import torch
from torch import Tensor

from leap.evaluation.search import nearest


def neighbours(vectors: Tensor, k: int) -> Tensor:
    """Each vector's k nearest others by cosine.

    Args:
        vectors: [N, D].
        k: below N.

    Returns:
        [N, k] int64, best first.

    Raises:
        ValueError: there are not k others.
    """
    if k >= len(vectors):
        raise ValueError(f"{len(vectors)} vectors have no {k} neighbours each")
    return nearest(vectors, vectors, k, own=torch.arange(len(vectors)))


def overlap(found: Tensor, reference: Tensor) -> Tensor:
    """The share of each row's reference neighbours that were found.

    Args:
        found: [N, k] int64, no index twice in a row.
        reference: [N, k], the same.

    Returns:
        [N] float64 in [0, 1].
    """
    shared = (found[:, :, None] == reference[:, None, :]).any(2)
    return shared.double().mean(1)

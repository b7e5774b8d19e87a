"""A small predictor of a layer's similarity to full depth: five features of the last three layers, linear.

Token counts are not among the features, so that exits stay a function of the pooled layers alone; the norm
of a mean over tokens carries the length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# Layers 1 and below have no two layers before them; the embedding layer counts as one here.
FIRST_LAYER = 2
LOOKBACK = 2
FEATURES = 6
# Keeps the logarithm of a zero vector's norm finite.
SMALLEST_NORM = 1e-6


@dataclass(frozen=True)
class Predictor:
    """Least-squares coefficients.

    coefficients: [L, 6] float32; row l - 1 is layer l's, in the order of `features`.
    """

    coefficients: Tensor

    def predict(self, layer: int, pooled: Tensor, before: Tensor, earlier: Tensor) -> Tensor:
        """Return the predicted similarity of layer l, from 2 on; p_l, p_{l-1} and p_{l-2}, [B, D] each, to [B]."""
        return features(pooled, before, earlier) @ self.coefficients[layer - 1]

    def scores(self, pooled: Tensor) -> Tensor:
        """Return the same for all layers at once, [L + 1, N, D] to [L, N]; minus infinity at layer 1."""
        scores = torch.einsum("lnf,lf->ln", layer_features(pooled), self.coefficients[FIRST_LAYER - 1 :])
        return torch.cat([torch.full_like(scores[:1], -torch.inf), scores])

    def to(self, device: torch.device) -> "Predictor":
        return Predictor(self.coefficients.to(device))


def features(pooled: Tensor, before: Tensor, earlier: Tensor) -> Tensor:
    """Return the three cosines among p_l, p_{l-1} and p_{l-2}, log |p_l|, log of |p_l| / |p_{l-1}|, and 1.

    [..., D] each to [..., 6] float32.
    """
    norm, norm_before = (vectors.norm(dim=-1).clamp_min(SMALLEST_NORM) for vectors in (pooled, before))
    columns = [
        F.cosine_similarity(pooled, before, dim=-1),
        F.cosine_similarity(pooled, earlier, dim=-1),
        F.cosine_similarity(before, earlier, dim=-1),
        norm.log(),
        (norm / norm_before).log(),
        torch.ones_like(norm),
    ]
    return torch.stack(columns, dim=-1)


def layer_features(pooled: Tensor) -> Tensor:
    """Return the features of layers 2 to L, [L + 1, N, D] to [L - 1, N, 6]."""
    return features(pooled[2:], pooled[1:-1], pooled[:-2])

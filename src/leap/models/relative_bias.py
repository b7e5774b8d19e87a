"""MPNet's bias by relative position: one table for all layers, far distances in logarithmic buckets."""

import math

import torch
from torch import Tensor, nn

# MPNetEncoder.relative_position_bucket: farther apart than this is one bucket.
MAX_DISTANCE = 128


class RelativeBias(nn.Module):
    """A bias for each head and each distance between a query and a key (Song et al. 2020, after T5)."""

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)

    def forward(self, length: int) -> Tensor:
        """Return what is added to the scores of rows of a length, [heads, length, length]."""
        distances = torch.arange(1 - length, length, device=self.table.weight.device)
        by_distance: Tensor = self.table(distance_buckets(distances, self.table.num_embeddings))
        # Row i holds the distances -i to length - 1 - i, a window of the one list.
        return by_distance.T.unfold(1, length, 1).flip(1)


def distance_buckets(distances: Tensor, buckets: int) -> Tensor:
    """Return the bucket of each distance, key's place minus query's; [N] int64 to [N] int64."""
    half = buckets // 2
    exact = half // 2
    steps = distances.abs()
    far = torch.log(steps.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    near_or_far = torch.where(steps < exact, steps, (exact + far.long()).clamp(max=half - 1))
    return near_or_far + half * (distances > 0)

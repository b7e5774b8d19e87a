"""MPNet's bias by relative position: one table for all layers, far distances in logarithmic buckets."""

import math

import torch
from torch import Tensor, nn

# MPNetEncoder.relative_position_bucket: farther apart than this is one bucket.
MAX_DISTANCE = 128


class RelativeBias(nn.Module):
    """A bias for each head and each distance between a query and a key (Song et al. 2020, after T5)."""

    buckets: Tensor

    def __init__(self, buckets: int, heads: int, longest: int) -> None:
        """Make the table, and the bucket of each distance within rows of up to `longest` tokens."""
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.longest = longest
        # On the CPU, as transformers computes them: at a bucket's edge another device's logarithm may differ.
        distances = torch.arange(1 - longest, longest)
        self.register_buffer("buckets", distance_buckets(distances, buckets), persistent=False)

    def forward(self, length: int) -> Tensor:
        """Return the bias by distance within rows of a length, [heads, 2 length - 1].

        A column is the key's place minus the query's, plus length - 1.
        """
        within = self.buckets[self.longest - length : self.longest + length - 1]
        by_distance: Tensor = self.table(within)
        return by_distance.T.contiguous()


def by_places(by_distance: Tensor) -> Tensor:
    """Return what is added to the scores, by query and key: [heads, 2 N - 1] to [heads, N, N]."""
    # Row i holds the distances -i to N - 1 - i, a window of the one list.
    return by_distance.unfold(1, by_distance.shape[1] // 2 + 1, 1).flip(1)


def distance_buckets(distances: Tensor, buckets: int) -> Tensor:
    """Return the bucket of each distance, key's place minus query's; [N] int64 to [N] int64."""
    half = buckets // 2
    exact = half // 2
    steps = distances.abs()
    far = torch.log(steps.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact) * (half - exact)
    near_or_far = torch.where(steps < exact, steps, (exact + far.long()).clamp(max=half - 1))
    return near_or_far + half * (distances > 0)

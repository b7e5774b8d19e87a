"""The full-depth shadow: a sample of sentences also computed to the last layer, and NN@10 among them.

The estimator: a uniform sample of the window's shadowed sentences (a reservoir, Vitter's Algorithm R) is cut
into blocks of 128. Within a block, each sentence's ten nearest others by the exited vectors are compared with
those by the full-depth vectors. NN@k falls as more vectors compete, so the population is always exactly 128:
windows of any traffic can be compared with each other, but not with the gate's NN@10, whose population is
an evaluation set.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leap.exits.neighbours import neighbours, overlap

NEAREST = 10
BLOCK = 128
CAPACITY = 4 * BLOCK
# A sentence fails when fewer than half of its neighbours stay (paper, table of decision thresholds).
FAILS_BELOW = 0.5


@dataclass(frozen=True)
class Agreement:
    """NN@10 of the exited vectors against full depth.

    n: sentences judged, a multiple of the block.
    mean: of their NN@10; null where there was no whole block.
    failed: share of them below 0.5; likewise.
    """

    n: int
    mean: float | None
    failed: float | None


class Reservoir:
    """A uniform sample of pairs of vectors, exited and full, in bounded memory."""

    def __init__(self, width: int, random: np.random.Generator) -> None:
        self._vectors = torch.zeros(2, CAPACITY, width)
        self._random = random
        self._seen = 0

    def add(self, exited: Tensor, full: Tensor) -> None:
        """Offer pairs, each [n, D]; the longer the window, the fewer of them stay."""
        for pair in torch.stack([exited, full], dim=1).float().cpu():
            place = self._seen if self._seen < CAPACITY else int(self._random.integers(self._seen + 1))
            if place < CAPACITY:
                self._vectors[:, place] = pair
            self._seen += 1

    def agreement(self) -> Agreement:
        """Return NN@10 within the whole blocks that the sample fills."""
        blocks = min(self._seen, CAPACITY) // BLOCK
        if not blocks:
            return Agreement(0, None, None)
        shares = torch.cat([self._block(number) for number in range(blocks)])
        return Agreement(len(shares), float(shares.mean()), float((shares < FAILS_BELOW).double().mean()))

    def _block(self, number: int) -> Tensor:
        exited, full = self._vectors[:, number * BLOCK : (number + 1) * BLOCK]
        return overlap(neighbours(exited, NEAREST), neighbours(full, NEAREST))

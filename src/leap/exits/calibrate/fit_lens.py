"""Fits the lens: ridge regression from each layer's pooled vector to the unit final vector."""

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F

from leap.exits.calibrate.least_squares import solved
from leap.exits.lens import Lens

RIDGE = 1e-3


def fit_lens(batches: Iterable[Tensor], ridge: float = RIDGE) -> Lens:
    """The lens of a model, from unlabelled sentences.

    Args:
        batches: pooled layers, [L + 1, B, D] float32 each, as `LeapEncoder.pooled_layers` yields them.
        ridge: the penalty, relative to the mean square of the layer's vectors.
    """
    return Lens(solved(((pooled[1:-1], F.normalize(pooled[-1], dim=-1)) for pooled in batches), ridge))

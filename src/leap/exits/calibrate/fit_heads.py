"""Fits exit heads after the training: ridge regression from a layer's pooled vector to the unit final vector."""

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F

from leap.models.exit_heads import ExitHeads
from leap.models.least_squares import solve_batches

RIDGE = 1e-3


def fit_heads(batches: Iterable[Tensor], ridge: float = RIDGE) -> ExitHeads:
    """Fit the heads of a model, from unlabelled sentences.

    Args:
        batches: pooled layers, [L + 1, B, D] float32 each, as `LeapEncoder.pooled_layers` yields them.
        ridge: the penalty, relative to the mean square of the layer's vectors.
    """
    return ExitHeads(solve_batches(((pooled[1:-1], F.normalize(pooled[-1], dim=-1)) for pooled in batches), ridge))

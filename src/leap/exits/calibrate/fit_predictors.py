"""Fits the predictors of similarity to full depth: DeeBERT's second stage, with the student frozen."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.rules import similarity_to_final
from leap.exits.similarity_predictors import Predictors
from leap.models.least_squares import solve_batches

RIDGE = 1e-4


def fit_predictors(batches: Iterable[Tensor], ridge: float = RIDGE) -> Predictors:
    """Fit one linear predictor a layer below the last, by ridge regression onto cos(p_l, p_L).

    DeeBERT trains its classifiers by gradient; under a squared error a linear one has its optimum in closed form.

    Args:
        batches: pooled layers of the training sentences, [L + 1, B, D] float32 each.
        ridge: the penalty, relative to the mean square of the inputs.
    """

    def rows(pooled: Tensor) -> tuple[Tensor, Tensor]:
        unit = F.normalize(pooled[1:-1], dim=-1)
        inputs = torch.cat([unit, torch.ones_like(unit[..., :1])], dim=-1)
        return inputs, similarity_to_final(pooled)[:-1, :, None]

    fitted = solve_batches((rows(pooled) for pooled in batches), ridge)[..., 0]
    return Predictors(fitted[:, :-1].contiguous(), fitted[:, -1].contiguous())

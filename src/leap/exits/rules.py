"""The exit rules, as pure functions of pooled layers.

`converged` is the deployable rule (Equation 7 and Algorithm 1); `near_final` compares with the last layer, so
it can only be analysed, never deployed. They are the slow twins of `leap.exits.forward`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class ExitRule:
    """Algorithm 1's theta, l_min and k."""

    threshold: float
    min_layer: int
    patience: int = 1

    def check_depth(self, depth: int) -> None:
        """Refuses a rule that a model of `depth` layers cannot follow.

        Raises:
            ValueError: l_min or k do not fit the depth, or a value is out of range.
        """
        if not -1.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold {self.threshold} is not a cosine: it lies between -1 and 1")
        if not 1 <= self.min_layer <= depth:
            raise ValueError(f"min_layer {self.min_layer} is not a layer of this model: 1 to {depth}")
        if not 1 <= self.patience < depth:
            raise ValueError(f"patience {self.patience} must be at least 1 and below the depth {depth}")

    def first_check(self) -> int:
        """The first layer after which a row may leave: l >= l_min and l > k."""
        return max(self.min_layer, self.patience + 1)


def consecutive_similarity(pooled: Tensor, patience: int) -> Tensor:
    """s_l = cos(p_l, p_{l-k}), Equation 7.

    Args:
        pooled: [L + 1, N, D] float32, index 0 the embedding layer.
        patience: k.

    Returns:
        [L, N]; entry l - 1 is layer l's; minus infinity where l <= k. A zero vector has similarity 0.
    """
    layers = pooled[1:]
    scores = torch.full(layers.shape[:2], -torch.inf, device=pooled.device)
    if patience < len(layers):
        scores[patience:] = F.cosine_similarity(layers[patience:], layers[:-patience], dim=-1)
    return scores


def similarity_to_final(pooled: Tensor) -> Tensor:
    """cos(p_l, p_L) for every layer.

    Args:
        pooled: [L + 1, N, D] float32.

    Returns:
        [L, N]; entry l - 1 is layer l's.
    """
    return F.cosine_similarity(pooled[1:], pooled[-1:], dim=-1)


def first_layer_at(scores: Tensor, threshold: float, min_layer: int) -> Tensor:
    """The first layer from `min_layer` on whose score reaches the threshold, else the last.

    Args:
        scores: [L, N].
        threshold: theta.
        min_layer: l_min, counted from 1.

    Returns:
        [N] int64, layers counted from 1.
    """
    reached = scores >= threshold
    reached[: min_layer - 1] = False
    reached[-1] = True
    return reached.int().argmax(0) + 1


def converged(pooled: Tensor, rule: ExitRule) -> Tensor:
    """Each row's exit layer under Algorithm 1; [L + 1, N, D] to [N] int64."""
    return first_layer_at(consecutive_similarity(pooled, rule.patience), rule.threshold, rule.min_layer)


def near_final(pooled: Tensor, threshold: float, min_layer: int = 1) -> Tensor:
    """Each row's first layer near the last one, an oracle; [L + 1, N, D] to [N] int64."""
    return first_layer_at(similarity_to_final(pooled), threshold, min_layer)


def at_layers(pooled: Tensor, layers: Tensor) -> Tensor:
    """Each row's vector at its own layer; [L + 1, N, D] and [N] int64 to [N, D]."""
    return pooled[layers, torch.arange(pooled.shape[1], device=pooled.device)]

"""Exit policies: which rows leave after a layer, decided from the pooled vectors up to it.

`leap.exits.forward.exit_forward` asks a policy layer by layer; `leap.exits.rules` has the reference implementation
of each on all pooled layers. `ExitRule` is the policy of Algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.calibration import Calibration
from leap.exits.rules import ExitRule, LayerThresholds
from leap.exits.similarity_predictors import Predictors


class ExitPolicy(Protocol):
    """Decides who leaves; pure, so that a row's exit depends on nothing but the row."""

    def first_check(self) -> int:
        """Return the first layer after which a row may leave, at least `lookback`."""

    @property
    def lookback(self) -> int:
        """Return how many earlier pooled vectors `leaves` needs."""

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        """Decide which rows leave after a layer from `first_check` on, other than the last; [B] bool.

        Args:
            layer: l, counted from 1.
            pooled: p_l, [B, D] float32.
            earlier: `lookback` tensors of the same shape; earlier[-j] is p_{l-j}, and p_0 the embedding layer's.
        """

    def layer_thresholds(self, depth: int) -> LayerThresholds | None:
        """Return the policy as thresholds on the consecutive similarity; None where it is no such thing."""


@dataclass(frozen=True)
class Fixed:
    """Every row leaves at one layer; at the depth L it is full depth."""

    layer: int

    @property
    def lookback(self) -> int:
        return 0

    def first_check(self) -> int:
        return self.layer

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        return torch.ones(len(pooled), dtype=torch.bool)

    def layer_thresholds(self, depth: int) -> None:
        return


@dataclass(frozen=True)
class Patient:
    """PABEE's patience: leave at the p-th layer in a row at which Algorithm 1's test holds.

    rule: theta, l_min and k of that test.
    pabee_patience: p.
    """

    rule: ExitRule
    pabee_patience: int

    def check_depth(self, depth: int) -> None:
        """Refuse, by a ValueError, a p that a model of `depth` layers can never reach."""
        self.rule.check_depth(depth)
        if not 1 <= self.pabee_patience <= depth - self.rule.patience:
            raise ValueError(
                f"pabee_patience {self.pabee_patience} must be at least 1 and at most the "
                f"{depth - self.rule.patience} layers that are compared with an earlier one"
            )

    @property
    def lookback(self) -> int:
        return self.pabee_patience - 1 + self.rule.patience

    def first_check(self) -> int:
        return max(self.rule.min_layer, self.rule.patience + self.pabee_patience)

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        vectors = [*earlier, pooled]
        k = self.rule.patience
        later, before = torch.stack(vectors[k:]), torch.stack(vectors[:-k])
        return (F.cosine_similarity(later, before, dim=-1) >= self.rule.threshold).all(0)

    def layer_thresholds(self, depth: int) -> LayerThresholds | None:
        return self.rule.layer_thresholds(depth) if self.pabee_patience == 1 else None


@dataclass(frozen=True)
class ByPredictors:
    """Leave where the layer's predictor gives a similarity to the final layer of at least theta."""

    predictors: Predictors
    threshold: float
    min_layer: int

    @property
    def lookback(self) -> int:
        return 0

    def first_check(self) -> int:
        return self.min_layer

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        return self.predictors.predict(layer, pooled) >= self.threshold

    def layer_thresholds(self, depth: int) -> None:
        return


@dataclass(frozen=True)
class Calibrated:
    """Leave where the score reaches the threshold that `leap calibrate` tested for the layer."""

    calibration: Calibration

    @property
    def lookback(self) -> int:
        return self.calibration.lookback

    def first_check(self) -> int:
        return self.calibration.min_layer

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        threshold = self.calibration.thresholds[layer - 1].item()
        if threshold == torch.inf:
            return torch.zeros(len(pooled), dtype=torch.bool)
        predictor = self.calibration.predictor
        if predictor is None:
            score = F.cosine_similarity(pooled, earlier[-self.calibration.patience], dim=-1)
        else:
            score = predictor.predict(layer, pooled, earlier[-1], earlier[-2])
        return score >= threshold

    def layer_thresholds(self, depth: int) -> LayerThresholds | None:
        if self.calibration.predictor is not None:
            return None
        return LayerThresholds(self.calibration.thresholds, self.calibration.patience)


@dataclass(frozen=True)
class Capped:
    """Another policy within a budget: who is still there at layer `most` leaves there."""

    policy: ExitPolicy
    most: int

    @property
    def lookback(self) -> int:
        """As of the other policy."""
        return self.policy.lookback

    def first_check(self) -> int:
        """As of the other policy, which is below `most` (`capped`)."""
        return self.policy.first_check()

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        """Rows that the other policy lets go, and at `most` every row."""
        if layer >= self.most:
            return torch.ones(len(pooled), dtype=torch.bool)
        return self.policy.leaves(layer, pooled, earlier)

    def layer_thresholds(self, depth: int) -> LayerThresholds | None:
        """The other policy's, with one that every cosine reaches at `most`."""
        limits = self.policy.layer_thresholds(depth)
        if limits is None:
            return None
        thresholds = limits.thresholds.clone()
        thresholds[self.most - 1] = -torch.inf
        return LayerThresholds(thresholds, limits.patience)


def capped(policy: ExitPolicy, most: int | None, depth: int) -> ExitPolicy:
    """Keep a policy within a budget of `most` layers, None for no budget; ValueError if that is no layer."""
    if most is None:
        return policy
    if not 1 <= most <= depth:
        raise ValueError(f"a budget of {most} layers: this model has 1 to {depth}")
    if isinstance(policy, Fixed):
        return Fixed(min(policy.layer, most))
    if most <= policy.first_check():
        return Fixed(most)
    return policy if most == depth else Capped(policy, most)

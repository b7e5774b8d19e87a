"""The exit rules, as pure functions of pooled layers: [L + 1, N, D] to each row's exit layer, [N] int64.

`converged` is the paper's deployable rule (Equation 7 and Algorithm 1); `patient`, `by_predictors` and
`calibrated` are deployable too. `near_final` compares with the last layer, so it can only be analysed, never
deployed. They are the reference implementation of `leap.exits.policy`, which decides layer by layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from leap.exits.calibration import Calibration
from leap.exits.similarity_predictors import Predictors


class LayerThresholds(NamedTuple):
    """A policy put as thresholds on the consecutive similarity: leave after layer l if s_l reaches its own.

    thresholds: [L] float32; infinity where no row leaves, and always at L, which takes whoever is left.
    patience: k of s_l = cos(p_l, p_{l-k}).
    """

    thresholds: Tensor
    patience: int


@dataclass(frozen=True)
class ExitRule:
    """Algorithm 1's theta, l_min and k; the exit policy of strategy `converged` (leap.exits.policy).

    The paper calls two things patience: Algorithm 1's k, the gap between the layers compared, which is
    `patience` here, and PABEE's p, a number of layers in a row, which is `pabee_patience` elsewhere.
    """

    threshold: float
    min_layer: int
    patience: int = 1

    def changed(
        self, threshold: float | None = None, min_layer: int | None = None, patience: int | None = None
    ) -> "ExitRule":
        """Return this rule with the values that are given."""
        return ExitRule(
            self.threshold if threshold is None else threshold,
            self.min_layer if min_layer is None else min_layer,
            self.patience if patience is None else patience,
        )

    def check_depth(self, depth: int) -> None:
        """Refuse, by one ValueError, l_min or k that do not fit the depth, and values out of range."""
        faults = [*self._faults(depth)]
        if faults:
            raise ValueError("; ".join(faults))

    def _faults(self, depth: int) -> Iterator[str]:
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, float | int):
            yield f"threshold {self.threshold!r} is not a number"
        elif not -1.0 <= self.threshold <= 1.0:
            yield f"threshold {self.threshold} is not a cosine: it lies between -1 and 1"
        if type(self.min_layer) is not int:
            yield f"min_layer {self.min_layer!r} is not a whole number"
        elif not 1 <= self.min_layer <= depth:
            yield f"min_layer {self.min_layer} is not a layer of this model: 1 to {depth}"
        if type(self.patience) is not int:
            yield f"patience {self.patience!r} is not a whole number"
        elif not 1 <= self.patience < depth:
            yield f"patience {self.patience} must be at least 1 and below the depth {depth}"

    def first_check(self) -> int:
        return max(self.min_layer, self.patience + 1)

    @property
    def lookback(self) -> int:
        return self.patience

    def leaves(self, layer: int, pooled: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        return F.cosine_similarity(pooled, earlier[-self.patience], dim=-1) >= self.threshold

    def layer_thresholds(self, depth: int) -> LayerThresholds:
        thresholds = torch.full((depth,), torch.inf)
        thresholds[self.first_check() - 1 : depth - 1] = self.threshold
        return LayerThresholds(thresholds, self.patience)


def consecutive_similarity(pooled: Tensor, patience: int) -> Tensor:
    """Return s_l = cos(p_l, p_{l-k}), Equation 7; [L + 1, N, D], index 0 the embedding layer, to [L, N].

    Entry l - 1 is layer l's; minus infinity where l <= k. A zero vector has similarity 0.
    """
    layers = pooled[1:]
    scores = torch.full(layers.shape[:2], -torch.inf, device=pooled.device)
    if patience < len(layers):
        scores[patience:] = F.cosine_similarity(layers[patience:], layers[:-patience], dim=-1)
    return scores


def similarity_to_final(pooled: Tensor) -> Tensor:
    """Return cos(p_l, p_L) for every layer; [L + 1, N, D] float32 to [L, N], entry l - 1 of layer l."""
    return F.cosine_similarity(pooled[1:], pooled[-1:], dim=-1)


def first_layer_at(scores: Tensor, threshold: float | Tensor, min_layer: int) -> Tensor:
    """Return the first layer from `min_layer` on whose score reaches the threshold, else the last.

    Args:
        scores: [L, N].
        threshold: theta, or one a layer, [L, 1].
        min_layer: l_min, counted from 1.

    Returns:
        [N] int64, layers counted from 1.
    """
    reached = scores >= threshold
    reached[: min_layer - 1] = False
    reached[-1] = True
    return reached.int().argmax(0) + 1


def converged(pooled: Tensor, rule: ExitRule) -> Tensor:
    """Return each row's exit layer under Algorithm 1; [L + 1, N, D] to [N] int64."""
    return first_layer_at(consecutive_similarity(pooled, rule.patience), rule.threshold, rule.min_layer)


def patient(pooled: Tensor, rule: ExitRule, pabee_patience: int) -> Tensor:
    """Return each row's first layer that ends a run of p layers with s_l >= theta; PABEE's rule for vectors.

    PABEE (Zhou et al., NeurIPS 2020, Equation 6) counts the layers in a row whose predictions agree and
    leaves at the p-th; two layers agree here where Algorithm 1 would leave. Layers below l_min are counted,
    but no row leaves there. With p = 1 it is `converged`.
    """
    agree = consecutive_similarity(pooled, rule.patience) >= rule.threshold
    count = torch.zeros(pooled.shape[1], dtype=torch.int64, device=pooled.device)
    counts = []
    for layer in agree:
        count = torch.where(layer, count + 1, 0)
        counts.append(count)
    return first_layer_at(torch.stack(counts), pabee_patience, rule.min_layer)


def by_predictors(pooled: Tensor, predictors: Predictors, threshold: float, min_layer: int) -> Tensor:
    """Return each row's first layer whose predictor gives a similarity to the last layer of at least theta."""
    return first_layer_at(predictors.scores(pooled), threshold, min_layer)


def calibrated(pooled: Tensor, calibration: Calibration) -> Tensor:
    """Return each row's first layer whose score reaches the calibration's threshold for it."""
    if calibration.predictor is None:
        scores = consecutive_similarity(pooled, calibration.patience)
    else:
        scores = calibration.predictor.scores(pooled)
    return first_layer_at(scores, calibration.thresholds.to(pooled.device)[:, None], 1)


def near_final(pooled: Tensor, threshold: float, min_layer: int = 1) -> Tensor:
    """Return each row's first layer near the last one, an oracle; [L + 1, N, D] to [N] int64."""
    return first_layer_at(similarity_to_final(pooled), threshold, min_layer)


def at_layers(pooled: Tensor, layers: Tensor) -> Tensor:
    """Return each row's vector at its own layer; [L + 1, N, D] and [N] int64 to [N, D]."""
    return pooled[layers, torch.arange(pooled.shape[1], device=pooled.device)]

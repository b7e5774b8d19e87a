"""Exit strategies by name, each a pure function of pooled layers, so that all are judged after one pass.

converged    Algorithm 1, the deployable rule
patience_p   PABEE's stopping rule (Zhou et al. 2020) for vectors: p consecutive layers that hardly move
near_final   the oracle: it needs the last layer

A strategy that belongs to a model (learned heads, calibrated thresholds) joins the table with the model.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from leap.exits.rules import ExitRule, consecutive_similarity, converged, near_final

# [L + 1, N, D] float32 to each row's exit layer, [N] int64, counted from 1.
Strategy = Callable[[Tensor], Tensor]

# The paper's exit-strategy table has PABEE with these.
PATIENCES = (2, 3)


def strategies(rule: ExitRule, depth: int, own: Mapping[str, Strategy] | None = None) -> dict[str, Strategy]:
    """The strategies that a model can follow.

    Args:
        rule: theta, l_min and k of `converged`; the others take theta and l_min.
        depth: L.
        own: strategies that belong to the model.
    """
    table: dict[str, Strategy] = {"converged": partial(converged, rule=rule)}
    for patience in PATIENCES:
        if patience < depth:
            table[f"patience_{patience}"] = partial(patient, rule=rule, patience=patience)
    table |= own or {}
    return table | {"near_final": partial(near_final, threshold=rule.threshold)}


def patient(pooled: Tensor, rule: ExitRule, patience: int) -> Tensor:
    """Each row's first layer from l_min on that ends `patience` consecutive similarities of theta or more.

    Args:
        pooled: [L + 1, N, D] float32.
        rule: theta, l_min and k of one comparison.
        patience: p; with 1 this is `converged`.

    Returns:
        [N] int64, layers counted from 1; the last layer where no earlier one qualifies.
    """
    still = consecutive_similarity(pooled, rule.patience) >= rule.threshold
    exits = torch.full((pooled.shape[1],), len(still))
    for layer in range(len(still), 0, -1):
        ends = still[max(layer - patience, 0) : layer].all(0) & (layer >= max(rule.min_layer, patience))
        exits[ends] = layer
    return exits

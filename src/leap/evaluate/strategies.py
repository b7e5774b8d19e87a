"""Exit strategies by name, each a pure function of pooled layers, so that all are judged after one pass.

converged    Algorithm 1, the deployable rule
patience_p   PABEE's stopping rule (Zhou et al. 2020) for vectors: p consecutive layers that hardly move
near_final   the oracle: it needs the last layer

A strategy that belongs to a model (predictors, calibrated thresholds) joins the table with the model.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from leap.exits import LeapEncoder
from leap.exits.calibration import FILE as CALIBRATION
from leap.exits.rules import ExitRule, by_predictors, calibrated, converged, near_final, patient
from leap.exits.similarity_predictors import FILE as PREDICTORS

# [L + 1, N, D] float32 to each row's exit layer, [N] int64, counted from 1.
Strategy = Callable[[Tensor], Tensor]

# The paper's exit-strategy table has PABEE with these.
PATIENCES = (2, 3)


def strategies(rule: ExitRule, depth: int, own: Mapping[str, Strategy] | None = None) -> dict[str, Strategy]:
    """Name the strategies that a model of `depth` layers can follow; `own` ones belong to the model.

    `rule` is theta, l_min and k of `converged`; the others take theta and l_min.
    """
    table: dict[str, Strategy] = {"converged": partial(converged, rule=rule)}
    for patience in PATIENCES:
        if patience < depth:
            table[f"patience_{patience}"] = partial(patient, rule=rule, pabee_patience=patience)
    table |= own or {}
    return table | {"near_final": partial(near_final, threshold=rule.threshold)}


def own_strategies(model: LeapEncoder, rule: ExitRule) -> dict[str, Strategy]:
    """Return the strategies that the model's folder has files for: predictors, calibrated thresholds."""
    named: dict[str, Strategy] = {}
    here = torch.device("cpu")  # where pooled layers are judged
    if (model.folder / PREDICTORS).exists():
        named["predictors"] = partial(
            by_predictors, predictors=model.predictors.to(here), threshold=rule.threshold, min_layer=rule.min_layer
        )
    if (model.folder / CALIBRATION).exists():
        named["calibrated"] = partial(calibrated, calibration=model.calibration.to(here))
    return named

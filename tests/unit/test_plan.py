"""Exit policies as thresholds a layer, and what a device has to do for them."""

import math

import pytest
import torch

from leap.exits import ExitRule
from leap.exits.calibration import Calibration
from leap.exits.plan import Plan, plan_of
from leap.exits.policy import ByPredictors, Calibrated, Capped, ExitPolicy, Fixed, Patient
from leap.exits.predictor import Predictor
from leap.exits.similarity_predictors import Predictors

INF = math.inf
RULE = ExitRule(0.5, 3)
CALIBRATED = Calibration(torch.tensor([INF, 0.25, INF, INF]), 1, None)
PREDICTED = Calibration(torch.tensor([INF, 0.25, INF, INF]), 1, Predictor(torch.zeros(4, 6)))


@pytest.mark.parametrize(
    ("policy", "plan"),
    [
        (ExitRule(0.5, 3), Plan((INF, INF, 0.5, INF), 1, 4)),
        (ExitRule(0.5, 1, patience=2), Plan((INF, INF, 0.5, INF), 2, 4)),
        (Fixed(2), Plan((INF,) * 4, 1, 2)),
        (Fixed(4), Plan((INF,) * 4, 1, 4)),
        (Calibrated(CALIBRATED), Plan((INF, 0.25, INF, INF), 1, 4)),
        (Patient(RULE, 1), Plan((INF, INF, 0.5, INF), 1, 4)),
        (Capped(Calibrated(CALIBRATED), 3), Plan((INF, 0.25, INF, INF), 1, 3)),
        (Capped(Patient(RULE, 2), 3), None),
        (Patient(RULE, 2), None),
        (Calibrated(PREDICTED), None),
        (ByPredictors(Predictors(torch.zeros(3, 8), torch.zeros(3)), 0.5, 1), None),
    ],
)
def test_what_a_device_can_decide_by_itself(policy: ExitPolicy, plan: Plan | None) -> None:
    assert plan_of(policy, 4) == plan


@pytest.mark.parametrize(
    ("limits", "patience", "stop", "flags", "tests"),
    [
        ([INF] * 4, 1, 4, [0, 0, 0, 0, 0], ()),
        ([INF, INF, 0.9, 0.9], 1, 4, [0, 0, 1, 2, 0], (3,)),
        ([0.9] * 4, 1, 4, [0, 1, 2, 2, 0], (2, 3)),
        ([0.9] * 4, 2, 4, [0, 1, 0, 2, 0], (3,)),
        ([INF, 0.9, INF, 0.9], 1, 3, [0, 1, 2, 0, 0], (2,)),
    ],
)
def test_only_layers_that_a_test_needs_are_pooled(
    limits: list[float], patience: int, stop: int, flags: list[int], tests: tuple[int, ...]
) -> None:
    plan = Plan(tuple(limits), patience, stop)
    assert plan.flags() == flags
    assert plan.tests == tests

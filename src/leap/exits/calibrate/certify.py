"""From measured sentences to tested thresholds."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leap.exits.calibrate.candidates import candidates
from leap.exits.calibrate.measure import Measured, fit_predictor
from leap.exits.calibrate.risk import Demand, fixed_sequence, p_value
from leap.exits.calibration import Calibration
from leap.exits.rules import first_layer_at

# A predicted similarity must save this share of the layers to be chosen: the consecutive one costs less to
# take, and the GPU's fast path knows no other.
WORTH_PREDICTING = 0.01


@dataclass(frozen=True)
class Parts:
    """The sentences in three parts, drawn at random: each one serves one purpose only.

    fit: the lens and the predictor.
    order: the candidates' thresholds, and the order in which they are tested.
    test: the tests.
    """

    fit: Measured
    order: Measured
    test: Measured


@dataclass(frozen=True)
class Outcome:
    """The policy chosen for one score, and what it does on the test part.

    thresholds: [L] float32; all infinite where no candidate passed.
    exits: [N] int64.
    exited, bad: how many left before L, and how many of these lie below the floor.
    """

    thresholds: Tensor
    exits: Tensor
    exited: int
    bad: int

    @property
    def expected_layers(self) -> float:
        """The mean exit layer."""
        return self.exits.double().mean().item()


def certified(parts: Parts, patience: int, demand: Demand, uses_lens: bool) -> tuple[Calibration, Outcome]:
    """The calibration with the fewest expected layers of all that are shown to be safe (to within 1 %).

    The statement: with probability `demand.confidence` over the sentences of the test part, of future
    sentences drawn like them that leave early, at most the share `demand.risk` has a cosine to full depth
    below `demand.floor`. It needs no assumption on model or scores, only that the sentences are independent
    draws. Two families are tested, by the consecutive and by the predicted similarity; each is a fixed
    sequence at level (1 - confidence) / 2, so the family-wise error of all tests together is at most
    1 - confidence (Bonferroni), and the better one may be chosen on the test part.

    Returns:
        The calibration, which lets nothing leave where no candidate is safe, and its outcome.
    """
    level = (1 - demand.confidence) / 2
    predictor = fit_predictor(parts.fit)
    consecutive = _tested(
        (parts.order.consecutive, parts.test.consecutive),
        (parts.order.similarity, parts.test.similarity),
        demand,
        level,
    )
    predicted = _tested(
        (parts.order.predicted(predictor), parts.test.predicted(predictor)),
        (parts.order.similarity, parts.test.similarity),
        demand,
        level,
    )
    if predicted.expected_layers < (1 - WORTH_PREDICTING) * consecutive.expected_layers:
        return Calibration(predicted.thresholds, patience, predictor, uses_lens), predicted
    return Calibration(consecutive.thresholds, patience, None, uses_lens), consecutive


def counts(thresholds: Tensor, scores: Tensor, bad: Tensor) -> tuple[Tensor, int, int]:
    """What a policy does: the exit layers [N] int64, how many left before L, and how many of these are bad.

    Args:
        thresholds: [L].
        scores: [L, N].
        bad: [L, N] bool.
    """
    exits = first_layer_at(scores, thresholds[:, None], 1)
    early = exits < len(scores)
    wrong = bad[exits - 1, torch.arange(len(exits))] & early
    return exits, int(early.sum()), int(wrong.sum())


def report(demand: Demand, parts: Parts, calibration: Calibration, outcome: Outcome) -> dict[str, Any]:
    """What was demanded and found, for calibration.json and the command's last lines."""
    depth = len(calibration.thresholds)
    rows = torch.arange(len(outcome.exits))
    return {
        "floor": demand.floor,
        "risk": demand.risk,
        "confidence": demand.confidence,
        "sentences": {name: getattr(parts, name).similarity.shape[1] for name in ("fit", "order", "test")},
        "expected_layers": outcome.expected_layers,
        "exit_share": outcome.exited / len(outcome.exits),
        "exited": outcome.exited,
        "below_floor": outcome.bad,
        "realised_risk": outcome.bad / outcome.exited if outcome.exited else 0.0,
        "similarity": parts.test.similarity[outcome.exits - 1, rows].mean().item(),
        "exits": {
            str(layer): count for layer in range(1, depth + 1) if (count := int((outcome.exits == layer).sum()))
        },
    }


def _tested(
    scores: tuple[Tensor, Tensor], similarity: tuple[Tensor, Tensor], demand: Demand, level: float
) -> Outcome:
    bad = [found < demand.floor for found in similarity]
    policies = candidates(scores[0], bad[0], demand.risk)
    ordered = [counts(policy, scores[0], bad[0])[1:] for policy in policies]
    # The safest first, as far as the order part can tell; equal ones by their share of bad rows.
    order = sorted(
        range(len(policies)), key=lambda i: (p_value(*ordered[i], demand.risk), ordered[i][1] / ordered[i][0])
    )
    measured = partial(counts, scores=scores[1], bad=bad[1])
    none = torch.full((len(scores[0]),), torch.inf)
    outcomes = [Outcome(none, *measured(none))]
    for index in fixed_sequence(order, lambda i: measured(policies[i])[1:], demand.risk, level):
        outcomes.append(Outcome(policies[index], *measured(policies[index])))
    return min(outcomes, key=lambda outcome: outcome.expected_layers)

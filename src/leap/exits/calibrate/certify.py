"""From measured sentences to tested thresholds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leap.core.sample_sizes import NEIGHBOURS
from leap.evidence.bounds import checklist
from leap.exits.calibrate.candidates import candidates
from leap.exits.calibrate.measure import Measured, fit_predictor
from leap.exits.calibrate.neighbourhood import Neighbourhood
from leap.exits.calibrate.risk import Demand, fixed_sequence, mean_p_value, share_p_value
from leap.exits.calibration import Calibration
from leap.exits.rules import first_layer_at

# A predicted similarity must save this share of the layers to be chosen: the consecutive one costs less to
# compute, and the GPU's fast path knows no other.
WORTH_PREDICTING = 0.01
# Sentences whose vectors are held: those of the index, those that order the candidates, those that test them.
INDEXED, ORDERING, TESTING = 1000, 300, 2000
# A candidate this unlikely to be safe on the order part is not worth a search.
HOPELESS = 0.5


@dataclass(frozen=True)
class Parts:
    """The sentences in three parts, drawn at random: each one serves one purpose only.

    fit: the heads, where they are fitted, and the predictor.
    order: the candidates' thresholds, the order in which they are tested, and the index that is searched.
    test: the tests.
    ordering: the first sentences of `fit` search the first ones of `order`.
    testing: the first sentences of `test` search the same.
    """

    fit: Measured
    order: Measured
    test: Measured
    ordering: Neighbourhood
    testing: Neighbourhood

    @classmethod
    def of(cls, measured: Sequence[Measured], vectors: Sequence[Tensor]) -> "Parts":
        """Build both neighbourhoods; `vectors` [L, n, D] are of each part's first sentences (`searching_rows`)."""
        fit, order, test = measured
        fit_vectors, documents, test_vectors = vectors
        ordering, testing = (Neighbourhood(each, documents, NEIGHBOURS) for each in (fit_vectors, test_vectors))
        return cls(fit, order, test, ordering, testing)


@dataclass(frozen=True)
class Outcome:
    """The policy chosen for one score, and what it does on the test part.

    thresholds: [L] float32; all infinite where no candidate passed.
    exits: [N] int64.
    exited, bad: how many left before L, and how many of these lie below the floor.
    overlap: [n] float64, the share of its nearest neighbours that each searching sentence keeps.
    """

    thresholds: Tensor
    exits: Tensor
    exited: int
    bad: int
    overlap: Tensor

    @property
    def expected_layers(self) -> float:
        return self.exits.double().mean().item()

    def p_value(self, demand: Demand, level: float) -> float:
        """Return the p-value of "one of the two statements is false": the larger of theirs.

        Rejecting a union at a level means rejecting each part of it at that level (an intersection-union
        test), so the level need not be divided between the two.
        """
        return max(
            share_p_value(self.exited, self.bad, demand.risk), mean_p_value(self.overlap, demand.keep, level)
        )


def searching_rows(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the rows of fit, order and test whose vectors are held; the parts are in random order."""
    return tuple(part[:most] for part, most in zip(parts, (ORDERING, INDEXED, TESTING), strict=True))


def certify(parts: Parts, patience: int, demand: Demand) -> tuple[Calibration, Outcome]:
    """Choose the calibration with the fewest expected layers of all that are shown to be safe (to within 1 %).

    The statement: with probability `demand.confidence` over the sentences of the test part, both hold.

    1. Of future sentences drawn like them that leave early, at most the share `demand.risk` has a cosine to
       full depth below `demand.floor`.
    2. A future sentence that searches the index of the order part's sentences, all of them leaving by the same
       policy, keeps on average at least the share `demand.keep` of its ten nearest neighbours at full depth.

    It needs no assumption on model or scores, only that the sentences are independent draws. Two families are
    tested, by the consecutive and by the predicted similarity; each is a fixed sequence at level
    (1 - confidence) / 2, so the family-wise error of all tests together is at most 1 - confidence
    (Bonferroni), and the better one may be chosen on the test part.

    Returns:
        The calibration, which lets nothing leave where no candidate is safe, and its outcome.
    """
    level = (1 - demand.confidence) / 2
    predictor = fit_predictor(parts.fit)
    consecutive = _test_candidates(parts, lambda part: part.consecutive, demand, level)
    predicted = _test_candidates(parts, lambda part: part.predict(predictor), demand, level)
    if predicted.expected_layers < (1 - WORTH_PREDICTING) * consecutive.expected_layers:
        return Calibration(predicted.thresholds, patience, predictor), predicted
    return Calibration(consecutive.thresholds, patience, None), consecutive


def counts(thresholds: Tensor, scores: Tensor, bad: Tensor) -> tuple[Tensor, int, int]:
    """Apply a policy: the exit layers [N] int64, how many left before L, and how many of these are bad.

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
    depth = len(calibration.thresholds)
    rows = torch.arange(len(outcome.exits))
    similarity = parts.test.similarity[outcome.exits - 1, rows].mean().item()
    rate, neighbours = outcome.exited / len(outcome.exits), outcome.overlap.mean().item()
    return {
        "floor": demand.floor,
        "risk": demand.risk,
        "keep": demand.keep,
        "confidence": demand.confidence,
        "sentences": {name: getattr(parts, name).similarity.shape[1] for name in ("fit", "order", "test")},
        "searching": {"queries": len(outcome.overlap), "documents": parts.testing.documents.shape[1]},
        "expected_layers": outcome.expected_layers,
        "exit_share": rate,
        "exited": outcome.exited,
        "below_floor": outcome.bad,
        "realised_risk": outcome.bad / outcome.exited if outcome.exited else 0.0,
        "similarity": similarity,
        "nn_at_10": neighbours,
        # The gate's own checks need scored pairs and collections too: those are `dvc repro`'s.
        "checklist": checklist({"rate": rate, "similarity": similarity, "nn_at_10": neighbours}),
        "scores": score_deciles(parts, calibration.patience),
        "exits": {
            str(layer): count for layer in range(1, depth + 1) if (count := int((outcome.exits == layer).sum()))
        },
    }


def score_deciles(parts: Parts, patience: int) -> list[dict[str, Any]]:
    """The distribution of the consecutive similarity at each layer over all sentences, in ten bins.

    A monitor compares what it serves with it (`leap.serve.score_shift`). The shares are recorded too, for equal
    scores make bins that do not hold a tenth each.
    """
    scores = torch.cat([part.consecutive for part in (parts.fit, parts.order, parts.test)], dim=1).double()
    quantiles = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    rows = []
    for layer in range(patience + 1, len(scores)):
        edges = scores[layer - 1].quantile(quantiles)
        counts = torch.bincount(torch.bucketize(scores[layer - 1], edges, right=True), minlength=10)
        shares = counts.double() / scores.shape[1]
        rows.append({"layer": layer, "edges": edges.tolist(), "shares": shares.tolist()})
    return rows


def _test_candidates(
    parts: Parts, scores_of: Callable[[Measured], Tensor], demand: Demand, level: float
) -> Outcome:
    fit, order, test = (scores_of(part) for part in (parts.fit, parts.order, parts.test))
    bad_in_order, bad_in_test = (part.similarity < demand.floor for part in (parts.order, parts.test))

    def shares(policy: Tensor, neighbourhood: Neighbourhood, scores: Tensor) -> Tensor:
        queries, documents = neighbourhood.queries.shape[1], neighbourhood.documents.shape[1]
        sides = scores[:, :queries], order[:, :documents]
        return neighbourhood.overlap(*(first_layer_at(side, policy[:, None], 1) for side in sides))

    def guess(policy: Tensor) -> Outcome:
        counted = counts(policy, order, bad_in_order)
        # Searching costs most: a policy whose cosines already fail is not searched with.
        hopeless = share_p_value(*counted[1:], demand.risk) >= HOPELESS
        return Outcome(policy, *counted, fit.new_zeros(1) if hopeless else shares(policy, parts.ordering, fit))

    def outcome(policy: Tensor) -> Outcome:
        return Outcome(policy, *counts(policy, test, bad_in_test), shares(policy, parts.testing, test))

    guesses = [guess(policy) for policy in candidates(order, parts.order.similarity, demand.floor, demand.risk)]
    p_values = [one.p_value(demand, level) for one in guesses]
    # The safest first, as far as the order part can tell; of equally safe ones the nearest.
    sequence = sorted(
        (index for index, value in enumerate(p_values) if value < HOPELESS),
        key=lambda i: (p_values[i], guesses[i].bad / guesses[i].exited, -guesses[i].overlap.mean().item()),
    )
    tested: dict[int, Outcome] = {}

    def p_value(index: int) -> float:
        tested[index] = outcome(guesses[index].thresholds)
        return tested[index].p_value(demand, level)

    shown = [tested[index] for index in fixed_sequence(sequence, p_value, level)]
    none = outcome(torch.full((len(test),), torch.inf))
    return min([none, *shown], key=lambda one: one.expected_layers)

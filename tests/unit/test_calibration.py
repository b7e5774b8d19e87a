"""Tested calibration: the pieces by hand, and the guarantee by simulation."""

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import binom
from torch import Tensor
from torch.nn import functional as F

from leap.core.sample_sizes import fewest_draws, fewest_to_calibrate
from leap.exits.calibrate.candidates import candidates, layer_thresholds, lowest_threshold
from leap.exits.calibrate.certify import Parts, certify, counts, report, searching_rows
from leap.exits.calibrate.fit_heads import fit_heads
from leap.exits.calibrate.fit_predictors import fit_predictors
from leap.exits.calibrate.measure import Measured, fit_predictor
from leap.exits.calibrate.neighbourhood import Neighbourhood
from leap.exits.calibrate.risk import Demand, fixed_sequence, mean_p_value, share_p_value
from leap.exits.rules import at_layers, similarity_to_final
from leap.exits.rules import calibrated as exits_of
from leap.models.least_squares import LeastSquares

DEMAND = Demand(floor=0.94, risk=0.1, confidence=0.9, keep=0.5)


def population(rows: int, seed: int, noise: float = 1.0, depth: int = 5) -> Tensor:
    """Pooled layers [L + 1, N, 8] that come nearer to the last one, each sentence at a pace of its own."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.nn.functional.normalize(torch.randn(rows, 8, generator=generator), dim=-1)
    pace = 0.25 + 0.5 * torch.rand(rows, 1, generator=generator)
    layers = [target + noise * pace**layer * torch.randn(rows, 8, generator=generator) for layer in range(depth)]
    return torch.stack([*layers, target])


def parts_of(pooled: Tensor, rows: Sequence[Tensor], measured: Measured | None = None) -> Parts:
    """The three parts of a population, [L + 1, N, D]."""
    measured = measured or Measured.of(pooled, patience=1)
    searching = searching_rows(tuple(rows))
    return Parts.of([measured.at(part) for part in rows], [pooled[1:, part] for part in searching])


def thirds(total: int, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
    order = torch.arange(total) if generator is None else torch.randperm(total, generator=generator)
    return order.tensor_split(3)


def test_p_values_of_shares_are_binomial_tails() -> None:
    # Three exited, none bad: 0.9^3; all bad: certain.
    assert share_p_value(3, 0, 0.1) == pytest.approx(0.729)
    assert share_p_value(3, 3, 0.1) == 1.0
    assert share_p_value(0, 0, 0.1) == 1.0
    for exited, bad in ((10, 1), (500, 17), (100_000, 4_800)):
        assert share_p_value(exited, bad, 0.05) == pytest.approx(binom.cdf(bad, exited, 0.05), rel=1e-8)


def test_p_values_of_means_by_hand() -> None:
    # The first bet is sqrt(2 ln(1 / level) / (n / 4)), at most 1; one draw of 1 wins bet * (1 - least).
    assert mean_p_value(torch.tensor([1.0]), 0.8, 0.05) == pytest.approx(1 / 1.2)
    assert mean_p_value(torch.tensor([0.0]), 0.8, 0.05) == 1.0
    assert mean_p_value(torch.empty(0), 0.8, 0.05) == 1.0
    # As if 1/2 were a first draw: variance after one 1 is (1/4 + (1 - 3/4)^2) / 2.
    level = math.exp(-0.01)
    first, second = (0.02 / (2 * 0.25)) ** 0.5, (0.02 / (2 * 0.15625)) ** 0.5
    capital = (1 + first * 0.5) * (1 + second * 0.5)
    assert mean_p_value(torch.ones(2), 0.5, level) == pytest.approx(1 / capital)


def test_p_values_of_means_are_valid_and_sharp() -> None:
    # At a mean of exactly `least` at most 5 % of samples may reject; 0.02 above it most do.
    generator = torch.Generator().manual_seed(0)
    samples = 0.9 + 0.1 * (torch.rand(400, 300, generator=generator) < 0.5) - 0.05
    rejected = sum(mean_p_value(sample, 0.9, 0.05) <= 0.05 for sample in samples)
    assert rejected <= binom.ppf(0.999, 400, 0.05)
    assert sum(mean_p_value(sample, 0.88, 0.05) <= 0.05 for sample in samples) > 390


def test_the_fewest_sentences_that_can_show_it() -> None:
    number = fewest_draws(0.05, 0.025)
    assert number == 72
    assert share_p_value(number, 0, 0.05) <= 0.025 < share_p_value(number - 1, 0, 0.05)
    assert fewest_to_calibrate(risk=0.05, confidence=0.95, keep=0.8) == 3 * 72
    assert fewest_to_calibrate(risk=0.5, confidence=0.95, keep=0.97) == 3 * fewest_draws(0.03, 0.025) == 3 * 122
    # Ten neighbours need an index of eleven.
    assert fewest_to_calibrate(risk=0.5, confidence=0.5, keep=0.5) == 33


def test_the_sequence_ends_at_the_first_that_fails() -> None:
    seen = []

    def p_value(index: int) -> float:
        seen.append(index)
        return [0.01, 0.9, 0.02, 0.03][index]

    assert list(fixed_sequence([3, 0, 1, 2], p_value, 0.05)) == [3, 0]
    assert seen == [3, 0, 1]  # the one behind the failure is not even looked at


def test_the_lowest_threshold_by_hand() -> None:
    scores = torch.tensor([0.9, 0.8, 0.8, 0.7, 0.6])
    bad = torch.tensor([False, False, True, False, False])
    assert lowest_threshold(scores, bad, 0.0, 1) == pytest.approx(0.9)  # 0.8 lets a bad one leave
    assert lowest_threshold(scores, bad, 0.2, 1) == pytest.approx(0.6)  # one bad of five
    assert lowest_threshold(scores, bad, 0.25, 1) == pytest.approx(0.6)
    assert lowest_threshold(scores[:4], bad[:4], 0.25, 1) == pytest.approx(0.7)
    assert lowest_threshold(scores, bad, 0.0, 2) == math.inf  # only one may leave, two must
    assert lowest_threshold(scores, ~bad, 0.1, 1) == math.inf
    assert lowest_threshold(torch.full((3,), -torch.inf), torch.zeros(3, dtype=torch.bool), 1, 1) == math.inf
    assert lowest_threshold(torch.empty(0), torch.empty(0, dtype=torch.bool), 1, 0) == math.inf


def test_thresholds_layer_by_layer_by_hand() -> None:
    scores = torch.tensor([[-torch.inf] * 4, [0.9, 0.8, 0.3, 0.2], [0.1, 0.2, 0.9, 0.8], [1.0] * 4])
    bad = torch.tensor([[True] * 4, [False, True, True, True], [True, True, False, False], [False] * 4])
    inf = math.inf
    assert layer_thresholds(scores, bad, 1, 0.0).tolist() == pytest.approx([inf, 0.9, 0.8, inf])
    assert layer_thresholds(scores, bad, 3, 0.0).tolist() == pytest.approx([inf, inf, 0.8, inf])
    # Half of layer 2's leavers may be bad, and only who is still there counts at layer 3.
    assert layer_thresholds(scores, bad, 2, 0.5).tolist() == pytest.approx([inf, 0.8, 0.8, inf])
    made = candidates(scores, torch.where(bad, 0.9, 1.0), 0.94, 0.5)
    assert len(made) == len({tuple(thresholds.tolist()) for thresholds in made})
    assert made.isfinite().any(1).all()
    for first, share in ((1, 0.0), (2, 0.0), (3, 0.0), (1, 0.5), (3, 0.5)):
        assert (made == layer_thresholds(scores, bad, first, share)).all(1).any()


def test_counts_are_of_early_exits_only() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.0, 0.9, 0.0], [0.0, 0.0, 0.0]])
    bad = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    exits, exited, wrong = counts(torch.tensor([0.5, 0.5, torch.inf]), scores, bad)
    assert exits.tolist() == [1, 2, 3]
    assert (exited, wrong) == (2, 1)


def test_both_statements_hold_over_many_draws() -> None:
    pooled = population(4_000, seed=1)
    measured = Measured.of(pooled, patience=1)
    bad = measured.similarity < DEMAND.floor
    generator = torch.Generator().manual_seed(2)
    everyone = torch.arange(4_000)
    draws, violations, naive_violations, saved = 15, 0, 0, 0
    for _ in range(draws):
        # Drawn with replacement: independent draws, for which the population is the truth.
        rows = [torch.randint(4_000, (150,), generator=generator) for _ in range(3)]
        calibration, _ = certify(parts_of(pooled, rows, measured), 1, DEMAND)
        scores = measured.predict(calibration.predictor) if calibration.predictor else measured.consecutive
        exits, exited, wrong = counts(calibration.thresholds, scores, bad)
        saved += exited > 0
        searched = Neighbourhood(pooled[1:, everyone[::8]], pooled[1:, rows[1]], 10)
        kept = searched.overlap(exits[::8], exits[rows[1]]).mean()
        violations += exited > 0 and (wrong / exited > DEMAND.risk or kept < DEMAND.keep)
        # What is usually done: thresholds that just hold on the sentences that they were chosen on.
        naive = layer_thresholds(measured.consecutive[:, rows[1]], bad[:, rows[1]], 1, 0.1)
        _, exited, wrong = counts(naive, measured.consecutive, bad)
        naive_violations += exited > 0 and wrong / exited > DEMAND.risk
    # 10 % are allowed: 1.5 of 15; three standard deviations above that is 5.
    assert violations <= 5
    # It is no empty promise, and the tests are what keeps it.
    assert saved > 0.8 * draws
    assert naive_violations > 5


def test_exits_that_are_near_but_lose_their_neighbours_are_not_safe() -> None:
    # All sentences lie within a cosine of .94 of one another, so that nearness says nothing about neighbours.
    generator = torch.Generator().manual_seed(5)
    centre = torch.nn.functional.normalize(torch.randn(16, generator=generator), dim=-1)
    final = centre + 0.04 * torch.randn(900, 16, generator=generator)
    lost = [centre + 0.04 * torch.randn(900, 16, generator=generator)] * 2
    near = [final + 0.003 * torch.randn(900, 16, generator=generator)] * 2
    pooled = torch.stack([*lost, lost[0], *near, final])
    measured = Measured.of(pooled, patience=1)
    assert (measured.similarity[1] > 0.94).double().mean() > 0.95
    demand = Demand(floor=0.94, risk=0.1, confidence=0.9, keep=0.8)
    calibration, outcome = certify(parts_of(pooled, thirds(900), measured), 1, demand)
    # Layers 1 and 2 hold the floor, only 3 and 4 the neighbours as well.
    assert (calibration.thresholds < torch.inf).any()
    assert 2.9 < outcome.expected_layers < 4.5
    assert outcome.overlap.mean() > 0.8
    without = Demand(floor=0.94, risk=0.1, confidence=0.9, keep=0.01)
    assert certify(parts_of(pooled, thirds(900), measured), 1, without)[1].expected_layers < 2.5


def test_the_report_says_which_of_the_gates_checks_pass() -> None:
    pooled = population(900, seed=3)
    parts = parts_of(pooled, thirds(900))
    facts = report(DEMAND, parts, *certify(parts, 1, DEMAND))
    rate, similarity, neighbours = facts["checklist"]
    assert [row["bound"] for row in (rate, similarity, neighbours)] == ["> 0.5", ">= 0.94", ">= 0.8"]
    assert (rate["value"], rate["passed"]) == (facts["exit_share"], facts["exit_share"] > 0.5)
    assert (similarity["value"], similarity["passed"]) == (facts["similarity"], facts["similarity"] >= 0.94)
    assert neighbours["value"] == facts["nn_at_10"] >= DEMAND.keep
    assert neighbours["passed"] is (facts["nn_at_10"] >= 0.8)
    assert facts["searching"] == {"queries": 300, "documents": 300}


def test_a_model_that_converges_falsely_calibrates_to_no_exits() -> None:
    # Layers 1 to 4 nearly alike and far from the last: the consecutive rule lets everyone leave at 2.
    generator = torch.Generator().manual_seed(4)
    plateau = torch.randn(1, 900, 8, generator=generator)
    below = plateau + 0.01 * torch.randn(5, 900, 8, generator=generator)
    pooled = torch.cat([below, torch.randn(1, 900, 8, generator=generator)])
    measured = Measured.of(pooled, patience=1)
    assert (measured.consecutive[1] > 0.95).all()
    calibration, outcome = certify(parts_of(pooled, thirds(900), measured), 1, DEMAND)
    assert calibration.thresholds.tolist() == [math.inf] * 5
    assert calibration.min_layer == 5
    assert outcome.expected_layers == 5
    assert exits_of(pooled, calibration).tolist() == [5] * 900


def test_the_outcome_is_what_the_rule_does() -> None:
    pooled = population(900, seed=3)
    rows = thirds(900, torch.Generator().manual_seed(0))
    calibration, outcome = certify(parts_of(pooled, rows), 1, DEMAND)
    exits = exits_of(pooled[:, rows[2]], calibration)
    assert exits.tolist() == outcome.exits.tolist()
    assert outcome.expected_layers < 5
    cosines = torch.cosine_similarity(at_layers(pooled[:, rows[2]], exits), pooled[-1, rows[2]], dim=-1)
    assert outcome.exited == (exits < 5).sum()
    assert outcome.bad == ((cosines < DEMAND.floor) & (exits < 5)).sum()
    assert outcome.bad / outcome.exited < DEMAND.risk
    indexed = at_layers(pooled[:, rows[1]], exits_of(pooled[:, rows[1]], calibration))
    result, reference = (
        (F.normalize(queries, dim=-1) @ F.normalize(index, dim=-1).T).topk(10).indices.tolist()
        for queries, index in (
            (at_layers(pooled[:, rows[2]], exits), indexed),
            (pooled[-1, rows[2]], pooled[-1, rows[1]]),
        )
    )
    shares = [len({*one} & {*two}) / 10 for one, two in zip(result, reference, strict=True)]
    assert outcome.overlap.tolist() == pytest.approx(shares)


def test_the_predicted_similarity_is_chosen_where_it_saves_layers() -> None:
    # Every step is as small as any other; only the norm tells who is near the last layer.
    generator = torch.Generator().manual_seed(6)
    final = torch.nn.functional.normalize(torch.randn(3000, 8, generator=generator), dim=-1)
    other = torch.nn.functional.normalize(torch.randn(3000, 8, generator=generator), dim=-1)
    near = torch.rand(3000, 1, generator=generator) < 0.5
    below = torch.where(near, 3.0 * final, 1.0 * other).expand(5, -1, -1)
    pooled = torch.cat([below + 0.01 * torch.randn(5, 3000, 8, generator=generator), final[None]])
    calibration, outcome = certify(parts_of(pooled, thirds(3000)), 1, Demand(0.94, 0.1, 0.9, 0.2))
    assert calibration.score == "predicted"
    assert outcome.expected_layers < 4
    share_near = near[2000:].double().mean().item()
    assert outcome.exited / 1000 == pytest.approx(share_near, abs=0.12)


@pytest.mark.parametrize(
    ("demand", "named"),
    [
        (Demand(floor=1.5), "floor 1.5"),
        (Demand(risk=0.0), "risk 0.0"),
        (Demand(confidence=1.0), "confidence 1.0"),
        (Demand(risk=float("nan")), "risk nan"),
        (Demand(keep=1.0), "keep 1.0"),
    ],
)
def test_what_cannot_be_demanded(demand: Demand, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        demand.check()


def test_least_squares_in_batches_equals_one_solve() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 50, 4, generator=generator)
    targets = torch.randn(3, 50, 2, generator=generator)
    sums = LeastSquares()
    for part in torch.arange(50).tensor_split(7):
        sums.add(inputs[:, part], targets[:, part])
    expected = torch.linalg.lstsq(inputs, targets).solution
    torch.testing.assert_close(sums.solve(0.0), expected, atol=1e-5, rtol=0)
    # The penalty shrinks, and means the same for scaled inputs.
    ridged = sums.solve(0.5)
    assert (ridged.norm(dim=(1, 2)) < expected.norm(dim=(1, 2))).all()
    scaled = LeastSquares()
    scaled.add(10 * inputs, targets)
    torch.testing.assert_close(10 * scaled.solve(0.5), ridged, atol=1e-5, rtol=0)


def test_a_dead_layer_does_not_break_the_fit() -> None:
    sums = LeastSquares()
    sums.add(torch.zeros(1, 5, 3), torch.ones(1, 5, 1))
    assert sums.solve(1e-3).tolist() == [[[0.0]] * 3]


def test_the_lens_fits_a_linear_map_and_leaves_the_last_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(400, 8, generator=generator)
    turns = torch.linalg.qr(torch.randn(3, 8, 8, generator=generator)).Q
    unit = torch.nn.functional.normalize(final, dim=-1)
    pooled = torch.stack([final.flip(0), *(2 * unit @ turn for turn in turns), final])
    heads = fit_heads(pooled[:, rows] for rows in torch.arange(400).tensor_split(3))
    assert (similarity_to_final(pooled)[:3].mean(1) < 0.5).all()
    mapped = heads.mapped(pooled)
    torch.testing.assert_close(mapped[1:4], unit.expand(3, -1, -1), atol=5e-3, rtol=0)
    assert mapped[-1].equal(pooled[-1])
    exits = torch.randint(1, 5, (400,), generator=generator)
    taken = heads.at_exits(at_layers(pooled, exits), exits)
    torch.testing.assert_close(taken, at_layers(mapped, exits), atol=1e-5, rtol=0)


def test_heads_predict_the_similarity_to_the_last_layer() -> None:
    # Which half a sentence lies in tells how far it still has to go.
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(600, 8, generator=generator)
    near = torch.rand(600, 1, generator=generator) < 0.5
    sign = torch.where(near, 1.0, -1.0) * final[:, :1].sign()
    layer = torch.cat([5 * sign * final[:, :1].sign(), final[:, 1:]], dim=-1)
    final = torch.cat([5 * torch.ones(600, 1), final[:, 1:]], dim=-1)
    pooled = torch.stack([layer, layer, layer, final])
    predictors = fit_predictors(pooled[:, rows] for rows in torch.arange(600).tensor_split(4))
    scores, truth = predictors.scores(pooled), similarity_to_final(pooled)
    assert scores.shape == (3, 600)
    assert (scores[:2] - truth[:2]).abs().mean() < 0.15 < truth[0].std()
    # A mean is what a head without information falls back on.
    assert scores[:2].mean().item() == pytest.approx(truth[:2].mean().item(), abs=0.01)


def test_the_predictor_is_least_squares_on_the_features() -> None:
    pooled = population(500, seed=9)
    measured = Measured.of(pooled, 1)
    predictor = fit_predictor(measured)
    scores = predictor.scores(pooled)
    assert scores[0].tolist() == [-math.inf] * 500
    torch.testing.assert_close(measured.predict(predictor)[1:], scores[1:], atol=1e-5, rtol=0)
    for layer in range(1, 4):
        expected = torch.linalg.lstsq(
            measured.features[layer - 1].double(), measured.similarity[layer].double()[:, None]
        ).solution[:, 0]
        fitted = measured.features[layer - 1].double() @ expected
        assert (scores[layer] - fitted).abs().max() < 1e-3

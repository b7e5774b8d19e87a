"""Tested calibration: the pieces by hand, and the guarantee by simulation."""

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from leap.core.sample_sizes import fewest_exited
from leap.exits.calibrate.candidates import candidates, layer_thresholds, lowest_threshold
from leap.exits.calibrate.certify import Parts, certified, counts
from leap.exits.calibrate.fit_heads import fit_heads
from leap.exits.calibrate.fit_lens import fit_lens
from leap.exits.calibrate.least_squares import LeastSquares
from leap.exits.calibrate.measure import Measured, fit_predictor
from leap.exits.calibrate.risk import Demand, fixed_sequence, p_value
from leap.exits.rules import at_layers, similarity_to_final
from leap.exits.rules import calibrated as exits_of

DEMAND = Demand(floor=0.94, risk=0.1, confidence=0.9)


def population(rows: int, seed: int, noise: float = 1.0, depth: int = 5) -> Tensor:
    """Pooled layers [L + 1, N, 8] that come nearer to the last one, each sentence at a pace of its own."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.nn.functional.normalize(torch.randn(rows, 8, generator=generator), dim=-1)
    pace = 0.25 + 0.5 * torch.rand(rows, 1, generator=generator)
    layers = [target + noise * pace**layer * torch.randn(rows, 8, generator=generator) for layer in range(depth)]
    return torch.stack([*layers, target])


def split(measured: Measured, generator: torch.Generator, size: int) -> Parts:
    """Three parts drawn with replacement: independent draws, for which the population is the truth."""
    total = measured.similarity.shape[1]
    return Parts(*(measured.at(torch.randint(total, (size,), generator=generator)) for _ in range(3)))


def test_p_values_are_binomial_tails() -> None:
    # Three exited, none bad: 0.9^3; all bad: certain.
    assert p_value(3, 0, 0.1) == pytest.approx(0.729)
    assert p_value(3, 3, 0.1) == 1.0
    assert p_value(0, 0, 0.1) == 1.0
    for exited, bad in ((10, 1), (500, 17), (100_000, 4_800)):
        assert p_value(exited, bad, 0.05) == pytest.approx(binom.cdf(bad, exited, 0.05), rel=1e-9)


def test_the_fewest_sentences_that_can_show_it() -> None:
    number = fewest_exited(0.05, 0.025)
    assert number == 72
    assert p_value(number, 0, 0.05) <= 0.025 < p_value(number - 1, 0, 0.05)


def test_the_sequence_ends_at_the_first_that_fails() -> None:
    seen = []

    def tell(index: int) -> tuple[int, int]:
        seen.append(index)
        return [(100, 0), (100, 90), (100, 1), (100, 2)][index]

    assert list(fixed_sequence([3, 0, 1, 2], tell, 0.1, 0.05)) == [3, 0]
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
    found = candidates(scores, bad, 0.5, levels=(0.0, 1.0))
    assert len(found) == 4  # of six: first layers 1 and 2 give the same
    assert found.isfinite().any(1).all()


def test_counts_are_of_early_exits_only() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.0, 0.9, 0.0], [0.0, 0.0, 0.0]])
    bad = torch.tensor([[True, True, True], [True, False, True], [True, True, True]])
    exits, exited, wrong = counts(torch.tensor([0.5, 0.5, torch.inf]), scores, bad)
    assert exits.tolist() == [1, 2, 3]
    assert (exited, wrong) == (2, 1)


def test_the_guarantee_holds_over_many_draws() -> None:
    measured = Measured.of(population(5_000, seed=1), patience=1)
    bad = measured.similarity < DEMAND.floor
    generator = torch.Generator().manual_seed(2)
    draws, violations, naive_violations, saved = 60, 0, 0, 0
    for _ in range(draws):
        parts = split(measured, generator, 200)
        calibration, _ = certified(parts, 1, DEMAND, uses_lens=False)
        scores = measured.predicted(calibration.predictor) if calibration.predictor else measured.consecutive
        _, exited, wrong = counts(calibration.thresholds, scores, bad)
        violations += exited > 0 and wrong / exited > DEMAND.risk
        saved += exited > 0
        # What is usually done: thresholds that just hold on the sentences that they were chosen on.
        naive = layer_thresholds(parts.order.consecutive, parts.order.similarity < DEMAND.floor, 1, 0.1)
        _, exited, wrong = counts(naive, measured.consecutive, bad)
        naive_violations += exited > 0 and wrong / exited > DEMAND.risk
    # 6 are allowed; three standard deviations above that is 13.
    assert violations <= 13
    # It is no empty promise, and the tests are what keeps it.
    assert saved > 0.9 * draws
    assert naive_violations > 20


def test_a_model_that_converges_falsely_calibrates_to_no_exits() -> None:
    # Layers 1 to 4 nearly alike and far from the last: the consecutive rule lets everyone leave at 2.
    generator = torch.Generator().manual_seed(4)
    plateau = torch.randn(1, 900, 8, generator=generator)
    below = plateau + 0.01 * torch.randn(5, 900, 8, generator=generator)
    pooled = torch.cat([below, torch.randn(1, 900, 8, generator=generator)])
    measured = Measured.of(pooled, patience=1)
    assert (measured.consecutive[1] > 0.95).all()
    parts = Parts(*(measured.at(rows) for rows in torch.arange(900).tensor_split(3)))
    calibration, outcome = certified(parts, 1, DEMAND, uses_lens=False)
    assert calibration.thresholds.tolist() == [math.inf] * 5
    assert calibration.min_layer == 5
    assert outcome.expected_layers == 5
    assert exits_of(pooled, calibration).tolist() == [5] * 900


def test_the_outcome_is_what_the_rule_does() -> None:
    pooled = population(1500, seed=3)
    measured = Measured.of(pooled, patience=1)
    rows = torch.randperm(1500, generator=torch.Generator().manual_seed(0)).tensor_split(3)
    calibration, outcome = certified(Parts(*(measured.at(part) for part in rows)), 1, DEMAND, False)
    exits = exits_of(pooled[:, rows[2]], calibration)
    assert exits.tolist() == outcome.exits.tolist()
    assert outcome.expected_layers < 5
    cosines = torch.cosine_similarity(at_layers(pooled[:, rows[2]], exits), pooled[-1, rows[2]], dim=-1)
    assert outcome.exited == (exits < 5).sum()
    assert outcome.bad == ((cosines < DEMAND.floor) & (exits < 5)).sum()
    assert outcome.bad / outcome.exited < DEMAND.risk


def test_the_predicted_similarity_is_chosen_where_it_saves_layers() -> None:
    # Every step is as small as any other; only the norm tells who is near the last layer.
    generator = torch.Generator().manual_seed(6)
    final = torch.nn.functional.normalize(torch.randn(3000, 8, generator=generator), dim=-1)
    other = torch.nn.functional.normalize(torch.randn(3000, 8, generator=generator), dim=-1)
    near = torch.rand(3000, 1, generator=generator) < 0.5
    below = torch.where(near, 3.0 * final, 1.0 * other).expand(5, -1, -1)
    pooled = torch.cat([below + 0.01 * torch.randn(5, 3000, 8, generator=generator), final[None]])
    measured = Measured.of(pooled, patience=1)
    parts = Parts(*(measured.at(rows) for rows in torch.arange(3000).tensor_split(3)))
    calibration, outcome = certified(parts, 1, DEMAND, uses_lens=False)
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


def test_the_lens_finds_a_linear_map_and_leaves_the_last_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(400, 8, generator=generator)
    turns = torch.linalg.qr(torch.randn(3, 8, 8, generator=generator)).Q
    unit = torch.nn.functional.normalize(final, dim=-1)
    pooled = torch.stack([final.flip(0), *(2 * unit @ turn for turn in turns), final])
    lens = fit_lens(pooled[:, rows] for rows in torch.arange(400).tensor_split(3))
    assert (similarity_to_final(pooled)[:3].mean(1) < 0.5).all()
    mapped = lens.mapped(pooled)
    torch.testing.assert_close(mapped[1:4], unit.expand(3, -1, -1), atol=5e-3, rtol=0)
    assert mapped[-1].equal(pooled[-1])
    exits = torch.randint(1, 5, (400,), generator=generator)
    taken = lens.at_exits(at_layers(pooled, exits), exits)
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
    heads = fit_heads(pooled[:, rows] for rows in torch.arange(600).tensor_split(4))
    scores, truth = heads.scores(pooled), similarity_to_final(pooled)
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
    torch.testing.assert_close(measured.predicted(predictor)[1:], scores[1:], atol=1e-5, rtol=0)
    for layer in range(1, 4):
        expected = torch.linalg.lstsq(
            measured.features[layer - 1].double(), measured.similarity[layer].double()[:, None]
        ).solution[:, 0]
        fitted = measured.features[layer - 1].double() @ expected
        assert (scores[layer] - fitted).abs().max() < 1e-3

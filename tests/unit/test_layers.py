import json

import pytest
import torch

from leap.evaluate.diagnosis import diagnose, exit_figures, verdict
from leap.evaluate.layers import (
    alignment,
    contraction,
    cumulative_rates,
    exit_shares,
    interpolate,
    is_monotonic,
    layer_overlaps,
    layer_rows,
    median_contraction,
    share_below,
)
from leap.exits import ExitRule
from leap.exits.neighbours import NeighbourOverlap

RULE = ExitRule(0.95, 2, 1)


def random_pooled(layers: int = 4, rows: int = 30, spread: float = 0.3) -> torch.Tensor:
    """Vectors that move less and less from layer to layer."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(layers + 1, rows, 8, generator=generator)
    steps *= (spread ** torch.arange(layers + 1))[:, None, None]
    return steps.cumsum(0)


def test_contraction_by_hand() -> None:
    # Steps of length 1, 2, 3, 6 along one axis; a second sentence of 1, 4, 1, 1; a third of 1, 1, 1, 1.
    steps = torch.tensor([[0.0, 0, 0], [1, 1, 1], [2, 4, 1], [3, 1, 1], [6, 1, 1]])
    pooled = steps.cumsum(0)[:, :, None]
    # Layer 2: 3/2, 1/4, 1; layer 3: 6/3, 1, 1.
    assert contraction(pooled) == [None, 1.0, 1.0, None]
    assert contraction(pooled[:, :1]) == [None, 1.5, 2.0, None]


def test_contraction_where_nothing_moves() -> None:
    assert contraction(torch.ones(5, 3, 2)) == [None, None, None, None]
    still = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 4.0], [1.0, 5.0]])[:, :, None]
    # The sentence that stands still is left out: a step of 0 has no ratio.
    assert contraction(still) == [None, 2.0, 0.5, None]


@pytest.mark.parametrize("layers", [1, 2])
def test_contraction_of_shallow_models(layers: int) -> None:
    assert contraction(torch.randn(layers + 1, 3, 2)) == [None] * layers


def test_alignment_by_hand() -> None:
    # Layer 2 goes straight to the end, layer 3 aside of it, layer 4 is the end.
    pooled = torch.tensor([[9.0, 9.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [2.0, 0.0]])[:, None]
    assert alignment(pooled) == [None, *(pytest.approx(value, abs=1e-6) for value in (1.0, 0.0, 1.0))]


def test_cumulative_rates_by_hand() -> None:
    assert cumulative_rates(torch.tensor([2, 3, 3, 4]), depth=4) == [0.0, 0.25, 0.75, 1.0]


def test_exit_shares_by_hand() -> None:
    assert exit_shares(torch.tensor([2, 3, 3, 4]), depth=4) == [0.0, 0.25, 0.5, 0.25]


def test_median_contraction() -> None:
    # The prototype's ten values of a 12-layer model, whose median it gives as .83.
    values = [0.93, 0.94, 0.74, 0.66, 0.93, 0.67, 1.01, 0.66, 1.56, 0.31]
    assert median_contraction([None, *values, None]) == pytest.approx(0.835)
    assert median_contraction([None, None]) is None


def test_share_below_is_strict() -> None:
    assert share_below(torch.tensor([0.4, 0.5, 0.6, 0.3]), 0.5) == 0.5


def test_interpolated() -> None:
    by_layer = [0.1, 0.2, 0.6, 1.0]
    assert interpolate(by_layer, 2.25) == pytest.approx(0.3)
    assert interpolate(by_layer, 1.0) == 0.1
    assert interpolate(by_layer, 4.0) == 1.0


def test_is_monotonic() -> None:
    assert is_monotonic([0.1, 0.1, 0.4])
    assert not is_monotonic([0.1, 0.5, 0.4, 1.0])
    # Idle late layers: the mean of float32 cosines wavers in its last digits.
    assert is_monotonic([0.1, 1.0000001, 0.9999999, 1.0])
    assert not is_monotonic([0.1, 0.99, 0.98999, 1.0])


@pytest.mark.parametrize(
    ("rate", "similarity", "words"),
    [
        (0.51, 0.94, "exits and is near"),
        (1.0, 0.9399, "exits and is far (false convergence)"),
        (0.5, 0.99, "never exits"),
        (0.5, 0.30, "never exits"),
        (0.0, 1.0, "never exits"),
    ],
)
def test_verdict(rate: float, similarity: float, words: str) -> None:
    assert verdict(rate, similarity) == words


def test_layer_overlaps_end_at_one() -> None:
    overlaps = layer_overlaps(NeighbourOverlap(random_pooled(), 5))
    assert overlaps.shape == (4, 30)
    assert (overlaps[-1] == 1).all()
    assert (overlaps.mean(1).diff() > 0).all()


def test_layer_rows_by_hand() -> None:
    # Cosines to the last layer: 0, 1, 1 and 0.6, 0.6, 1; to the layer before, from 2 on: 0, 1 and 1, 0.6.
    one = [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]
    two = [[1.0, 1.0], [3.0, 4.0], [3.0, 4.0], [1.0, 0.0]]
    pooled = torch.tensor([one, two]).transpose(0, 1)
    overlaps = torch.tensor([[0.2, 0.4], [0.85, 0.85], [1.0, 1.0]], dtype=torch.float64)
    rows = layer_rows(pooled, RULE, overlaps)
    assert [row["layer"] for row in rows] == [1, 2, 3]
    assert [row["similarity_to_final"] for row in rows] == pytest.approx([0.3, 0.8, 1.0])
    assert rows[0]["stability"] is None
    assert [row["stability"] for row in rows[1:]] == pytest.approx([0.5, 0.8])
    assert [row["exit_rate_converged"] for row in rows] == [0.0, 0.5, 1.0]
    # The oracle: sentence 1 is there at layer 2, sentence 2 only at the end.
    assert [row["exit_rate_near_final"] for row in rows] == [0.0, 0.5, 1.0]
    assert [row["exit_share_converged"] for row in rows] == [0.0, 0.5, 0.5]
    assert [row["exit_share_near_final"] for row in rows] == [0.0, 0.5, 0.5]
    assert rows[0]["gradient"] is None
    assert [row["gradient"] for row in rows[1:]] == pytest.approx([0.5, 0.2])
    assert [row["nn_at_10"] for row in rows] == pytest.approx([0.3, 0.85, 1.0])
    assert [row["nn_fail_50"] for row in rows] == [1.0, 0.0, 0.0]
    assert [row["nn_fail_30"] for row in rows] == [0.5, 0.0, 0.0]
    assert [row["viable"] for row in rows] == [False, False, True]


def test_the_oracle_heeds_no_min_layer() -> None:
    pooled = torch.ones(4, 2, 3)
    rows = layer_rows(pooled, ExitRule(0.95, 3), torch.ones(3, 2))
    assert [row["exit_rate_near_final"] for row in rows] == [1.0, 1.0, 1.0]
    assert [row["exit_rate_converged"] for row in rows] == [0.0, 0.0, 1.0]


def test_exit_figures_of_a_mixture() -> None:
    pooled = random_pooled(spread=0.7)
    exits = torch.full((30,), 4)
    exits[:12], exits[12:18] = 2, 3
    figures = exit_figures(NeighbourOverlap(pooled, 5), exits, 200, 1)
    assert figures["rate"] == pytest.approx(0.6)
    assert figures["expected_layers"] == pytest.approx((12 * 2 + 6 * 3 + 12 * 4) / 30)
    assert figures["layer_reduction"] == pytest.approx(4 / 3)
    assert figures["layers"] == {"2": 12, "3": 6, "4": 12}
    own = torch.cat([pooled[2, :12], pooled[3, 12:18], pooled[4, 18:]])
    cosines = torch.nn.functional.cosine_similarity(own, pooled[4], dim=-1)
    assert figures["similarity"] == pytest.approx(cosines.mean().item())
    assert figures["similarity_p05"] == pytest.approx(cosines.quantile(0.05).item(), abs=1e-6)
    low, high = figures["similarity_ci95"]
    assert low < figures["similarity"] < high
    low, high = figures["nn_at_10_ci95"]
    assert low < figures["nn_at_10"] < high < 1


def test_a_mixture_at_one_layer_is_that_layer() -> None:
    pooled = random_pooled()
    kept = NeighbourOverlap(pooled, 5)
    figures = exit_figures(kept, torch.full((30,), 2), 100, 1)
    assert figures["nn_at_10"] == pytest.approx(layer_overlaps(kept)[1].mean().item())
    everything = exit_figures(kept, torch.full((30,), 4), 100, 1)
    assert (everything["rate"], everything["nn_at_10"], everything["nn_fail_50"]) == (0.0, 1.0, 0.0)


def diagnosed(pooled: torch.Tensor) -> dict[str, object]:
    tokens = torch.arange(pooled.shape[1]) % 20 + 3
    return diagnose(NeighbourOverlap(pooled, 5), RULE, tokens, [12], 100, 1)


def test_the_three_states() -> None:
    near = diagnosed(random_pooled(spread=0.1))
    assert near["verdict"] == "exits and is near"
    assert near["monotonic"]
    # Nothing moves between layers 1 and 3, then all of it turns away: exits fire, far from the end.
    far = random_pooled()
    far[1:4], far[4] = far[1], random_pooled(rows=30)[0].roll(1, 0)
    false = diagnosed(far)
    assert false["exit"]["rate"] == 1.0
    assert false["exit"]["layers"] == {"2": 30}
    assert false["verdict"] == "exits and is far (false convergence)"
    assert false["oracle"] == {"rate": 0.0, "expected_layers": 4.0}
    never = diagnosed(torch.randn(5, 30, 8, generator=torch.Generator().manual_seed(2)))
    assert never["verdict"] == "never exits"
    assert never["truncation"] == {"similarity": pytest.approx(1.0), "nn_at_10": 1.0}
    assert {row["n"] for row in never["by_length"]} == {20, 10}
    for results in (near, false, never):
        json.dumps(results, allow_nan=False)


def test_gains_of_the_whole_and_by_length() -> None:
    # Sentences of 3 to 12 tokens stand still from layer 2 on, longer ones move until the end.
    pooled = random_pooled(rows=40, spread=0.9)
    tokens = torch.arange(40) % 20 + 3
    short = tokens <= 12
    pooled[2:, short] = pooled[4, short]
    result = diagnose(NeighbourOverlap(pooled, 5), ExitRule(0.999, 2), tokens, [12], 200, 1)
    assert result["exit"]["layers"] == {"3": 20, "4": 20}
    # Leaving at 3 costs the short ones nothing; cut between 3 and 4, half of the long ones' loss is taken.
    gain = result["adaptive"]["similarity_gain"]
    loss = 1 - result["layers"][2]["similarity_to_final"]
    assert gain == pytest.approx(loss / 2, abs=1e-6)
    low, high = result["adaptive"]["similarity_gain_ci95"]
    assert 0 < low < gain < high
    # The oracle may leave at 2 already and spends what it saves on the long ones.
    assert result["adaptive"]["similarity_ceiling"] >= gain
    assert result["adaptive"]["ceiling_expected_layers"] <= 3.5
    bins = {tuple(row["tokens"]): row for row in result["by_length"]}
    assert bins[1, 12]["expected_layers"] == 3.0
    assert bins[13, None]["expected_layers"] == 4.0
    # Within a length all leave at one layer, so nothing is gained there.
    assert bins[1, 12]["similarity_gain"] == bins[13, None]["similarity_gain"] == 0.0

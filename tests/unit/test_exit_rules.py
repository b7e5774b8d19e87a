import pytest
import torch

from leap.exits import ExitRule
from leap.exits.calibration import Calibration
from leap.exits.predictor import Predictor
from leap.exits.rules import (
    at_layers,
    by_predictors,
    calibrated,
    consecutive_similarity,
    converged,
    first_layer_at,
    near_final,
    patient,
    similarity_to_final,
)
from leap.exits.similarity_predictors import Predictors

# One sentence, embedding layer and four layers. Cosines to the layer before, from layer 1 on: 1, 0.6, 1, 0.
ONE = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 4.0], [6.0, 8.0], [4.0, -3.0]])[:, None]


def test_consecutive_similarity_by_hand() -> None:
    # Layer 1 has no layer 0 to compare with: the embeddings are not a layer.
    assert consecutive_similarity(ONE, 1)[:, 0].tolist() == pytest.approx([-torch.inf, 0.6, 1.0, 0.0])
    assert consecutive_similarity(ONE, 2)[:, 0].tolist() == pytest.approx([-torch.inf, -torch.inf, 0.6, 0.0])
    assert consecutive_similarity(ONE, 4)[:, 0].tolist() == [-torch.inf] * 4


def test_similarity_to_final_by_hand() -> None:
    assert similarity_to_final(ONE)[:, 0].tolist() == pytest.approx([0.8, 0.0, 0.0, 1.0], abs=1e-6)


def test_a_zero_vector_is_similar_to_nothing() -> None:
    pooled = torch.zeros(4, 1, 3)
    pooled[2:] = 1.0
    assert consecutive_similarity(pooled, 1)[:, 0].tolist() == pytest.approx([-torch.inf, 0.0, 1.0])
    # Two zero vectors do not count as converged either.
    assert converged(torch.zeros(4, 1, 3), ExitRule(0.5, 1)).tolist() == [3]


def test_the_threshold_itself_exits() -> None:
    scores = torch.tensor([[0.1], [0.75], [0.75], [0.9]])
    assert first_layer_at(scores, 0.75, 1).tolist() == [2]
    above = float(torch.nextafter(torch.tensor(0.75), torch.tensor(1.0)))
    assert first_layer_at(scores, above, 1).tolist() == [4]


def test_min_layer_is_the_first_layer_that_may_exit() -> None:
    scores = torch.ones(4, 1)
    assert [first_layer_at(scores, 0.5, layer).item() for layer in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_the_last_layer_takes_whoever_is_left() -> None:
    assert first_layer_at(torch.full((4, 3), -1.0), 0.5, 1).tolist() == [4, 4, 4]
    assert first_layer_at(torch.full((4, 1), torch.nan), 0.5, 1).tolist() == [4]


def test_rows_exit_on_their_own() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.9, 0.9, 0.9]])
    assert first_layer_at(scores, 0.5, 1).tolist() == [1, 2, 3]
    assert scores[0, 0] == pytest.approx(0.9)


@pytest.mark.parametrize(("patience", "first"), [(1, 2), (2, 3), (3, 4)])
def test_no_exit_before_there_is_a_layer_to_compare_with(patience: int, first: int) -> None:
    # All layers alike: l > k alone holds the exit back, even with l_min 1 and the lowest threshold.
    rule = ExitRule(-1.0, 1, patience)
    assert converged(torch.ones(6, 2, 3), rule).tolist() == [first, first]
    assert rule.first_check() == first


def test_converged_by_hand() -> None:
    assert converged(ONE, ExitRule(0.9, 1)).tolist() == [3]
    assert converged(ONE, ExitRule(0.5, 1)).tolist() == [2]
    assert converged(ONE, ExitRule(0.5, 3)).tolist() == [3]
    assert converged(ONE, ExitRule(0.9, 1, 2)).tolist() == [4]


def test_near_final_by_hand() -> None:
    assert near_final(ONE, 0.79).tolist() == [1]
    assert near_final(ONE, 0.79, min_layer=2).tolist() == [4]


def test_at_layers_takes_each_row_at_its_own() -> None:
    pooled = torch.arange(4.0)[:, None, None] + torch.tensor([[0.0], [0.1]])
    assert at_layers(pooled, torch.tensor([3, 1])).flatten().tolist() == pytest.approx([3.0, 1.1])


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (ExitRule(1.1, 3), "threshold 1.1"),
        (ExitRule(0.9, 0), "min_layer 0"),
        (ExitRule(0.9, 7), "min_layer 7"),
        (ExitRule(0.9, 3, 0), "patience 0"),
        (ExitRule(0.9, 3, 6), "patience 6"),
    ],
)
def test_a_rule_that_the_model_cannot_follow(rule: ExitRule, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        rule.check_depth(6)


def test_rules_at_the_edges_are_fine() -> None:
    ExitRule(1.0, 6, 5).check_depth(6)
    ExitRule(-1.0, 1, 1).check_depth(2)


def plane(*cosines: float) -> torch.Tensor:
    """Pooled layers of one sentence in a plane, by their cosines to the layer before, from layer 2 on."""
    steps = torch.tensor([1.0, 1.0, *cosines], dtype=torch.float64).acos()
    angles = steps.cumsum(0)
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()[:, None]


def test_a_cosine_of_exactly_theta_exits() -> None:
    # Norms of 1 and cosines of halves: no rounding anywhere.
    exact = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0, 0, 0, 1.0]])[:, None]
    score = consecutive_similarity(exact, 1)[1].item()
    assert score == 0.5
    assert converged(exact, ExitRule(0.5, 1)).tolist() == [2]
    assert ExitRule(0.5, 1).leaves(2, exact[2], [exact[1]]).tolist() == [True]
    assert converged(exact, ExitRule(0.5 + 1e-7, 1)).tolist() == [3]


def test_pabee_counts_layers_in_a_row() -> None:
    pooled = plane(0.99, 0.5, 0.99, 0.99, 0.99, 0.5)  # layers 2 to 7
    rule = ExitRule(0.9, 1)
    assert [patient(pooled, rule, p).item() for p in (1, 2, 3, 4)] == [2, 5, 6, 7]
    assert converged(pooled, rule).item() == 2


def test_pabee_counts_below_min_layer_but_lets_none_leave_there() -> None:
    pooled = plane(0.99, 0.99, 0.99, 0.5, 0.5)  # layers 2 to 6
    assert patient(pooled, ExitRule(0.9, 3), 2).item() == 3
    # The run of layers 2, 3 and 4 still lasts at l_min 4; at l_min 5 it is over.
    assert patient(pooled, ExitRule(0.9, 4), 3).item() == 4
    assert patient(pooled, ExitRule(0.9, 5), 2).item() == 6


def test_pabee_compares_over_the_gap_k() -> None:
    pooled = plane(0.99, 0.99, 0.99, 0.99)
    # With k = 2, layer 3 is the first that has a layer to compare with, so layer 4 ends the first run of two.
    assert patient(pooled, ExitRule(0.9, 1, 2), 2).item() == 4
    assert patient(pooled, ExitRule(0.9, 1, 1), 2).item() == 3


def test_heads_by_hand() -> None:
    predictors = Predictors(torch.tensor([[0.5, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0.1, 0.0, 0.1]))
    # Unit vectors (1, 0), (0.6, 0.8) and (0.6, 0.8) of layers 1 to 3: predictions 0.6, 0.8 and 0.9.
    assert by_predictors(ONE, predictors, 0.6, 1).tolist() == [1]
    assert by_predictors(ONE, predictors, 0.7, 1).tolist() == [2]
    assert by_predictors(ONE, predictors, 0.7, 3).tolist() == [3]
    assert by_predictors(ONE, predictors, 0.95, 1).tolist() == [4]


def test_calibrated_has_a_threshold_a_layer() -> None:
    inf = torch.inf
    # Cosines to the layer before, from layer 2 on: 0.6, 1, 0.
    for thresholds, left in (
        ([inf, 0.5, inf, inf], 2),
        ([inf, 0.7, 0.9, inf], 3),
        ([inf, inf, inf, inf], 4),
    ):
        result = calibrated(ONE, Calibration(torch.tensor(thresholds), 1, None))
        assert result.tolist() == [left]


def test_calibrated_by_a_predicted_similarity() -> None:
    # The prediction is log |p_l|: norms 2, 5, 10, 5 at layers 1 to 4.
    by_norm = Predictor(torch.tensor([[0.0, 0, 0, 1, 0, 0]]).repeat(4, 1))
    assert by_norm.scores(ONE)[1:, 0].exp().tolist() == pytest.approx([5, 10, 5])
    thresholds = torch.tensor([torch.inf, 9.0, 9.0, torch.inf]).log()
    assert calibrated(ONE, Calibration(thresholds, 1, by_norm)).tolist() == [3]
    # And one that sees the three cosines and the step of the norm.
    seen = [Predictor(torch.eye(6)[column].repeat(4, 1)).scores(ONE)[2, 0].item() for column in (0, 1, 2, 4, 5)]
    assert seen == pytest.approx([1.0, 0.6, 0.6, torch.tensor(2.0).log().item(), 1.0])


def test_layer_thresholds_are_the_rule() -> None:
    thresholds, patience = ExitRule(0.75, 2, 2).layer_thresholds(5)
    assert thresholds.tolist() == [torch.inf, torch.inf, 0.75, 0.75, torch.inf]
    assert patience == 2
    assert ExitRule(0.75, 5).layer_thresholds(5).thresholds.tolist() == [torch.inf] * 5

import pytest
import torch

from leap.exits import ExitRule
from leap.exits.rules import (
    at_layers,
    consecutive_similarity,
    converged,
    first_layer_at,
    near_final,
    similarity_to_final,
)

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

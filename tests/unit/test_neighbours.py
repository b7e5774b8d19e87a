import pytest
import torch

from leap.exits.neighbours import neighbours, overlap


def at(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_neighbours_of_four_points_by_hand() -> None:
    # Four directions on a circle; the nearest by angle, oneself left out.
    assert neighbours(at(0, 10, 30, 70), 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_nn_overlap_of_four_points_by_hand() -> None:
    before = neighbours(at(0, 10, 30, 70), 2)
    # The last point moves to the other side of the first.
    after = neighbours(at(0, 10, 30, -15), 2)
    # 0: {1, 2} and {1, 3}; 1: {0, 2} and {0, 2}; 2: {1, 0} and {1, 0}; 3: {2, 1} and {0, 1}
    assert after.tolist() == [[1, 3], [0, 2], [1, 0], [0, 1]]
    assert overlap(after, before).tolist() == [0.5, 1.0, 1.0, 0.5]


def test_overlap_is_of_sets() -> None:
    assert overlap(torch.tensor([[3, 1, 2]]), torch.tensor([[2, 3, 1]])).tolist() == [1.0]
    assert overlap(torch.tensor([[3, 1, 2]]), torch.tensor([[7, 8, 9]])).tolist() == [0.0]


def test_a_duplicate_is_ones_neighbour_but_not_oneself() -> None:
    assert neighbours(at(0, 0, 90), 1).tolist() == [[1], [0], [0]]


def test_too_few_vectors() -> None:
    assert neighbours(at(0, 1, 2), 2).shape == (3, 2)
    with pytest.raises(ValueError, match="3 vectors have no 3 neighbours"):
        neighbours(at(0, 1, 2), 3)

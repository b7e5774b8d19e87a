"""Which teacher layer a student layer is matched with."""

import pytest
import torch
from test_objective import loss_settings

from leap.core.settings.training import AdaptiveLayerSettings
from leap.train.objective.layer_map import mapped_targets, needed_teacher_layers, positions


@pytest.mark.parametrize(
    ("student", "teacher", "kind", "expected"),
    [
        (4, 8, "uniform", [(2, 2, 0.0), (4, 4, 0.0), (6, 6, 0.0), (8, 8, 0.0)]),
        (4, 2, "uniform", [(1, 1, 0.0), (1, 1, 0.0), (2, 2, 0.0), (2, 2, 0.0)]),
        (4, 2, "interpolate", [(0, 1, 0.5), (1, 1, 0.0), (1, 2, 0.5), (2, 2, 0.0)]),
        (3, 4, "uniform", [(2, 2, 0.0), (3, 3, 0.0), (4, 4, 0.0)]),
    ],
)
def test_layer_map(student: int, teacher: int, kind: str, expected: list[tuple[int, int, float]]) -> None:
    assert positions(student, teacher, kind) == expected


@pytest.mark.parametrize(("student", "teacher"), [(12, 24), (12, 6), (12, 7), (7, 12), (6, 6), (5, 1)])
def test_the_uniform_map_rises_from_a_layer_to_the_last_one(student: int, teacher: int) -> None:
    layers = [low for low, _, _ in positions(student, teacher, "uniform")]
    # ceil(l L_t / L_s) in whole numbers, where no rounding of a division can lift a layer by one.
    assert layers == [-(-layer * teacher // student) for layer in range(1, student + 1)]
    assert layers[0] >= 1
    assert layers[-1] == teacher
    assert layers == sorted(layers)


def test_targets_of_a_teacher_shallower_than_the_student() -> None:
    teacher = torch.stack([torch.full((1, 2), float(layer)) for layer in range(3)])
    interpolated = mapped_targets(teacher, [0, 1, 2], 4, "interpolate")
    repeated = mapped_targets(teacher, [0, 1, 2], 4, "uniform")
    assert interpolated[:, 0, 0].tolist() == [0.5, 1.0, 1.5, 2.0]
    assert repeated[:, 0, 0].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_targets_are_found_by_the_numbers_of_the_stored_layers() -> None:
    stored = [0, 3, 6]  # another variant may need layers that this one does not
    teacher = torch.stack([torch.full((1, 2), float(layer)) for layer in stored])
    assert mapped_targets(teacher, stored, 2, "uniform")[:, 0, 0].tolist() == [3.0, 6.0]


def test_only_the_layers_that_the_loss_reads_are_needed() -> None:
    assert needed_teacher_layers(12, 24, loss_settings()) == list(range(2, 25, 2))
    assert needed_teacher_layers(12, 24, loss_settings(alpha=0.0)) == [24]
    assert needed_teacher_layers(4, 2, loss_settings(layer_map="interpolate")) == [0, 1, 2]
    assert needed_teacher_layers(4, 4, loss_settings(alpha=0.0, heads=True)) == [4]
    assert needed_teacher_layers(4, 4, loss_settings(alpha=0.0, heads=True, heads_start="ridge")) == [1, 2, 3, 4]
    assert needed_teacher_layers(12, 24, AdaptiveLayerSettings.model_construct()) == [24]

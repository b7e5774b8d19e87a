"""The terms of the loss: by hand, by gradient, and against second formulations."""

import math

import pytest
import torch
from tiny_settings import TINY
from torch.nn import functional as F

from leap.objective import LeapLoss, terms
from leap.objective.layer_map import mapped_targets, needed_teacher_layers, positions
from leap.objective.leap_loss import ramp
from leap.settings.student import LayerWeights, LossSettings

LAYERS, ROWS, WIDTH, TEACHER_WIDTH = 4, 5, 6, 8


def loss_settings(**changes: object) -> LossSettings:
    return LossSettings.model_validate(TINY["loss"] | {"layer_map": "uniform"} | changes)


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_final_loss_of_right_angle_and_of_same_direction() -> None:
    student = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    teacher = torch.tensor([[0.0, 3.0], [5.0, 0.0]])
    assert terms.final_loss(student, teacher) == pytest.approx(0.5)  # 1 and 0


@pytest.mark.parametrize(
    ("kind", "gap", "value", "slope_at_gap"),
    [
        ("sigmoid", 0.0, 0.5, 2.5),
        ("sigmoid", 0.78, 1 / (1 + math.exp(-7.8)), 10 * math.exp(-7.8) / (1 + math.exp(-7.8)) ** 2),
        ("softplus", 0.0, 0.4 * math.log(2), 2.0),
        ("softplus", 0.78, 0.4 * math.log(1 + math.exp(7.8)), 4 / (1 + math.exp(-7.8))),
        ("hinge", 0.5, 2.0, 4.0),
        ("hinge", -0.01, 0.0, 0.0),
    ],
)
def test_margin_and_its_gradient(kind: terms.Margin, gap: float, value: float, slope_at_gap: float) -> None:
    gaps = torch.tensor(gap, requires_grad=True)
    result = terms.margin(gaps, kind, 10.0)
    result.backward()
    assert result.item() == pytest.approx(value, rel=1e-5, abs=1e-7)
    assert gaps.grad is not None
    assert gaps.grad.item() == pytest.approx(slope_at_gap, rel=1e-3, abs=1e-7)


def test_exit_loss_by_hand() -> None:
    layers = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # cosines 1 and 0 with the target
    value = terms.exit_loss(
        layers, torch.tensor([[1.0, 0.0]]), torch.tensor([0.5, 1.5]), tau=0.98, kind="sigmoid", slope=10.0
    )
    expected = (0.5 / (1 + math.exp(0.2)) + 1.5 / (1 + math.exp(-9.8))) / 2
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_contrastive_loss_is_the_library_kl_without_the_diagonal() -> None:
    student, teacher = vectors(ROWS, WIDTH), vectors(ROWS, TEACHER_WIDTH, seed=1)

    def distribution(of: torch.Tensor) -> torch.Tensor:
        unit = F.normalize(of, dim=-1)
        scores = unit @ unit.T / 0.1
        return scores.masked_fill(torch.eye(ROWS, dtype=torch.bool), -torch.inf).softmax(-1)

    p, q = distribution(student), distribution(teacher)
    expected = sum(
        (p[i, j] * (p[i, j].log() - q[i, j].log())).item() for i in range(ROWS) for j in range(ROWS) if i != j
    )
    assert terms.contrastive_loss(student, teacher, 0.1).item() == pytest.approx(expected / ROWS, rel=1e-4)
    assert terms.contrastive_loss(teacher, teacher, 0.1).item() == pytest.approx(0.0, abs=1e-6)


def test_late_loss_by_hand_and_finite_gradient_at_the_target() -> None:
    final = torch.tensor([[1.0, 0.0]], requires_grad=True)
    layers = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]], requires_grad=True)
    value = terms.late_loss(layers, final)
    value.backward()
    expected = (math.sqrt(1 + terms.ROOT_EPSILON) + math.sqrt(terms.ROOT_EPSILON)) / 2
    assert value.item() == pytest.approx(expected, rel=1e-5)
    assert layers.grad is not None
    assert torch.isfinite(layers.grad).all()


def test_redundancy_loss_by_hand() -> None:
    # Unit vectors at 0, 0 and 90 degrees: steps of 0 and sqrt(2), the latter clipped to 0.3.
    layers = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]])
    assert terms.redundancy_loss(layers, 0.3).item() == pytest.approx(-0.15, abs=1e-5)


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


def test_interpolated_targets_lie_between_the_teachers_layers() -> None:
    teacher = torch.stack([torch.full((1, 2), float(layer)) for layer in range(3)])
    targets = mapped_targets(teacher, [0, 1, 2], 4, "interpolate")
    assert targets[:, 0, 0].tolist() == [0.5, 1.0, 1.5, 2.0]


def test_only_the_layers_that_the_loss_reads_are_needed() -> None:
    assert needed_teacher_layers(12, 24, loss_settings()) == list(range(2, 25, 2))
    assert needed_teacher_layers(12, 24, loss_settings(alpha=0.0)) == [24]
    assert needed_teacher_layers(4, 2, loss_settings(layer_map="interpolate")) == [0, 1, 2]


def test_ramp_is_linear_between_its_ends() -> None:
    assert [ramp(at, 0.1, 0.6) for at in (0.0, 0.1, 0.35, 0.6, 1.0)] == [
        0.0,
        0.0,
        pytest.approx(0.5),
        1.0,
        1.0,
    ]


def total(
    settings: LossSettings, progress: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    objective = LeapLoss(settings, LAYERS, WIDTH, TEACHER_WIDTH)
    pooled = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_()
    teacher = vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)
    value, parts = objective(pooled, teacher, [1, 2, 3, 4], progress)
    value.backward()
    assert pooled.grad is not None
    return value, pooled.grad, parts


OFF = {"alpha": 0.0, "beta": 0.0, "gamma": 0.0, "delta": 0.0, "epsilon": 0.0}


def test_a_term_of_weight_zero_leaves_no_gradient() -> None:
    value, gradient, parts = total(loss_settings(**OFF))
    assert list(parts) == ["final"]
    assert value.item() == pytest.approx(parts["final"].item())
    assert (gradient[:LAYERS] == 0).all()  # only the last layer is trained
    assert (gradient[LAYERS] != 0).any()


def test_the_students_own_target_gets_no_gradient_from_the_exit_loss() -> None:
    own = vectors(LAYERS, ROWS, WIDTH).requires_grad_()
    value = terms.exit_loss(
        own[:-1], own[-1].detach(), torch.ones(LAYERS - 1), tau=0.98, kind="sigmoid", slope=10.0
    )
    value.backward()
    assert own.grad is not None
    assert (own.grad[-1] == 0).all()
    assert (own.grad[:-1] != 0).any()


def test_the_exit_loss_of_the_student_starts_with_the_ramp() -> None:
    only_exit = loss_settings(**{**OFF, "beta": 0.4})
    _, _, before = total(only_exit, progress=0.1)
    _, _, after = total(only_exit, progress=0.6)
    _, _, without = total(loss_settings(**{**OFF, "beta": 0.4, "beta_student": 0.0}), progress=0.6)
    assert before["exit"].item() == pytest.approx(without["exit"].item())
    assert after["exit"] > before["exit"]


def test_the_whole_is_the_weighted_sum_of_its_terms() -> None:
    value, _, parts = total(loss_settings())
    weights = {"final": 1.0, "inter": 0.3, "exit": 0.4, "contrast": 0.3, "late": 0.2, "redund": 0.05}
    assert value.item() == pytest.approx(
        sum(weights[name] * parts[name].item() for name in weights), rel=1e-5
    )


def test_uniform_layer_weights_give_the_plain_mean_whatever_their_size() -> None:
    small = total(loss_settings(layer_weights=LayerWeights(early=0.1, late=0.1, final=0.1)))[0]
    large = total(loss_settings(layer_weights=LayerWeights(early=3, late=3, final=3)))[0]
    assert small.item() == pytest.approx(large.item(), rel=1e-5)


def test_bfloat16_states_give_nearly_the_same_loss() -> None:
    torch.manual_seed(0)
    objective = LeapLoss(loss_settings(), LAYERS, WIDTH, TEACHER_WIDTH)
    pooled, teacher = vectors(LAYERS + 1, ROWS, WIDTH), vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)
    exact, _ = objective(pooled, teacher, [1, 2, 3, 4], 1.0)
    rounded, _ = objective(pooled.bfloat16(), teacher, [1, 2, 3, 4], 1.0)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=2e-2)

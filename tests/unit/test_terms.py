"""Each term of the loss: by hand, by gradient, in bfloat16, and against a formulation in float64 numpy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from leap.train.objective import terms

LAYERS, ROWS, WIDTH = 4, 5, 6
Array = NDArray[np.float64]


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(a: Array, b: Array) -> float:
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt((a @ a) * (b @ b)))


def by_numpy(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def test_final_loss_of_right_angle_and_of_same_direction() -> None:
    student = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    teacher = torch.tensor([[0.0, 3.0], [5.0, 0.0]])
    assert terms.final_loss(student, teacher) == pytest.approx(0.5)  # 1 and 0


def test_final_loss_is_half_the_squared_distance_of_unit_vectors() -> None:
    student, teacher = vectors(ROWS, WIDTH), vectors(ROWS, WIDTH, seed=1)
    a, b = by_numpy(student), by_numpy(teacher)
    apart = a / np.linalg.norm(a, axis=1, keepdims=True) - b / np.linalg.norm(b, axis=1, keepdims=True)
    assert terms.final_loss(student, teacher).item() == pytest.approx((apart**2).sum(1).mean() / 2, rel=1e-5)


def test_intermediate_loss_by_hand() -> None:
    student = torch.tensor([[[1.0, 0.0]], [[1.0, 1.0]]])
    teacher = torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])  # cosines -1 and 1 / sqrt(2)
    expected = (2 + 1 - math.sqrt(0.5)) / 2
    assert terms.intermediate_loss(student, teacher).item() == pytest.approx(expected, rel=1e-6)


def test_intermediate_loss_layer_by_layer_in_float64() -> None:
    student, teacher = vectors(LAYERS, ROWS, WIDTH), vectors(LAYERS, ROWS, WIDTH, seed=1)
    a, b = by_numpy(student), by_numpy(teacher)
    layers = [sum(1 - cosine(a[k, i], b[k, i]) for i in range(ROWS)) / ROWS for k in range(LAYERS)]
    assert terms.intermediate_loss(student, teacher).item() == pytest.approx(sum(layers) / LAYERS, rel=1e-5)


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


@pytest.mark.parametrize("kind", ["sigmoid", "softplus", "hinge"])
def test_exit_loss_in_float64(kind: terms.Margin) -> None:
    layers, target = vectors(LAYERS, ROWS, WIDTH), vectors(ROWS, WIDTH, seed=1)
    weights = torch.tensor([0.4, 0.8, 1.2, 1.6])
    a, b, w = by_numpy(layers), by_numpy(target), by_numpy(weights)
    form: dict[str, Callable[[float], float]] = {
        "sigmoid": lambda z: 0.5 * (1 + math.tanh(z / 2)),
        "softplus": lambda z: 0.4 * float(np.logaddexp(0.0, z)),
        "hinge": lambda z: 0.4 * max(0.0, z),
    }
    whole = sum(w[k] * form[kind](7.0 * (0.9 - cosine(a[k, i], b[i]))) for k in range(LAYERS) for i in range(ROWS))
    value = terms.exit_loss(layers, target, weights, tau=0.9, kind=kind, slope=7.0)
    assert value.item() == pytest.approx(whole / LAYERS / ROWS, rel=1e-5)


def test_the_students_own_target_gets_no_gradient_from_the_exit_loss() -> None:
    own = vectors(LAYERS, ROWS, WIDTH).requires_grad_()
    value = terms.exit_loss(
        own[:-1], own[-1].detach(), torch.ones(LAYERS - 1), tau=0.98, kind="sigmoid", slope=10.0
    )
    value.backward()
    assert own.grad is not None
    assert (own.grad[-1] == 0).all()
    assert (own.grad[:-1] != 0).any()


def test_contrastive_loss_by_hand() -> None:
    # Similarities of a row to the two others: student (1, 0), (1, 0), (0, 0); teacher all 0: uniform.
    student = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    high, low = math.e / (math.e + 1), 1 / (math.e + 1)
    one = high * math.log(high / 0.5) + low * math.log(low / 0.5)
    value = terms.contrastive_loss(student, torch.eye(3), 1.0)
    assert value.item() == pytest.approx(2 * one / 3, rel=1e-5)


def test_contrastive_loss_row_by_row_in_float64() -> None:
    student, teacher = vectors(ROWS, WIDTH), vectors(ROWS, WIDTH + 2, seed=1)

    def others(of: Array, row: int) -> Array:
        scores = np.array([cosine(of[row], of[other]) for other in range(ROWS) if other != row]) / 0.1
        return scores - np.logaddexp.reduce(scores)

    a, b = by_numpy(student), by_numpy(teacher)
    rows = [float(np.exp(others(a, i)) @ (others(a, i) - others(b, i))) for i in range(ROWS)]
    assert terms.contrastive_loss(student, teacher, 0.1).item() == pytest.approx(sum(rows) / ROWS, rel=1e-4)
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


def test_late_loss_in_float64_pulls_both_ends() -> None:
    layers, final = vectors(3, ROWS, WIDTH).requires_grad_(), vectors(ROWS, WIDTH, seed=1).requires_grad_()
    a, b = by_numpy(layers), by_numpy(final)
    roots = [math.sqrt(1 - cosine(a[k, i], b[i]) + 1e-4) for k in range(3) for i in range(ROWS)]
    value = terms.late_loss(layers, final)
    assert value.item() == pytest.approx(float(np.mean(roots)), rel=1e-5)
    value.backward()
    # The paper's formula has no stop-gradient here: the final layer is pulled to the late ones too.
    assert layers.grad is not None
    assert final.grad is not None
    assert (final.grad != 0).any()


def test_redundancy_loss_by_hand() -> None:
    # Unit vectors at 0, 0 and 90 degrees: steps of 0 and sqrt(2), the latter clipped to 0.3.
    layers = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]])
    assert terms.redundancy_loss(layers, 0.3).item() == pytest.approx(-0.15, abs=1e-5)


def test_redundancy_loss_by_the_chord_of_the_angle() -> None:
    layers = vectors(LAYERS, ROWS, WIDTH)
    a = by_numpy(layers)
    steps = [
        min(2 * math.sin(math.acos(cosine(a[k, i], a[k + 1, i])) / 2), 1.3)
        for k in range(LAYERS - 1)
        for i in range(ROWS)
    ]
    assert terms.redundancy_loss(layers, 1.3).item() == pytest.approx(-float(np.mean(steps)), rel=1e-5)


def test_redundancy_loss_leaves_steps_beyond_the_clip_alone() -> None:
    layers = torch.tensor([[[1.0, 0.0]], [[0.99, 0.14]], [[0.0, 1.0]]], requires_grad=True)
    terms.redundancy_loss(layers, 0.3).backward()
    assert layers.grad is not None
    assert (layers.grad[:2] != 0).any()
    assert (layers.grad[2] == 0).all()
    equal = torch.ones(2, 1, 2, requires_grad=True)
    terms.redundancy_loss(equal, 0.3).backward()
    assert equal.grad is not None
    assert torch.isfinite(equal.grad).all()


TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "final": lambda student, teacher: terms.final_loss(student[-1], teacher[-1]),
    "intermediate": terms.intermediate_loss,
    "exit": lambda student, teacher: terms.exit_loss(
        student, teacher[-1], torch.ones(LAYERS), tau=0.98, kind="softplus", slope=10.0
    ),
    "contrastive": lambda student, teacher: terms.contrastive_loss(student[-1], teacher[-1], 0.15),
    "late": lambda student, teacher: terms.late_loss(student[:-1], student[-1]),
    "redundancy": lambda student, teacher: terms.redundancy_loss(student, 1.3),
}


@pytest.mark.parametrize("name", TERMS)
def test_states_rounded_to_bfloat16_give_nearly_the_same_term_and_gradient(name: str) -> None:
    student, teacher = vectors(LAYERS, ROWS, WIDTH), vectors(LAYERS, ROWS, WIDTH, seed=1)
    exact, rounded = student.clone().requires_grad_(), student.bfloat16().requires_grad_()
    value, nearly = TERMS[name](exact, teacher), TERMS[name](rounded.float(), teacher)
    (value.backward(), nearly.backward())
    assert nearly.dtype == torch.float32
    assert nearly.item() == pytest.approx(value.item(), rel=2e-2)
    assert exact.grad is not None
    assert rounded.grad is not None
    assert torch.cosine_similarity(exact.grad.flatten(), rounded.grad.float().flatten(), dim=0) > 0.999


@pytest.mark.parametrize("name", TERMS)
def test_a_term_does_not_change_with_the_vectors_length(name: str) -> None:
    student, teacher = vectors(LAYERS, ROWS, WIDTH), vectors(LAYERS, ROWS, WIDTH, seed=1)
    lengths = torch.tensor([0.5, 2.0, 3.0, 9.0])[:, None, None]
    value, scaled = TERMS[name](student, teacher), TERMS[name](student * lengths, teacher * 7)
    assert scaled.item() == pytest.approx(value.item(), rel=1e-5)

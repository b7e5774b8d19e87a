"""The whole objective: its sum, its gradients, and what a CUDA graph of a training step needs of it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_settings import TINY
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from leap.core.settings.training import LayerWeights, LossSettings
from leap.train.objective import LeapLoss, objective, terms
from leap.train.objective.leap_loss import layer_weights, ramp

LAYERS, ROWS, WIDTH, TEACHER_WIDTH = 4, 5, 6, 8
STORED = [1, 2, 3, 4]


def loss_settings(**changes: object) -> LossSettings:
    return LossSettings.model_validate(TINY["loss"] | {"layer_map": "uniform"} | changes)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_ramp_is_linear_between_its_ends() -> None:
    places = [0.0, 0.1, 0.35, 0.6, 1.0]
    expected = [0.0, 0.0, pytest.approx(0.5), 1.0, 1.0]
    assert [ramp(place, 0.1, 0.6) for place in places] == expected
    assert [float(ramp(torch.tensor(place), 0.1, 0.6)) for place in places] == expected
    assert [ramp(place, 0.5, 0.5) for place in (0.4, 0.5)] == [0.0, 1.0]
    assert float(ramp(torch.tensor(0.5), 0.5, 0.5)) == 1.0


def test_layer_weights_rise_at_their_own_layer() -> None:
    weights = LayerWeights(early=0.5, late=1.5, final=1.0, late_from=6)
    assert layer_weights(weights, 12).tolist() == [0.5] * 5 + [1.5] * 6 + [1.0]


def total(settings: LossSettings, progress: Tensor | float = 1.0) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
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
    assert value.item() == pytest.approx(sum(weights[name] * parts[name].item() for name in weights), rel=1e-5)


def test_uniform_layer_weights_give_the_plain_mean_whatever_their_size() -> None:
    small = total(loss_settings(layer_weights=LayerWeights(early=0.1, late=0.1, final=0.1, late_from=2)))[0]
    large = total(loss_settings(layer_weights=LayerWeights(early=3, late=3, final=3, late_from=3)))[0]
    assert small.item() == pytest.approx(large.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "weight"),
    [("inter", "alpha"), ("exit", "beta"), ("contrast", "delta"), ("late", "epsilon"), ("redund", "gamma")],
)
def test_one_term_alone_adds_its_weight_times_its_gradient(name: str, weight: str) -> None:
    """A term of weight zero leaves no trace, one of weight w exactly w times its own."""
    open_clip = {**OFF, "redundancy_clip": 3.0}
    without, plain, _ = total(loss_settings(**open_clip))
    value, gradient, parts = total(loss_settings(**{**open_clip, weight: 0.2}))
    doubled, twice, _ = total(loss_settings(**{**open_clip, weight: 0.4}))
    assert list(parts) == ["final", name]
    assert value.item() == pytest.approx(without.item() + 0.2 * parts[name].item(), rel=1e-5)
    assert doubled.item() == pytest.approx(without.item() + 0.4 * parts[name].item(), rel=1e-5)
    assert (gradient != plain).any()
    torch.testing.assert_close(twice - plain, 2 * (gradient - plain), rtol=1e-3, atol=1e-6)
    assert (gradient[0] == 0).all()  # no term of the paper reads the embedding layer


def test_the_students_half_of_the_exit_loss_does_not_move_the_final_layer() -> None:
    """Stop-gradient within the whole: the final layer's gradient is the same without that half."""
    both = {**OFF, "beta": 0.4}
    _, with_student, _ = total(loss_settings(**both))
    _, teacher_only, _ = total(loss_settings(**{**both, "beta_student": 0.0}))
    assert torch.equal(with_student[LAYERS], teacher_only[LAYERS])
    assert (with_student[1:LAYERS] != teacher_only[1:LAYERS]).any()


def test_the_exit_loss_is_its_two_halves_as_the_paper_weighs_them() -> None:
    settings = loss_settings(**{**OFF, "beta": 1.0})
    torch.manual_seed(0)
    loss = LeapLoss(settings, LAYERS, WIDTH, TEACHER_WIDTH)
    own = vectors(LAYERS + 1, ROWS, WIDTH)[1:]
    teacher = vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)
    weights = torch.tensor([0.5, 1.5, 1.5, 1.0])
    form = {"tau": 0.98, "kind": "sigmoid", "slope": 10.0}
    to_teacher = terms.exit_loss(loss.projection(own), teacher[-1], weights / weights.mean(), **form)  # type: ignore[arg-type]
    to_itself = terms.exit_loss(own[:-1], own[-1], weights[:-1] / weights[:-1].mean(), **form)  # type: ignore[arg-type]
    # Half way up the ramp of 0.1 to 0.6.
    assert total(settings, progress=0.35)[2]["exit"].item() == pytest.approx(
        (to_teacher + 0.5 * 0.7 * to_itself).item(), rel=1e-5
    )
    student_only = loss_settings(**{**OFF, "beta": 1.0, "beta_teacher": 0.0})
    assert total(student_only)[2]["exit"].item() == pytest.approx(0.7 * to_itself.item(), rel=1e-5)


def test_matryoshka_adds_the_loss_of_the_first_dimensions() -> None:
    """As sentence-transformers' MatryoshkaLoss: the loss on vectors cut to each width, summed."""
    plain = loss_settings(**{**OFF, "beta": 0.4, "delta": 0.3})
    torch.manual_seed(0)
    loss = LeapLoss(plain, LAYERS, WIDTH, TEACHER_WIDTH)
    half = LeapLoss(plain, LAYERS, WIDTH // 2, TEACHER_WIDTH)
    with torch.no_grad():
        half.projection.weight.copy_(loss.projection.weight[:, : WIDTH // 2])
    pooled = vectors(LAYERS + 1, ROWS, WIDTH)
    teacher = vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)
    expected = [
        f(cut, teacher, [1, 2, 3, 4], 1.0)[0].item()
        for f, cut in ((loss, pooled), (half, pooled[..., : WIDTH // 2]))
    ]
    value, _, parts = total(plain.model_copy(update={"matryoshka": (0.5,)}))
    assert parts["matryoshka"].item() == pytest.approx(expected[1], rel=1e-5)
    assert value.item() == pytest.approx(sum(expected), rel=1e-5)


def test_the_late_loss_and_the_exit_weights_have_their_own_first_layer() -> None:
    own = vectors(LAYERS + 1, ROWS, WIDTH)[1:]
    _, _, parts = total(loss_settings(late_from=3))
    assert parts["late"].item() == pytest.approx(terms.late_loss(own[2:3], own[-1]).item(), rel=1e-5)
    assert parts["exit"].item() == total(loss_settings())[2]["exit"].item()


def test_no_projection_where_widths_agree_and_one_for_all_layers_where_they_differ() -> None:
    same, wider = (objective(loss_settings(), LAYERS, WIDTH, width) for width in (WIDTH, TEACHER_WIDTH))
    assert [parameter.shape for parameter in same.parameters()] == []
    assert [parameter.shape for parameter in wider.parameters()] == [(TEACHER_WIDTH, WIDTH)]


def test_the_contrastive_term_compares_the_sentences_of_all_processes() -> None:
    only = loss_settings(**{**OFF, "delta": 0.3})
    pooled, teacher = vectors(LAYERS + 1, 6, WIDTH), vectors(LAYERS, 6, WIDTH, seed=1)
    joint = LeapLoss(only, LAYERS, WIDTH, WIDTH)(pooled, teacher, STORED, 1.0)[1]["contrast"]
    others = iter([pooled[-1, 3:], teacher[-1, 3:]])  # what the second process sends

    def gather(mine: Tensor) -> Tensor:
        return torch.cat([mine, next(others)])

    half = LeapLoss(only, LAYERS, WIDTH, WIDTH, gather)(pooled[:, :3], teacher[:, :3], STORED, 1.0)[1]
    assert half["contrast"].item() == pytest.approx(joint.item(), rel=1e-6)


def test_bfloat16_states_give_nearly_the_same_loss() -> None:
    torch.manual_seed(0)
    loss = LeapLoss(loss_settings(), LAYERS, WIDTH, TEACHER_WIDTH)
    pooled, teacher = vectors(LAYERS + 1, ROWS, WIDTH), vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)
    exact, _ = loss(pooled, teacher, STORED, 1.0)
    rounded, _ = loss(pooled.bfloat16(), teacher, STORED, 1.0)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=2e-2)


class Waits(TorchDispatchMode):
    """Refuses what would wait for a GPU: to read a value, count a mask, copy a Python number."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "lift_fresh", "equal")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func.overloadpacket.__name__ not in self.FORBIDDEN, func
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("layer_map", ["uniform", "interpolate"])
@pytest.mark.parametrize("kind", ["leap", "heads"])
def test_a_step_never_waits_for_the_device(kind: str, layer_map: str) -> None:
    ours = {"heads": True, "exit_contrast": 0.3, "exit_contrast_with": "final"} if kind == "heads" else {}
    loss = objective(loss_settings(layer_map=layer_map, **ours), LAYERS, WIDTH, TEACHER_WIDTH)
    assert loss.captures
    pooled = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_()
    teacher, stored, progress = vectors(3, ROWS, TEACHER_WIDTH, seed=1), [0, 1, 2], torch.tensor(0.3)
    with Waits():
        value, parts = loss(pooled, teacher, stored, progress)
        value.backward()
    again, same = loss(pooled, teacher, stored, 0.3)
    assert again.item() == pytest.approx(value.item(), rel=1e-6)
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(
        {name: part.item() for name, part in same.items()}, rel=1e-6
    )
    # On the device "meta" tensors have no values at all: a branch on one raises.
    unreal, _ = loss.to("meta")(
        pooled.detach().to("meta"), teacher.to("meta"), stored, torch.tensor(0.3, device="meta")
    )
    assert unreal.shape == ()


HEADS = {**OFF, "heads": True}


def headed(settings: LossSettings, deltas: Tensor | None = None) -> tuple[LeapLoss, Tensor, dict[str, Tensor]]:
    """The objective after a backward pass, the gradient of the pooled layers, and the terms."""
    torch.manual_seed(0)
    loss = LeapLoss(settings, LAYERS, WIDTH, TEACHER_WIDTH)
    if deltas is not None and loss.heads is not None:
        with torch.no_grad():
            loss.heads.deltas.copy_(deltas)
    pooled = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_()
    value, parts = loss(pooled, vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1), STORED, 1.0)
    value.backward()
    assert pooled.grad is not None
    return loss, pooled.grad, parts


SOME_DELTAS = vectors(LAYERS - 1, WIDTH, WIDTH, seed=3) * 0.3


def test_heads_that_are_zero_change_no_term() -> None:
    _, plain, parts = headed(loss_settings(exit_contrast=0.5))
    loss, gradient, same = headed(loss_settings(heads=True, exit_contrast=0.5))
    assert {name: part.item() for name, part in same.items()} == pytest.approx(
        {name: part.item() for name, part in parts.items()}
    )
    torch.testing.assert_close(gradient, plain)
    maps = loss.maps()
    assert maps is not None
    assert torch.equal(maps, torch.eye(WIDTH).expand(LAYERS - 1, -1, -1))


@pytest.mark.parametrize(
    ("weight", "moves"),
    [
        ("alpha", [False] * 3),
        ("gamma", [False] * 3),
        ("delta", [False] * 3),
        ("beta", [True] * 3),
        ("exit_contrast", [True] * 3),
        ("epsilon", [False, True, True]),  # late from layer 2
    ],
)
def test_which_terms_see_a_layer_through_its_head(weight: str, moves: list[bool]) -> None:
    """By gradient, one term at a time: exit terms train the heads, the others see the layers as they are."""
    loss, gradient, _ = headed(loss_settings(**{**HEADS, weight: 0.4}), SOME_DELTAS)
    _, bare, _ = headed(loss_settings(**{**OFF, weight: 0.4}))
    assert loss.heads is not None
    grads = loss.heads.deltas.grad
    seen = [False] * 3 if grads is None else [bool((layer != 0).any()) for layer in grads]
    assert seen == moves
    assert torch.equal(gradient, bare) == (not any(moves))


def weighted(values: Sequence[Tensor | float]) -> float:
    """The mean over layers 1 to 3 by the tiny settings' weights .5, 1.5 and 1.5, scaled to mean 1."""
    return float(0.5 * values[0] + 1.5 * values[1] + 1.5 * values[2]) / 3.5


def test_the_exit_terms_are_those_of_the_mapped_layers() -> None:
    settings = loss_settings(**{**HEADS, "beta": 0.4, "epsilon": 0.2, "exit_contrast": 0.3})
    loss, _, parts = headed(settings, SOME_DELTAS)
    own = vectors(LAYERS + 1, ROWS, WIDTH)[1:]
    mapped = torch.stack([*(own[layer] + own[layer] @ SOME_DELTAS[layer] for layer in range(3)), own[3]])
    teacher = vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)[-1]
    kls = [terms.contrastive_loss(mapped[layer], teacher, 0.1) for layer in range(3)]
    assert parts["exit_contrast"].item() == pytest.approx(weighted(kls), rel=1e-5)
    assert parts["late"].item() == pytest.approx(terms.late_loss(mapped[1:-1], own[-1]).item(), rel=1e-5)
    weights = torch.tensor([0.5, 1.5, 1.5, 1.0])
    form = {"tau": 0.98, "kind": "sigmoid", "slope": 10.0}
    to_teacher = terms.exit_loss(loss.projection(mapped), teacher, weights / weights.mean(), **form)  # type: ignore[arg-type]
    to_itself = terms.exit_loss(mapped[:-1], own[-1], weights[:-1] / weights[:-1].mean(), **form)  # type: ignore[arg-type]
    assert parts["exit"].item() == pytest.approx((to_teacher + 0.7 * to_itself).item(), rel=1e-5)


def test_exits_follow_the_index_and_the_index_does_not_follow_them() -> None:
    settings = {**HEADS, "exit_contrast": 0.3, "exit_contrast_with": "final"}
    _, gradient, parts = headed(loss_settings(**settings), SOME_DELTAS)
    _, without, _ = headed(loss_settings(**HEADS))
    assert torch.equal(gradient[LAYERS], without[LAYERS])
    assert all((gradient[layer] != 0).any() for layer in range(1, LAYERS))
    own = vectors(LAYERS + 1, ROWS, WIDTH)[1:]
    teacher = vectors(LAYERS, ROWS, TEACHER_WIDTH, seed=1)[-1]
    mapped = own[:-1] + own[:-1] @ SOME_DELTAS
    alone = [terms.contrastive_loss(layer, teacher, 0.1, own[-1]).item() for layer in mapped]
    assert parts["exit_contrast"].item() == pytest.approx(weighted(alone), rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_exits_gradient_passes_into_the_layers(share: float) -> None:
    settings = {**HEADS, "beta": 0.4, "exit_contrast": 0.3, "exit_contrast_with": "final"}
    loss, gradient, _ = headed(loss_settings(**settings, exit_gradient=share), SOME_DELTAS)
    full, whole, _ = headed(loss_settings(**settings), SOME_DELTAS)
    assert loss.heads is not None
    assert full.heads is not None
    torch.testing.assert_close(gradient[1:LAYERS], share * whole[1:LAYERS])
    torch.testing.assert_close(loss.heads.deltas.grad, full.heads.deltas.grad)


def test_the_anchor_is_one_more_pull_to_full_depth_at_the_start() -> None:
    torch.manual_seed(0)
    loss = LeapLoss(loss_settings(**OFF, anchor=2.0), LAYERS, WIDTH, WIDTH)
    pooled, teacher = vectors(LAYERS + 1, ROWS, WIDTH).requires_grad_(), vectors(LAYERS, ROWS, WIDTH, seed=1)
    value, parts = loss(pooled, teacher, STORED, 1.0)
    expected = terms.final_loss(pooled[-1], teacher[-1]).item()
    assert parts["anchor"].item() == pytest.approx(expected)
    assert value.item() == pytest.approx(3 * expected)
    value.backward()
    assert pooled.grad is not None
    assert (pooled.grad[:-1] == 0).all()


def test_the_contrastive_term_at_every_exit_compares_the_sentences_of_all_processes() -> None:
    only = loss_settings(**{**HEADS, "exit_contrast": 0.3, "exit_contrast_with": "final"})
    pooled, teacher = vectors(LAYERS + 1, 6, WIDTH), vectors(LAYERS, 6, WIDTH, seed=1)
    joint = LeapLoss(only, LAYERS, WIDTH, WIDTH)(pooled, teacher, STORED, 1.0)[1]["exit_contrast"]
    others = iter([pooled[1:, 3:].transpose(0, 1), teacher[-1, 3:]])

    def gather(mine: Tensor) -> Tensor:
        return torch.cat([mine, next(others)])

    half = LeapLoss(only, LAYERS, WIDTH, WIDTH, gather)(pooled[:, :3], teacher[:, :3], STORED, 1.0)[1]
    assert half["exit_contrast"].item() == pytest.approx(joint.item(), rel=1e-6)

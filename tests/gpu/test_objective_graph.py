"""An objective inside one CUDA graph: the same numbers as outside, also as `progress` moves on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from leap.core.settings.training import LossSettings
from leap.train.objective import objective

LAYERS, ROWS, WIDTH, TEACHER_WIDTH, STORED = 12, 64, 32, 48, list(range(7))
LEAP: dict[str, Any] = {
    "kind": "leap",
    "alpha": 0.3,
    "beta": 0.4,
    "beta_student": 0.7,
    "gamma": 0.05,
    "delta": 0.3,
    "epsilon": 0.2,
    "tau": 0.98,
    "tau_c": 0.15,
    "margin": "softplus",
    "slope": 10.0,
    "layer_weights": {"early": 0.5, "late": 1.5, "final": 1.0, "late_from": 6},
    "late_from": 6,
    "redundancy_clip": 0.3,
    "ramp": [0.1, 0.6],
    "layer_map": "interpolate",
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_objective_gives_the_numbers_of_an_eager_one() -> None:
    torch.manual_seed(0)
    loss = objective(LossSettings(**LEAP), LAYERS, WIDTH, TEACHER_WIDTH).cuda()
    pooled = torch.randn(LAYERS + 1, ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    teacher = torch.randn(len(STORED), ROWS, TEACHER_WIDTH, device="cuda")
    progress = torch.zeros((), device="cuda")

    def step() -> tuple[Tensor, dict[str, Tensor]]:
        pooled.grad = None
        loss.zero_grad()
        total, parts = loss(pooled, teacher, STORED, progress)
        total.backward()
        return total.detach(), parts

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, captured_parts = step()
    captured_gradient = pooled.grad
    for place in (0.0, 0.2, 0.35, 0.7):
        progress.fill_(place)
        graph.replay()
        got = captured.clone(), {name: part.clone() for name, part in captured_parts.items()}
        assert captured_gradient is not None
        gradient = captured_gradient.clone()
        total, parts = step()
        torch.testing.assert_close(got[0], total, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got[1], parts, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, pooled.grad, rtol=1e-2, atol=1e-6)

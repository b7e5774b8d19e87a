"""The benchmark's part for CUDA cards, with the graphed path's plain calls and a made clock."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.paths import GraphPath
from leap.exits.plan import Plan
from leap.latency import timing as latency
from leap.latency import timing_cuda as latency_cuda
from leap.latency.timing_cuda import SETTLING, Forward, burst_timer, fast_path, own_plans, placed_call
from leap.models.batches import Batch, pack

RULE = ExitRule(0.9, 2)
LENGTHS = [[3, 3, 9], [4, 5, 6]]


@pytest.fixture
def batches() -> list[Batch]:
    return [pack([list(range(2, 2 + n)) for n in lengths]) for lengths in LENGTHS]


@pytest.fixture
def on_card(tiny_model: LeapEncoder, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tiny model as if it were on a card, where its layers run as graphs."""
    path = GraphPath(tiny_model.encoder)
    path._trusted = True
    monkeypatch.setattr(latency_cuda, "capture", lambda forward, batches: forward)
    return SimpleNamespace(
        encoder=tiny_model.encoder,
        depth=tiny_model.depth,
        device=torch.device("cuda"),
        heads=None,
        paths=SimpleNamespace(fast=(path,)),
    )


def exits_of(model: Any, batches: list[Batch]) -> torch.Tensor:
    return torch.stack([exit_forward(model.encoder, batch, RULE)[1] for batch in batches])


@torch.inference_mode()
def test_every_path_computes_what_its_row_says(on_card: Any, batches: list[Batch]) -> None:
    exits = exits_of(on_card, batches)
    paths, engine = latency.own_paths(on_card, RULE, batches, exits)
    assert engine == "graphs"
    mean = exits.double().mean().item()
    assert {name: path.layers for name, path in paths.items()} == {
        "full": 5, "exit": mean, "monitored": 5, "truncated": round(mean), "graph": 5,
        "graph_truncated": round(mean), "eager": 5, "eager_exit": mean,
    }  # fmt: skip
    for batch in batches:
        full = layer_forward(on_card.encoder, batch, 5)
        cut = layer_forward(on_card.encoder, batch, round(mean))
        expected, layers = exit_forward(on_card.encoder, batch, RULE)
        results = {name: path.forward(batch) for name, path in paths.items()}
        for name in ("full", "monitored"):
            torch.testing.assert_close(results[name][0], full)
            assert results[name][1].tolist() == [5, 5, 5]
        torch.testing.assert_close(results["truncated"][0], cut)
        torch.testing.assert_close(results["exit"][0], expected)
        assert results["exit"][1].tolist() == layers.tolist()
        torch.testing.assert_close(results["graph"], full)
        torch.testing.assert_close(results["graph_truncated"], cut)
        torch.testing.assert_close(results["eager"], full)
        torch.testing.assert_close(results["eager_exit"][0], expected)


@torch.inference_mode()
def test_every_layer_by_the_fast_path(on_card: Any, batches: list[Batch]) -> None:
    paths = latency.frontier_paths(on_card, batches, RULE, [0.9], on_card)
    assert [(name, path.layers) for name, path in paths.items()] == [
        ("layer_1", 1), ("layer_2", 2), ("layer_3", 3), ("layer_4", 4), ("layer_5", 5),
        ("theta_0.9", exits_of(on_card, batches).double().mean().item()), ("teacher", 5),
    ]  # fmt: skip
    for batch in batches:
        for name, path in paths.items():
            vectors, layers = path.forward(batch)
            if name == "theta_0.9":
                expected, result = exit_forward(on_card.encoder, batch, RULE)
                torch.testing.assert_close(vectors, expected)
                assert layers.tolist() == result.tolist()
            else:
                torch.testing.assert_close(vectors, layer_forward(on_card.encoder, batch, int(path.layers)))
                assert layers.tolist() == [path.layers] * 3


def test_a_fast_path_must_take_every_batch(on_card: Any, batches: list[Batch]) -> None:
    assert fast_path(on_card, batches) is on_card.paths.fast[0]
    assert fast_path(on_card, [*batches, pack([[1] * 300])]) is None


@torch.inference_mode()
def test_rows_of_a_card(on_card: Any, batches: list[Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    def between(path: Forward, batch: Batch, calls: int) -> float:
        return 1.0 if calls > 1 else 3.0

    monkeypatch.setattr(latency_cuda, "between_events", between)
    rows = latency._rows_of(on_card, batches, "sentences", RULE, {}, 2, 1)
    by_path = {row["path"]: row for row in rows}
    assert set(by_path) == {
        "full", "exit", "monitored", "truncated", "graph", "graph_truncated", "eager", "eager_exit",
    }  # fmt: skip
    assert {row["device"] for row in rows} == {"cuda"}
    assert {row["engine"] for row in rows} == {"graphs"}
    assert {row["ms_event_p50"] for row in rows} == {3.0}
    exits = exits_of(on_card, batches)
    deepest = pytest.approx(sum(max(rows) for rows in exits.tolist()) / len(exits))
    assert by_path["exit"]["deepest_layers"] == by_path["eager_exit"]["deepest_layers"] == deepest
    assert by_path["full"]["deepest_layers"] == on_card.depth
    assert by_path["monitored"]["monitoring_overhead"] is not None


@torch.inference_mode()
def test_exits_are_compared_with_the_best_full_depth(
    on_card: Any, batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused path of full depth takes 8 ms, a graph of the same layers 5 ms, an exit 4 ms."""
    monkeypatch.setattr(latency_cuda, "burst_timer", lambda: None)

    def timed(paths: dict[str, Forward], *_: Any) -> dict[str, Any]:
        taken = {"full": 8.0, "graph": 5.0, "eager": 20.0, "exit": 4.0, "monitored": 10.0}
        return {name: np.full((5, len(batches)), taken.get(name, 3.0)) for name in paths}

    monkeypatch.setattr(latency, "time_paths", timed)
    rows = latency._rows_of(on_card, batches, "sentences", RULE, {}, 0, 1)
    by_path = {row["path"]: row for row in rows}
    assert {row["over"] for row in rows} == {"graph"}
    assert by_path["exit"]["speed_up"] == 1.25
    assert by_path["exit"]["speed_up_ci95"] == [1.25, 1.25]
    assert by_path["full"]["speed_up"] == 0.625
    # Checks are what they add to the same path.
    assert by_path["monitored"]["monitoring_overhead"] == 0.25


def test_a_burst_takes_two_milliseconds_or_twenty_calls(
    batches: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def between(path: Forward, batch: Batch, number: int) -> float:
        calls.append(number)
        return float(path(batch))

    monkeypatch.setattr(latency_cuda, "between_events", between)
    timer = burst_timer()
    paths: list[Forward] = [lambda _, ms=ms: ms for ms in (0.05, 0.3, 5.0)]  # type: ignore[misc]
    for path in paths:
        timer(path, batches[0])
        timer(path, batches[1])
    assert calls == [1, 20, 20, 1, 7, 7, 1, 1, 1]

    milliseconds = iter([50.0])  # a first call that captures
    timer(lambda _: next(milliseconds, 0.05), batches[0])
    assert calls[-2:] == [1, 20]


def test_a_path_is_warm_before_it_is_timed(batches: list[Batch]) -> None:
    ran: list[Any] = []
    path: Any = SimpleNamespace(
        learn=lambda plan, exits: None,
        place=lambda batch, plan: id(batch),
        run=lambda placed, *_: ran.append(placed),
    )
    call = placed_call(path, batches, Plan((torch.inf,) * 4, 1, 4), torch.ones(len(batches), 2), None)
    assert ran == [id(batch) for batch in batches] * SETTLING
    call(batches[0])
    assert ran[-1] == id(batches[0])


def test_plans_of_the_paths() -> None:
    inf = torch.inf
    assert own_plans(4, ExitRule(0.5, 2), ExitRule(2.0, 2), 3) == {
        "full": Plan((inf,) * 4, 1, 4),
        "exit": Plan((inf, 0.5, 0.5, inf), 1, 4),
        "monitored": Plan((inf, 2.0, 2.0, inf), 1, 4),
        "truncated": Plan((inf,) * 4, 1, 3),
    }

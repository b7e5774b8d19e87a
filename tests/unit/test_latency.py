import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import MakeFolder
from zoo import write_model

from leap.core.errors import UserError
from leap.core.settings.evaluation import LatencySettings
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward
from leap.exits.rules import at_layers
from leap.latency import timing as latency
from leap.latency.bandwidth import floor
from leap.latency.timing import (
    PASSES,
    joined_rows,
    latency_figures,
    random_batches,
    speed_up,
    spread,
    time_paths,
)
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads

MIXED = ExitRule(0.885, 2, 2)


def settings(**changes: object) -> LatencySettings:
    values = {"batch_sizes": [1, 8], "warmup": 1, "iterations": 10, "device": "cpu", "precision": "fp32"}
    values |= {"lengths": ["sentences"]}
    return LatencySettings.model_validate(values | changes)


@pytest.fixture
def layer_clock(tiny_model: LeapEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts the rows of every layer that is computed: one millisecond each."""

    def milliseconds(path: latency.Forward, batch: Batch) -> float:
        computed: list[int] = []

        def count_rows(module: torch.nn.Module, inputs: tuple[torch.Tensor, Batch], _: torch.Tensor) -> None:
            if type(module) is type(tiny_model.encoder.layers[0]):
                computed.append(inputs[1].rows)

        hook = torch.nn.modules.module.register_module_forward_hook(count_rows)
        path(batch)
        hook.remove()
        return float(sum(computed))

    monkeypatch.setattr(latency, "cpu_timer", milliseconds)


@pytest.mark.usefixtures("layer_clock")
def test_every_path_computes_what_its_row_says(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    figures = latency_figures(tiny_model, sentences, MIXED, settings(iterations=50), seed=1)
    rows = {(row["path"], row["batch"]): row for row in figures["rows"]}
    assert set(rows) == {(path, size) for path in ("full", "exit", "monitored", "truncated") for size in (1, 8)}
    for (path, size), row in rows.items():
        assert row["device"] == "cpu"
        assert row["ms_mean"] == pytest.approx(size * row["expected_layers"])
        assert row["over"] == "full"
        assert row["speed_up"] == rows["full", size]["ms_p50"] / row["ms_p50"]
        assert row["speed_up_ci95"][0] <= row["speed_up"] <= row["speed_up_ci95"][1]
        if path in ("full", "monitored"):
            assert row["expected_layers"] == 5
    assert rows["full", 8]["monitoring_overhead"] is None
    assert rows["monitored", 8]["monitoring_overhead"] == pytest.approx(0.0)
    assert 2 < rows["exit", 8]["expected_layers"] < 5
    assert rows["truncated", 8]["expected_layers"] == round(rows["exit", 8]["expected_layers"])
    assert rows["exit", 8]["deepest_layers"] > rows["exit", 8]["expected_layers"]
    assert rows["exit", 1]["deepest_layers"] == rows["exit", 1]["expected_layers"]
    assert figures["speed_up"] == rows["exit", 1]["speed_up"]
    assert figures["speed_up_ci95"] == rows["exit", 1]["speed_up_ci95"]
    assert figures["protocol"]["speed_up_over"] == "full"
    json.dumps(figures, allow_nan=False)


def test_a_real_clock(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    figures = latency_figures(tiny_model, sentences, MIXED, settings(precision="fp16"), seed=1)
    for row in figures["rows"]:
        assert 0 < row["ms_p50"] <= row["ms_p95"] <= row["ms_p99"] < 1000
    protocol = figures["protocol"]
    assert (protocol["iterations"], protocol["batches"], protocol["warmup"]) == (10, 2, 1)
    assert protocol["paths"] == "cpu eager"
    assert protocol["threads"] == torch.get_num_threads()
    # Half precision is for CUDA; the row says what was measured, and the model stays as it was.
    assert protocol["precision"] == "fp32"
    assert tiny_model.encoder.words.weight.dtype == torch.float32


def test_a_path_that_does_not_work_here_is_not_timed(tiny_folder: Path, sentences: list[str]) -> None:
    model = LeapEncoder(tiny_folder, "cpu", path="fused")
    with pytest.raises(UserError, match='path="fused" does not work here'):
        latency_figures(model, sentences, MIXED, settings(), seed=1)


def test_speed_up_is_of_the_smallest_batch(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    figures = latency_figures(tiny_model, sentences, MIXED, settings(batch_sizes=[8, 4]), seed=1)
    assert figures["protocol"]["speed_up_at_batch"] == 4
    exits = next(row for row in figures["rows"] if (row["path"], row["batch"]) == ("exit", 4))
    assert figures["speed_up"] == exits["speed_up"]


def test_random_batches_are_seeded_real_sentences() -> None:
    rows = [[number] * (number % 5 + 1) for number in range(30)]
    batches = random_batches(rows, 8, 3, seed=1)
    assert [batch.rows for batch in batches] == [8, 8, 8]
    for batch in batches:
        assert len(batch.ids.unique()) == 8
    assert batches[0].ids.equal(random_batches(rows, 8, 3, seed=1)[0].ids)
    assert not batches[0].ids.equal(batches[1].ids)
    assert not batches[0].ids.equal(random_batches(rows, 8, 3, seed=2)[0].ids)
    assert random_batches(rows[:3], 8, 1, seed=1)[0].rows == 8


def test_paths_take_turns_batch_by_batch() -> None:
    batches = [pack([[1]]), pack([[2]])]
    calls: list[tuple[str, int]] = []
    clock = count(1)

    def timer(path: latency.Forward, batch: Batch) -> float:
        path(batch)
        return float(next(clock))

    def path(name: str) -> latency.Forward:
        return lambda batch: calls.append((name, int(batch.ids[0])))

    times = time_paths({"a": path("a"), "b": path("b")}, batches, 3, timer)
    assert len(calls) == 2 * 3 + 2 * 2 * PASSES
    measured = calls[6:]
    for turn in range(0, len(measured), 2):
        (one, batch), (other, same) = measured[turn : turn + 2]
        assert {one, other} == {"a", "b"}
        assert batch == same == turn // 2 % 2 + 1
    # Both paths go first equally often.
    assert [name for name, _ in measured[::2]].count("a") == PASSES
    assert times["a"].shape == (PASSES, 2)
    assert sorted([*times["a"].ravel(), *times["b"].ravel()]) == list(range(1, 1 + 4 * PASSES))


def test_a_speed_up_is_the_ratio_of_the_medians_that_the_table_shows() -> None:
    slow = np.tile([[10.0, 30.0, 40.0]], (PASSES, 1))
    slow[2, 0] = 1000.0
    fast = np.tile([[5.0, 10.0, 20.0]], (PASSES, 1))
    gain, (low, high) = speed_up(slow, fast, seed=1)
    assert gain == spread(slow)["ms_p50"] / spread(fast)["ms_p50"] == 3.0
    # One round in which another program ran moves the mean to 93 ms and the ratio not at all.
    assert low <= 3.0 <= high


def test_what_hits_a_round_hits_both_sides() -> None:
    machine = np.random.default_rng(3).uniform(1, 20, size=(PASSES, 40))
    gain, (low, high) = speed_up(2 * machine, machine, seed=1)
    assert gain == low == high == pytest.approx(2.0)


@pytest.fixture
def noisy_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine: two milliseconds a call, each call off by up to a half, and slower and slower."""
    noise = np.random.default_rng(5)
    calls = count()
    monkeypatch.setattr(
        latency, "cpu_timer", lambda *_: float(2 * noise.uniform(0.5, 1.5) * (1 + 0.002 * next(calls)))
    )


@pytest.mark.usefixtures("layer_clock")
def test_every_layer_and_the_teacher_are_timed_for_the_frontier(
    tiny_model: LeapEncoder, make_folder: MakeFolder, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = settings(batch_sizes=[4, 1], lengths=["sentences", 16])
    teacher = LeapEncoder(make_folder(layers=3, width=24), "cpu")
    figures = latency_figures(
        tiny_model, sentences, MIXED, shown, seed=1, teacher=teacher, thresholds=[0.5, 0.885, 1.0]
    )
    assert [row["threshold"] for row in figures["by_threshold"]] == [0.5, 0.885, 1.0]
    depths = [row["expected_layers"] for row in figures["by_threshold"]]
    assert depths == sorted(depths)
    # l_min 2 and k 2: the first test comes at layer 3, the last layer has none.
    assert (depths[0], depths[-1]) == (3.0, 5.0)
    assert figures["by_threshold"][0]["ms_p50"] == 3.0
    assert [row["layer"] for row in figures["by_layer"]] == [1, 2, 3, 4, 5]
    for row in figures["by_layer"]:
        assert (row["batch"], row["length"]) == (1, "sentences")
        assert row["ms_p50"] == row["layer"]
        assert row["speed_up"] == 5 / row["layer"]
    assert (figures["teacher"]["layer"], figures["teacher"]["batch"]) == (3, 1)
    assert figures["teacher"]["ms_p50"] == 3.0
    # Where the teacher makes other tokens of the same sentences, its batches would be others.
    monkeypatch.setattr(teacher, "tokenizer", lambda texts: [[2, 3] for _ in texts])
    figures = latency_figures(tiny_model, sentences, MIXED, shown, seed=1, teacher=teacher)
    assert figures["teacher"] is None


@pytest.mark.usefixtures("noisy_clock")
def test_a_model_of_fixed_depth_is_as_fast_either_way(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    # l_min is the last layer: there is no check, and both sides compute the same.
    rule = ExitRule(0.95, tiny_model.depth, 1)
    figures = latency_figures(tiny_model, sentences, rule, settings(batch_sizes=[1], iterations=400), seed=1)
    low, high = figures["speed_up_ci95"]
    assert low < 1.0 < high
    assert high - low < 0.3
    (exits,) = (row for row in figures["rows"] if row["path"] == "exit")
    assert exits["expected_layers"] == tiny_model.depth
    assert figures["speed_up"] == pytest.approx(1.0, abs=0.15)


def test_spread_by_hand() -> None:
    result = spread(np.arange(1.0, 102.0).reshape(1, 101))
    assert result["ms_p50"] == 51.0
    assert result["ms_p95"] == 96.0
    assert result["ms_p99"] == 100.0
    assert result["ms_std"] == pytest.approx(np.std(np.arange(101), ddof=1))


def test_joined_rows_are_whole_sentences_in_another_order() -> None:
    rows = [[2, *range(start, start + 5), 3] for start in range(10, 60, 5)]
    joined = joined_rows(rows, 12, seed=1)
    assert len(joined) == 5
    assert all((len(row), row[0], row[-1]) == (12, 2, 3) for row in joined)
    inner = [token for row in joined for token in row[1:-1]]
    assert sorted(inner) == list(range(10, 60))
    assert inner != sorted(inner)
    assert all(inner[place] % 5 == place % 5 for place in range(50))
    assert len(joined_rows(rows[:1], 30, seed=1)[0]) == 30


def test_lengths_are_measured_one_after_the_other(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    figures = latency_figures(
        tiny_model, sentences, MIXED, settings(batch_sizes=[2], lengths=["sentences", 16, 500]), seed=1
    )
    results = {row["length"]: row["tokens"] for row in figures["rows"]}
    # The tiny model has 32 positions.
    assert (results[16], results[500]) == (16, 32)
    first = next(row for row in figures["rows"] if row["path"] == "exit")
    assert first["length"] == "sentences"
    assert figures["speed_up"] == first["speed_up"]


def test_floor_counts_every_weight_once(tiny_model: LeapEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leap.latency.bandwidth.measure_bandwidth", lambda _: 1e9)
    result = floor(tiny_model.encoder, torch.device("cpu"))
    # A layer of width 16 and 32 inner columns: 4 * 16 * 16 + 2 * 16 * 32 weights, 9 * 16 + 32 + 16 others.
    layer = 4 * 16 * 16 + 2 * 16 * 32 + 4 * 16 + 32 + 16 + 4 * 16
    # The norm of the embeddings is read whole, their tables are not.
    assert result["weight_bytes"] == 4 * (5 * layer + 2 * 16)
    assert result["ms"] == pytest.approx(result["weight_bytes"] / 1e6)


@torch.inference_mode()
def test_exits_are_timed_through_the_heads(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    ExitHeads(torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(0))).save(folder)
    model = LeapEncoder(folder, "cpu")
    batch = pack([[2, 9, 8, 3], [2, 7, 6, 5, 3]])
    exits = exit_forward(model.encoder, batch, MIXED)[1]
    paths, _ = latency.own_paths(model, MIXED, [batch], exits[None])
    paths |= latency.frontier_paths(model, [batch], MIXED, [0.885], None)
    pooled = model.returned(model.encoder(batch))
    for name, layer in (("layer_1", 1), ("layer_3", 3), ("layer_5", 5)):
        torch.testing.assert_close(paths[name].forward(batch)[0], pooled[layer])
    for name in ("exit", "theta_0.885"):
        torch.testing.assert_close(paths[name].forward(batch)[0], at_layers(pooled, exits))


def test_any_architecture_is_timed(tmp_path: Path, sentences: list[str]) -> None:
    model = LeapEncoder(write_model(tmp_path / "electra", "electra"), "cpu")
    figures = latency_figures(model, sentences, ExitRule(0.5, 2), settings(batch_sizes=[2], warmup=0), seed=1)
    assert [row["layer"] for row in figures["by_layer"]] == [1, 2, 3, 4]
    assert figures["floor"]["weight_bytes"] > 0

import numpy as np
import pytest

from leap.evaluation.latency_cuda import rows_of, timed


def measured(*milliseconds: float) -> dict[str, np.ndarray]:
    return {"burst": np.array([milliseconds] * 5), "single": np.array([milliseconds] * 5) * 2}


def test_rows_compare_with_the_full_path() -> None:
    times = {
        "full": measured(1.0, 3.0),
        "exit": measured(0.5, 1.5),
        "monitored": measured(1.1, 3.1),
        "graph": measured(4.0, 4.0),
    }
    rows = {row["path"]: row for row in rows_of(times, 12, {"exit": 6.0}, {"batch": 8}, mixed=True)}
    assert rows["exit"]["speed_up"] == pytest.approx(2.0)
    assert rows["exit"]["layer_reduction_realised"] == pytest.approx(1.0)
    assert rows["monitored"]["monitoring_overhead"] == pytest.approx(0.05)
    assert rows["graph"]["speed_up"] == pytest.approx(0.5)
    assert rows["graph"]["expected_layers"] == 12
    assert rows["full"]["ms_event_p50"] == pytest.approx(4.0)
    assert [rows[path]["mixed"] for path in ("full", "exit")] == [False, True]
    assert rows["exit"]["batch"] == 8


def test_every_path_gets_every_batch_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leap.evaluation.latency_cuda.burst", lambda call: call())
    monkeypatch.setattr("leap.evaluation.latency_cuda.single", lambda call: call())
    calls: list[str] = []

    def call(name: str, number: int) -> float:
        calls.append(f"{name}{number}")
        return number

    paths = {
        name: [lambda name=name, number=number: call(name, number) for number in range(2)] for name in "ab"
    }
    times = timed(paths, batches=2, warmup=0, iterations=1)
    assert times["a"]["burst"].tolist() == [[0.0, 1.0]] * 5
    assert {name: calls.count(name) for name in set(calls)} == {"a0": 10, "a1": 10, "b0": 10, "b1": 10}
    # Neither path always goes first.
    assert calls[0] != calls[4]

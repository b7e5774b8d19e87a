from typing import Any

import pytest

from leap.core.errors import UserError
from leap.latency.cost import Spending, amortisation, lines


def row(path: str, batch: int, ms: float, **other: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"expected_layers": 12, "speed_up": 1.0, "over": "full", "length": "sentences"}
    shown["monitoring_overhead"] = None
    return {"path": path, "batch": batch, "ms_p50": ms, **shown, **other}


LATENCY = {
    "rows": [
        row("full", 1, 8.0),
        row("exit", 1, 5.0, expected_layers=6.0, speed_up=1.6),
        row("monitored", 1, 9.6, monitoring_overhead=0.2),
        row("full", 1, 40.0, length=128),
        row("exit", 1, 30.0, length=128),
        row("full", 32, 64.0),
        row("exit", 32, 70.0, speed_up=0.9),
    ],
    "protocol": {"speed_up_at_length": "sentences"},
}


def test_the_estimate_by_hand() -> None:
    # 4.5 million texts of 8 ms are 10 hours, of 5 ms 6.25 hours.
    result = amortisation(LATENCY, 1, Spending(4_500_000, training_hours=56.0))
    assert (result["ms_full"], result["ms_exit"]) == (8.0, 5.0)
    assert (result["hours_full"], result["hours_exit"]) == (10.0, 6.25)
    assert result["hours_saved_a_week"] == result["saved_a_week"] == 26.25
    assert result["days_to_pay_back"] == pytest.approx(56 / 3.75)
    assert result["texts_to_pay_back"] == 67_200_000
    # Checks of 20 %: 12 layers without cost as much as 10 with them (the paper: "recovered below 10").
    assert result["pays_below_layer"] == pytest.approx(10.0)


def test_the_times_are_those_that_were_measured() -> None:
    """An exit of 5 ms costs 5 ms, whatever the speed-up says; full depth is its fastest way."""
    exited = row("exit", 1, 5.0, over="graph", speed_up=1.2)
    rows = [row("full", 1, 8.0), row("graph", 1, 6.0), exited]
    result = amortisation({**LATENCY, "rows": rows}, 1, Spending(1_000, 1.0))
    assert (result["ms_full"], result["ms_exit"]) == (6.0, 5.0)


def test_prices() -> None:
    result = amortisation(LATENCY, 1, Spending(4_500_000, 56.0, training_price=3.0, serving_price=0.5))
    assert result["training_cost"] == 168.0
    assert result["saved_a_week"] == pytest.approx(26.25 / 2)
    assert result["days_to_pay_back"] == pytest.approx(168 / 1.875)


def test_a_batch_is_shared_by_its_texts_and_a_slow_exit_never_pays() -> None:
    spending = Spending(1_000_000, 1.0)
    result = amortisation(LATENCY, 32, spending)
    assert result["ms_full"] == 2.0
    assert result["days_to_pay_back"] is None
    assert result["texts_to_pay_back"] is None
    assert result["pays_below_layer"] is None
    assert "never paid back" in "\n".join(lines(result, spending, 32, "a machine"))


def test_the_words_name_the_figures() -> None:
    spending = Spending(4_500_000, 56.0)
    text = "\n".join(lines(amortisation(LATENCY, 1, spending), spending, 1, "a machine"))
    for part in ("1.60x", "6.0 of 12 layers", "26.25 hours saved a week", "14.9 days", "67,200,000 texts"):
        assert part in text


def test_a_batch_that_was_not_measured() -> None:
    with pytest.raises(UserError, match="at batch 8: it has batches 1, 32"):
        amortisation(LATENCY, 8, Spending(1, 1.0))

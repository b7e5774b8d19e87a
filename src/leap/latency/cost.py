"""`leap cost`: what early exit saves, when its training is paid back (paper, Adoption Checklist, 2).

From latency measured on this machine, the volume that is served, and what the training cost.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import read_json

DAYS_A_WEEK = 7
MS_AN_HOUR = 3_600_000


@dataclass(frozen=True)
class Spending:
    """Volume and prices, in addition to the latency.

    daily: texts embedded a day.
    training_hours: machine hours of the one training.
    training_price, serving_price: of an hour of the machine that trains, and of the one that serves; 1 and 1
        compares hours.
    """

    daily: int
    training_hours: float
    training_price: float = 1.0
    serving_price: float = 1.0


def run_cost(
    latency: Path, daily: int, batch: int, training_hours: float | None, prices: tuple[float, float], as_json: bool
) -> str:
    """Read latency.json, and training.json next to it where the hours are not given, and return the estimate.

    `prices` are of an hour of the training machine and of the serving one.

    Raises:
        UserError: a file is missing, or has no such batch size.
    """
    measured = read_json(latency, "dvc repro")
    if training_hours is None:
        training_hours = read_json(latency.parent / "training" / "training.json", "dvc repro")["seconds"] / 3600
    spending = Spending(daily, training_hours, *prices)
    cost = amortisation(measured, batch, spending)
    if as_json:
        return json.dumps(cost, indent=2, allow_nan=False)
    where = measured["environment"]
    machine = f"{where.get('card') or where['cpu']} ({where['cores']} cores)"
    return "\n".join(lines(cost, spending, batch, machine))


def amortisation(latency: dict[str, Any], batch: int, spending: Spending) -> dict[str, Any]:
    """Estimate what early exit saves for texts in batches of `batch`; `latency` is latency.json's content.

    Returns:
        ms_full and ms_exit (a text), speed_up, expected_layers, depth, hours_full and hours_exit (a day),
        hours_saved_a_week, saved_a_week (by price), training_cost, days_to_pay_back (null: never),
        texts_to_pay_back, pays_below_layer (null where the overhead was not measured).

    Raises:
        UserError: the file has no such rows.
    """
    exited = _row(latency, "exit", batch)
    full = _row(latency, exited["over"], batch)  # the fastest way through all layers
    ms_full, ms_exit = full["ms_p50"] / batch, exited["ms_p50"] / batch
    hours_full, hours_exit = (spending.daily * ms / MS_AN_HOUR for ms in (ms_full, ms_exit))
    saved_a_day = (hours_full - hours_exit) * spending.serving_price
    cost = spending.training_hours * spending.training_price
    days = cost / saved_a_day if saved_a_day > 0 else None
    overhead = next((row["monitoring_overhead"] for row in _rows(latency, "monitored", batch)), None)
    return {
        "ms_full": ms_full,
        "ms_exit": ms_exit,
        "speed_up": exited["speed_up"],
        "expected_layers": exited["expected_layers"],
        "depth": full["expected_layers"],
        "hours_full": hours_full,
        "hours_exit": hours_exit,
        "hours_saved_a_week": (hours_full - hours_exit) * DAYS_A_WEEK,
        "saved_a_week": saved_a_day * DAYS_A_WEEK,
        "training_cost": cost,
        "days_to_pay_back": days,
        "texts_to_pay_back": None if days is None else round(days * spending.daily),
        "pays_below_layer": None if overhead is None else full["expected_layers"] / (1 + max(overhead, 0.0)),
    }


def lines(cost: dict[str, Any], spending: Spending, batch: int, machine: str) -> Iterator[str]:
    """Put the estimate into words."""
    priced = (spending.training_price, spending.serving_price) != (1.0, 1.0)
    unit = "" if priced else " hours"
    yield f"Measured on {machine}, batch {batch}:"
    yield (
        f"  full depth {cost['ms_full']:.3f} ms a text, early exit {cost['ms_exit']:.3f} ms "
        f"({cost['speed_up']:.2f}x, {cost['expected_layers']:.1f} of {cost['depth']:g} layers)"
    )
    yield f"At {spending.daily:,} texts a day:"
    yield (
        f"  {cost['hours_full']:.2f} machine hours a day at full depth, {cost['hours_exit']:.2f} with "
        f"exits: {cost['hours_saved_a_week']:.2f} hours saved a week"
    )
    if priced:
        yield f"  {cost['saved_a_week']:.2f} saved a week at {spending.serving_price:g} an hour"
    yield f"Training cost once: {cost['training_cost']:.2f}{unit}"
    if cost["days_to_pay_back"] is None:
        yield "It is never paid back: early exit is not faster than full depth here."
    else:
        yield (
            f"It is paid back after {cost['days_to_pay_back']:,.1f} days ({cost['texts_to_pay_back']:,} texts)."
        )
    if cost["pays_below_layer"] is not None:
        yield f"The checks pay where texts leave below layer {cost['pays_below_layer']:.1f} on average."
    if not priced:
        yield "An hour of training counts as one of serving; give both prices if they differ."


def _row(latency: dict[str, Any], path: str, batch: int) -> dict[str, Any]:
    rows = _rows(latency, path, batch)
    if not rows:
        there = sorted({row["batch"] for row in latency["rows"] if row["path"] == path})
        raise UserError(
            f"the latency file has no row for path {path!r} at batch {batch}: it has batches "
            f"{', '.join(map(str, there)) or 'none'}; name one by --batch-size"
        )
    return rows[0]


def _rows(latency: dict[str, Any], path: str, batch: int) -> list[dict[str, Any]]:
    """The rows of a path at a batch size, of the length that was timed first: whole sentences, by default."""
    wanted = (path, batch, latency["protocol"]["speed_up_at_length"])
    return [row for row in latency["rows"] if (row["path"], row["batch"], row["length"]) == wanted]

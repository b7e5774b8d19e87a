"""The numbers of the result files as MLflow's metrics: name, value and step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from leap.evidence.evidence_file import HEAD
from leap.tracking.entities import Number

# Conditions, not results, and the whole sweep: the evidence file has them, charts would only be in the way.
LEFT_OUT = ("protocol", "sweep", "over", "deployable")
# Of a row in a list: what joins the metric's name, and what is the step, with the factor that makes it whole.
LABELS = ("device", "weights", "strategy", "path", "length")
STEPS = {"layer": 1, "threshold": 100, "patience": 1, "width": 1, "batch": 1}


def evidence_numbers(name: str, content: dict[str, Any]) -> list[Number]:
    """List every number of an evidence file ("diagnose", "sts/<set>", ...) as (metric, value, step).

    Rows have their layer, batch size, 100 theta, ... as the step, all else has step 0. All kinds but diagnose
    prefix their metrics.
    """
    body = {key: value for key, value in content.items() if key not in HEAD}
    if name != "diagnose":
        return list(_numbers(body, f"{name}/"))
    # MLflow's page makes a section of charts of what stands before the last slash.
    return [(key if "/" in key else f"diagnose/{key}", value, step) for key, value, step in _numbers(body)]


def plain_numbers(content: dict[str, Any], prefix: str = "") -> list[Number]:
    """List the numbers of a result file that is no evidence, nested keys joined by slashes.

    Rows that share name and step (shards, expectations) are in the file only: no metric has two values at a step.
    """
    numbers = [number for number in _numbers(content, prefix) if number[0].rpartition("/")[2] not in HEAD]
    times = Counter((name, step) for name, _, step in numbers)
    return [(name, value, step) for name, value, step in numbers if times[name, step] == 1]


def _numbers(content: dict[str, Any], prefix: str = "", step: int = 0) -> Iterator[Number]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if key in LEFT_OUT:
            continue
        if isinstance(value, bool | int | float):
            if math.isfinite(value):
                yield name, float(value), step
        elif isinstance(value, dict) and value and all(number.isdigit() for number in value):
            yield from ((name, float(count), int(number)) for number, count in value.items())
        elif isinstance(value, dict):
            yield from _numbers(value, f"{name}/", step)
        elif isinstance(value, list) and "ci95" in key:
            ends = zip((f"{name}_low", f"{name}_high"), value, strict=True)
            yield from _numbers(dict(ends), step=step)
        elif isinstance(value, list):
            for place, row in enumerate(value, 1):
                if isinstance(row, dict):
                    labels = "".join(f"{row[label]}/" for label in LABELS if label in row)
                    rest = {k: item for k, item in row.items() if k not in (*LABELS, *STEPS, "tokens")}
                    # The timed paths need no word before their device.
                    kind = prefix if key == "rows" else f"{name}/"
                    yield from _numbers(rest, kind + labels, _step(row))
                elif key.endswith("by_layer") and row is not None:
                    yield name, float(row), place


def _step(row: dict[str, Any]) -> int:
    """Return the step of a row: its layer, batch size, threshold, ..., or the least tokens of a bin of lengths."""
    for key, factor in STEPS.items():
        if key in row:
            step: int = round(factor * row[key])
            return step
    bounds = row.get("tokens")
    return int(bounds[0]) if isinstance(bounds, list) else 0

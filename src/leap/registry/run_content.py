"""The numbers of the result files as MLflow's metrics: name, value and step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from leap.evidence.evidence_file import HEAD
from leap.tracking.entities import Number

# Conditions, not results: the evidence file says them, a chart of each would only be in the way.
CONDITIONS = ("protocol", "tokens", "mixed")


def evidence_numbers(name: str, content: dict[str, Any]) -> list[Number]:
    """Every number of an evidence file as (metric, value, step).

    Args:
        name: "diagnose", "sts/<set>", "retrieval/<set>" or "latency"; all but diagnose prefix their metrics.
        content: the file. Per-layer numbers have the layer as their step, all others step 0.
    """
    body = {key: value for key, value in content.items() if key not in (*HEAD, *CONDITIONS)}
    numbers = list(_numbers(body))
    if name == "diagnose":
        # MLflow's page makes a section of charts of what stands before the last slash.
        return [(key if "/" in key else f"diagnose/{key}", value, step) for key, value, step in numbers]
    return [(f"{name}/{key}", value, step) for key, value, step in numbers]


def plain_numbers(content: dict[str, Any], prefix: str = "") -> list[Number]:
    """Return the numbers of a result file that is no evidence, nested keys joined by slashes."""
    return [number for number in _numbers(content, prefix) if number[0].rpartition("/")[2] not in HEAD]


def _numbers(content: dict[str, Any], prefix: str = "") -> Iterator[Number]:
    for key, value in content.items():
        name = prefix + key
        if isinstance(value, bool | int | float):
            if math.isfinite(value):
                yield name, float(value), 0
        elif isinstance(value, dict) and value and all(step.isdigit() for step in value):
            yield from ((name, float(count), int(step)) for step, count in value.items())
        elif isinstance(value, dict):
            yield from _numbers(value, f"{name}/")
        elif isinstance(value, list):
            yield from _listed(name, value)


def _listed(name: str, values: list[Any]) -> Iterator[Number]:
    if "ci95" in name:
        yield from _numbers(dict(zip((f"{name}_low", f"{name}_high"), values, strict=True)))
    elif values and all(isinstance(row, dict) and "layer" in row for row in values):
        for row in values:
            kind = f"{name}/batch_{row['batch']}/" if "batch" in row else f"{name}/"
            rest = {
                key: value for key, value in row.items() if key not in ("layer", "batch", "length", *CONDITIONS)
            }
            yield from ((key, value, int(row["layer"])) for key, value, _ in _numbers(rest, kind))
    elif name.endswith("by_layer"):
        numbers = ((layer, value) for layer, value in enumerate(values, 1) if isinstance(value, int | float))
        yield from ((name, float(value), layer) for layer, value in numbers)
    elif name.endswith("rows"):
        for row in values:
            kind = "/".join(str(row[key]) for key in ("device", "path", "length") if key in row)
            rest = {key: value for key, value in row.items() if key not in ("batch", "length", *CONDITIONS)}
            # Batch size as the step draws time against batch size in MLflow's page.
            yield from ((key, value, int(row["batch"])) for key, value, _ in _numbers(rest, f"{kind}/"))

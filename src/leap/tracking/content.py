"""What of the files MLflow is told: numbers by name and step, settings as flat text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.evaluation.evidence import HEAD

if TYPE_CHECKING:
    from mlflow.entities import Metric

# MLflow's own limits: 1000 metrics a call, 6000 characters a parameter.
METRICS_A_CALL = 1000
PARAM_LENGTH = 6000

Number = tuple[str, float, int]
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


def history_numbers(history: Path) -> list[Number]:
    """Every number of the trainer's history.jsonl as (metric, value, step)."""
    numbers = []
    for line in history.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line that was cut short when the training was killed
        step = int(row["step"])
        numbers += [(key, value, step) for key, value, _ in _numbers(history_metrics(row))]
    return numbers


def history_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a logged step by metric: loss/total, loss/<term>, and train/<name> for all else."""

    def name(key: str) -> str:
        kind, _, term = key.partition("_")
        return f"loss/{term or 'total'}" if kind == "loss" else f"train/{key}"

    return {name(key): value for key, value in row.items() if key != "step"}


def params_of(variant: dict[str, Any]) -> dict[str, str]:
    """A variant's settings as MLflow's parameters: what it is called is in the tags."""
    return flat({key: value for key, value in variant.items() if key not in ("name", "description")})


def flat(content: Any, prefix: str = "") -> dict[str, str]:
    """Nested settings as {"train.batch_size": "64"}; lists stay whole."""
    if not isinstance(content, dict):
        return {prefix: param_text(content)}
    return {
        name: text
        for key, value in content.items()
        for name, text in flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def param_text(value: Any) -> str:
    """A setting's value as text of a length that MLflow takes."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:PARAM_LENGTH]


def metric(name: str, value: float, step: int, time_ms: int) -> Metric:
    """One number for a batch."""
    from mlflow.entities import Metric

    return Metric(name, float(value), time_ms, step)


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
    elif name.endswith("by_layer"):
        yield from ((name, float(v), layer) for layer, v in enumerate(values, 1) if v is not None)
    elif name.endswith("layers"):
        for row in values:
            rest = {key: value for key, value in row.items() if key != "layer"}
            yield from ((key, value, int(row["layer"])) for key, value, _ in _numbers(rest, f"{name}/"))
    elif name.endswith("rows"):
        for row in values:
            kind = f"{row['device']}/{row['path']}"
            rest = {key: value for key, value in row.items() if key not in ("batch", *CONDITIONS)}
            # Batch size as the step draws time against batch size in MLflow's page.
            yield from ((key, value, int(row["batch"])) for key, value, _ in _numbers(rest, f"{kind}/"))

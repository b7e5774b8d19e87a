"""Settings and figures in MLflow's forms: flat parameters of a bounded length, metrics by name and step."""

from __future__ import annotations

import getpass
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leap.core.environment import commit

if TYPE_CHECKING:
    from mlflow.entities import Metric

# MLflow's own limits: 1000 metrics a call, 6000 characters a parameter.
METRICS_A_CALL = 1000
PARAM_LENGTH = 6000

# The figures that decide, of metrics/<variant>-<seed>.json: the columns of the view that `make ui` opens.
HEADLINE = (
    *("layers", "exit_rate", "similarity", "nn_at_10", "sts_exit", "ndcg_query", "ndcg_exit"),
    *("speed_up", "query_speed_up"),
)
# A metric's name, value and step.
Number = tuple[str, float, int]


def history_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a logged step by metric: loss/total, loss/<term>, and train/<name> for all else."""

    def name(key: str) -> str:
        kind, _, term = key.partition("_")
        return f"loss/{term or 'total'}" if kind == "loss" else f"train/{key}"

    return {name(key): value for key, value in row.items() if key != "step"}


def params_of(variant: dict[str, Any]) -> dict[str, str]:
    """Return a variant's settings as MLflow's parameters: what it is called is in the tags."""
    return flat({key: value for key, value in variant.items() if key not in ("name", "description")})


def flat(content: Any, prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to {"train.batch_size": "64"}; lists stay whole."""
    if not isinstance(content, dict):
        return {prefix: param_text(content)}
    return {
        name: text
        for key, value in content.items()
        for name, text in flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def param_text(value: Any) -> str:
    """Return a setting's value as text of a length that MLflow takes."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:PARAM_LENGTH]


def metric(name: str, value: float, step: int, time_ms: int, model: str | None = None) -> Metric:
    """Make one number of a batch, linked to a logged model where its id is given."""
    from mlflow.entities import Metric

    return Metric(name, float(value), time_ms, step, model_id=model)


def source_tags(script: str) -> dict[str, str]:
    """Say who ran which script at which commit, in the tags that MLflow's table of runs shows."""
    where = commit(Path.cwd())
    tags = {"mlflow.user": user(), "mlflow.source.name": script, "mlflow.source.type": "LOCAL"}
    if where["commit"]:
        tags |= {"mlflow.source.git.commit": where["commit"], "leap.dirty": str(where["dirty"]).lower()}
    experiment = os.environ.get("DVC_EXP_NAME")
    return {**tags, "dvc.experiment": experiment} if experiment else tags


def user() -> str:
    """Return who is logged in, "unknown" in a container without a name for its user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def history_numbers(history: Path) -> list[Number]:
    """Read every number of the trainer's history.jsonl as (metric, value, step)."""
    numbers = []
    for line in history.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line that was cut short when the training was killed
        step = int(row["step"])
        numbers += [
            (key, float(value), step)
            for key, value in history_metrics(row).items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
    return numbers

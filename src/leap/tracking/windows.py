"""Comparisons of a served model's windows in MLflow: one run a model, a point a window."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leap.settings import Settings
from leap.tracking.content import metric
from leap.tracking.store import Tracking, failures, first_line

if TYPE_CHECKING:
    from leap.monitoring.compare import Comparison

logger = logging.getLogger(__name__)


def log_comparison(settings: Settings, comparison: Comparison, files: list[Path]) -> bool:
    """Logs the current window's numbers and the files of a comparison.

    The run is found by the tag `leap.monitored`, the checkpoint's hash. The step of its metrics `monitor/*`
    is the end of the window in seconds since 1970, so their charts are the model's life; files lie in a
    folder named after that moment. A store that cannot be reached costs a warning.

    Returns:
        Whether MLflow has it now.
    """
    tracking = Tracking.open(settings)
    client, current = tracking.client, comparison.current
    if client is None:
        return False
    checkpoint = str(current.model["checkpoint"])
    step = int(current.ended.timestamp())
    try:
        found = tracking.find({"leap.monitored": checkpoint})
        run = (
            found[0]
            if found
            else tracking.create_run(
                f"monitor-{checkpoint[:8]}",
                {
                    "leap.monitored": checkpoint,
                    "mlflow.note.content": "Windows of the served model, by `leap monitor`; a point each.",
                },
            )
        )
        now = int(time.time() * 1000)
        numbers = _numbers(comparison).items()
        client.log_batch(
            run.info.run_id, [metric(f"monitor/{name}", value, step, now) for name, value in numbers]
        )
        for file in files:
            client.log_artifact(run.info.run_id, str(file), f"{current.ended:%Y-%m-%dT%H%M%SZ}")
        client.set_tag(run.info.run_id, "leap.alerts", ", ".join(comparison.alerts) or "none")
        client.set_terminated(run.info.run_id, "FINISHED")
    except failures() as error:
        logger.warning("tracking: %s; run `leap monitor` again to log this window", first_line(error))
        return False
    return True


def _numbers(comparison: Comparison) -> dict[str, float]:
    window = comparison.current
    numbers = {
        "sentences": window.sentences,
        "mean_exit_layer": window.mean_layer,
        "exit_rate": window.exit_rate,
        "layer_reduction": window.layer_reduction,
        "predicted_layer_reduction": window.predicted_layer_reduction,
        "exit_similarity": window.shadowed.mean,
        "nn_at_10": window.agreement.mean,
        "nn_fail_50": window.agreement.failed,
        "alerts": len(comparison.alerts),
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}

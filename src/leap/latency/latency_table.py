"""The output of `leap latency`: any model's latency on this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leap.core.environment import environment
from leap.core.errors import UserError
from leap.core.files import write_json
from leap.core.grid import Grid
from leap.core.settings.evaluation import LatencySettings

MARK = '"kind": "leap latency"'
COLUMNS = ("path", "batch", "length", "tokens", "ms_p50", "ms_p95", "ms_p99", "expected_layers", "deepest_layers")


def latency_settings(**options: Any) -> LatencySettings:
    """Check what a command line asks to be timed; UserError names all wrong values. A length may be text."""
    from pydantic import ValidationError

    lengths = [int(item) if str(item).isdigit() else item for item in options["lengths"]]
    try:
        return LatencySettings.model_validate({**options, "lengths": lengths})
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError("; ".join(mistakes)) from None


def set_threads(threads: int | None) -> None:
    """Set how many CPU threads PyTorch takes; its own choice if None."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def time_model(
    model: str,
    sentences: Sequence[str],
    settings: LatencySettings,
    threshold: float | None,
    min_layer: int | None,
    quantize: str | None,
    path: str,
    output: Path | None,
) -> dict[str, Any]:
    """Time a model, and write the figures as JSON where `output` is given; theta and l_min as in LeapEncoder.

    Raises:
        UserError: the model cannot be had, or an argument does not fit it.
    """
    from leap.exits import LeapEncoder
    from leap.latency.timing import latency_figures

    try:
        encoder = LeapEncoder(model, settings.device, quantize=quantize, path=path)  # type: ignore[arg-type]
        rule = encoder.rule.changed(threshold, min_layer)
        rule.check_depth(encoder.depth)
    except ValueError as error:
        raise UserError(str(error)) from None
    figures = latency_figures(encoder, sentences, rule, settings, seed=17)
    if output is not None:
        head = {"kind": "leap latency", "model": model, "exit_rule": vars(rule)}
        write_json(output, {**head, "environment": environment(str(encoder.device)), **figures})
    return figures


def table(figures: dict[str, Any]) -> str:
    """Put the rows into columns for a terminal."""
    rows = []
    for row in figures["rows"]:
        cells = [f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in COLUMNS]
        low, high = row["speed_up_ci95"]
        overhead = row["monitoring_overhead"]
        gain = f"{row['speed_up']:.2f} [{low:.2f}, {high:.2f}]"
        checks = "" if overhead is None else f"{overhead:+.1%}"
        rows.append((*cells, gain, row["over"], f"{row['layer_reduction_realised']:.3f}", checks))
    return Grid((*COLUMNS, "speed-up [95 %]", "over", "realised", "checks"), rows, words=2).text()

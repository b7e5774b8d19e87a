"""What `leap latency` says: any model's latency on this machine."""

from typing import Any

from leap.core.errors import UserError
from leap.core.settings.evaluation import LatencySettings

COLUMNS = ("path", "batch", "length", "tokens", "mixed", "ms_p50", "ms_p95", "ms_p99", "expected_layers")


def latency_settings(**options: Any) -> LatencySettings:
    """Check what a command line asks to be timed; UserError names all wrong values. A length may be text."""
    from pydantic import ValidationError

    lengths = [int(item) if str(item).isdigit() else item for item in options["lengths"]]
    try:
        return LatencySettings.model_validate({**options, "lengths": lengths})
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise UserError("; ".join(mistakes)) from None


def table(figures: dict[str, Any]) -> str:
    """Render the rows as a Markdown table."""
    heads = [*COLUMNS, "speed-up [95 %]", "over", "realised", "monitoring"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in figures["rows"]:
        cells = [f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in COLUMNS]
        low, high = row["speed_up_ci95"]
        overhead = row["monitoring_overhead"]
        cells += [f"{row['speed_up']:.2f} [{low:.2f}, {high:.2f}]", row["over"]]
        cells += [f"{row['layer_reduction_realised']:.3f}", "" if overhead is None else f"{overhead:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)

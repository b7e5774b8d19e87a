"""`leap monitor`: reads two windows, writes the comparison, tells the caller."""

import logging
from pathlib import Path

from leap.core.errors import UserError
from leap.core.files import must_be_new, whole_file, write_json
from leap.core.settings import read_settings
from leap.serve.compare_windows import Comparison, compare, differences
from leap.serve.window import read_windows

logger = logging.getLogger(__name__)


def compare_windows(
    reference: str, current: str, target: Path, prometheus: Path | None, params: Path
) -> list[str]:
    """Write `target`/comparison.json, and a file in Prometheus' text format if one is named; return what alerts.

    `reference` and `current` are a window file, a folder of them or a glob pattern.

    Raises:
        UserError: the windows cannot be read or compared, or no rule could be judged.
    """
    must_be_new(target / "comparison.json", mark='"kind": "comparison"')
    if prometheus is not None:
        must_be_new(prometheus, mark="# HELP leap_")
    settings = read_settings(params)
    before, now = read_windows(reference), read_windows(current)
    try:
        comparison = compare(before, now, settings.monitoring)
    except ValueError as error:
        raise UserError(f"{reference} and {current}: {error}") from None
    _say(comparison)
    write_json(target / "comparison.json", comparison.as_json())
    if prometheus is not None:
        from leap.serve.prometheus import prometheus_text

        with whole_file(prometheus) as temporary:
            temporary.write_text(prometheus_text(comparison), encoding="utf-8")
    if all(finding.outcome == "not judged" for finding in comparison.findings):
        raise UserError(
            "no rule could be judged, for the reasons above: compare longer windows, or lower "
            "monitoring.min_sentences"
        )
    return comparison.alerts


def _say(comparison: Comparison) -> None:
    for note in differences(comparison.reference, comparison.current):
        logger.warning("note: %s", note)
    for finding in comparison.findings:
        level = logging.WARNING if finding.outcome == "alert" else logging.INFO
        logger.log(level, "%-10s %-16s %s", finding.outcome, finding.rule, finding.reason)

"""`leap monitor`: reads two windows, writes the comparison, tells MLflow and the caller."""

import logging
from pathlib import Path

from leap.errors import UserError
from leap.files import whole_file, write_json
from leap.monitoring.compare import Comparison, compare, differences
from leap.monitoring.prometheus import prometheus_text
from leap.monitoring.window import read_windows
from leap.settings import read_settings

logger = logging.getLogger(__name__)


def compare_windows(
    reference: str, current: str, target: Path, prometheus: Path | None, log: bool, params: Path
) -> list[str]:
    """Writes `target`/comparison.json and windows.svg, and the Prometheus file if one is named.

    Args:
        reference: a window file, a folder of them or a glob pattern.
        current: likewise.
        target: the folder for the results.
        prometheus: a file for Prometheus' text format.
        log: whether to log to MLflow.
        params: the settings file.

    Returns:
        The rules that alert.

    Raises:
        UserError: the windows cannot be read or compared, or no rule could be judged.
    """
    settings = read_settings(params)
    before, now = read_windows(reference), read_windows(current)
    try:
        comparison = compare(before, now, settings.monitoring)
    except ValueError as error:
        raise UserError(f"{reference} and {current}: {error}") from None
    _say(comparison)
    write_json(target / "comparison.json", comparison.as_json())
    picture = target / "windows.svg"
    from leap.monitoring.picture import draw  # matplotlib takes a second to import

    draw(comparison, picture)
    if prometheus is not None:
        with whole_file(prometheus) as beside:
            beside.write_text(prometheus_text(comparison), encoding="utf-8")
    if log:
        from leap.tracking.windows import log_comparison

        log_comparison(settings, comparison, [target / "comparison.json", picture])
    if all(finding.outcome == "not judged" for finding in comparison.findings):
        raise UserError("no rule could be judged: the windows hold too little; see the reasons above")
    return comparison.alerts


def _say(comparison: Comparison) -> None:
    for note in differences(comparison.reference, comparison.current):
        logger.warning("note: %s", note)
    for finding in comparison.findings:
        level = logging.WARNING if finding.outcome == "alert" else logging.INFO
        logger.log(level, "%-10s %-16s %s", finding.outcome, finding.rule, finding.reason)

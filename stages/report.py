"""Writes the report of all variants and seeds: reports/report.html, report.md, paper.html, summary.json, plots/.

    python stages/report.py

What is not measured yet is left out or says the command. The last lines on stderr are `leap summary`.
"""

import logging
from typing import Any

from leap.core.stage import Run, stage
from leap.report.findings import text
from leap.report.write_report import write_report

logger = logging.getLogger("leap.report")


@stage()
def report(run: Run) -> dict[str, Any]:
    summary = write_report(run.settings, run.project)
    logger.info("%s", text(summary))
    passed = [name for name, variant in summary["variants"].items() if (variant["gate"] or {}).get("passed")]
    return {"report": str(run.project.reports / "report.html"), "passed": passed}

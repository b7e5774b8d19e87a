"""Writes the report of all variants and seeds: reports/report.html, report.md, summary.json,
metrics.json, plots/.

    python stages/report.py

Evidence and studies that are not there yet read "missing". The last lines on stderr are the main table.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

from leap.errors import UserError
from leap.evaluation.evidence import read_evidence
from leap.files import read_json, whole_file, whole_folder, write_json, write_sealed
from leap.gate.registry import current_aliases
from leap.reporting.beside import beside
from leap.reporting.page import pictures, render
from leap.reporting.paper import read_paper
from leap.reporting.run_facts import run_facts
from leap.reporting.studies import read_studies
from leap.reporting.summary import metrics, summarise, table
from leap.settings import Settings
from leap.stage import run
from leap.tracking import Tracking, log_report

logger = logging.getLogger("leap.report")

REPORTS = Path("reports")


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    checkpoints = [(variant, seed) for variant in settings.variants for seed in settings.seeds]
    evidence = {
        (variant, seed): read_evidence(variant, seed, settings, complete=False)
        for variant, seed in checkpoints
    }
    verdicts = {
        (variant, seed): read_json(path, "dvc repro")
        for variant, seed in checkpoints
        if (path := Path("verdicts") / f"{variant}-{seed}.json").is_file()
    }
    aliases = aliases_now(settings)
    for verdict in verdicts.values():
        if verdict["registry"] and aliases is not None:
            # A verdict says what was so when it was given; a later one may have taken the champion's place.
            verdict["registry"]["aliases"] = aliases.get(verdict["checkpoint"], [])
    summary = summarise(settings, evidence, verdicts, run_facts(settings))
    studies = read_studies(settings)
    drawn = pictures(summary, Path("evaluations"), studies)
    tables = beside(settings, summary, studies, read_paper())
    asked = {name: study.description for name, study in settings.studies.items()}

    write_sealed(REPORTS / "summary.json", summary)
    write_json(REPORTS / "metrics.json", metrics(summary))
    for form in ("html", "md"):
        with whole_file(REPORTS / f"report.{form}") as beside_it:
            page = render(f"report.{form}.j2", summary, drawn, tables, asked, studies)
            beside_it.write_text(page, encoding="utf-8")
    with whole_folder(REPORTS / "plots") as plots:
        for name, (_, svg, rows) in drawn.items():
            (plots / f"{name}.svg").write_text(svg, encoding="utf-8")
            write_json(plots / f"{name}.json", rows)

    log_report(settings, REPORTS)
    logger.info("%s", table(summary))
    passed = [name for name, variant in summary["variants"].items() if (variant["gate"] or {}).get("passed")]
    return {"stage": "report", "report": str(REPORTS / "report.html"), "passed": passed}


def aliases_now(settings: Settings) -> dict[str, list[str]] | None:
    """The registry's aliases, or null where it cannot be reached: the verdicts' own stand then."""
    tracking = Tracking.open(settings)
    try:
        return current_aliases(tracking) if tracking.client else None
    except UserError as error:  # it went between the two calls
        logger.warning("%s", error)
        return None


if __name__ == "__main__":
    run(main, __doc__)

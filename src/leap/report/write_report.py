"""The report, from the files of a project to the folder reports/."""

from typing import Any

from leap.core.files import read_json, whole_file, whole_folder, write_json, write_sealed
from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import read_evidence
from leap.report.page import pictures, render
from leap.report.paper import read_paper
from leap.report.paper_tables import paper_tables
from leap.report.run_facts import run_facts
from leap.report.study_results import read_studies
from leap.report.summary import summarise


def write_report(settings: Settings, project: Project) -> dict[str, Any]:
    """Write report.html, report.md, summary.json and plots/; return the summary.

    Raises:
        UserError: evidence was edited, or measured on another model than the one there is.
    """
    checkpoints = [project.checkpoint(variant, seed) for variant in settings.variants for seed in settings.seeds]
    evidence = {
        (item.variant, item.seed): read_evidence(item.variant, item.seed, settings, complete=False)
        for item in checkpoints
    }
    verdicts = {
        (item.variant, item.seed): read_json(item.verdict, "dvc repro")
        for item in checkpoints
        if item.verdict.is_file()
    }
    trainings = {
        (item.variant, item.seed): read_json(record, "dvc repro")
        for item in checkpoints
        if (record := item.training / "training.json").is_file()
    }
    summary = summarise(settings, evidence, verdicts, run_facts(settings), trainings)
    studies = read_studies(settings)
    drawn = pictures(summary, project.root / "evaluations", studies)
    tables = paper_tables(settings, summary, studies, read_paper())
    asked = {name: study.description for name, study in settings.studies.items()}
    write_sealed(project.reports / "summary.json", summary)
    for form in ("html", "md"):
        with whole_file(project.reports / f"report.{form}") as temporary:
            page = render(f"report.{form}.j2", summary, drawn, tables, asked, studies)
            temporary.write_text(page, encoding="utf-8")
    with whole_folder(project.reports / "plots") as plots:
        for name, (_, svg, rows) in drawn.items():
            (plots / f"{name}.svg").write_text(svg, encoding="utf-8")
            write_json(plots / f"{name}.json", rows)
    return summary

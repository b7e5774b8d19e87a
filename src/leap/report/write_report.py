"""The report, from the files of a project to the folder reports/."""

from typing import Any

from leap.core.files import read_json, whole_file, whole_folder, write_json, write_with_checksum
from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import read_evidence
from leap.report.page import pictures, render_markdown, render_paper, render_report
from leap.report.paper import read_paper
from leap.report.paper_tables import paper_tables
from leap.report.run_facts import run_facts
from leap.report.study_results import read_studies
from leap.report.summary import summarise


def write_report(settings: Settings, project: Project) -> dict[str, Any]:
    """Write report.html, report.md, paper.html, summary.json and plots/; return the summary.

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
    write_with_checksum(project.reports / "summary.json", summary)
    pages = {
        "report.html": render_report(summary, drawn, studies, asked),
        "report.md": render_markdown(summary),
        "paper.html": render_paper(summary, tables, settings.profile),
    }
    for name, page in pages.items():
        with whole_file(project.reports / name) as temporary:
            temporary.write_text(page, encoding="utf-8")
    with whole_folder(project.reports / "plots") as plots:
        for name, (_, svg, rows) in drawn.items():
            (plots / f"{name}.svg").write_text(svg, encoding="utf-8")
            write_json(plots / f"{name}.json", rows)
    return summary

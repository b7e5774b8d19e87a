"""The runs that belong to no single checkpoint: the data, the report, and every study with its variants."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from leap.core.files import read_json, sha256_of, sha256_of_json
from leap.core.project import Project
from leap.core.settings import Settings
from leap.evidence.evidence_file import data_hashes
from leap.registry.run_content import plain_numbers
from leap.registry.run_writer import RunWriter
from leap.tracking.entities import flat
from leap.tracking.store import StoreError, Tracking

logger = logging.getLogger(__name__)


def log_data(tracking: Tracking, project: Project) -> None:
    """Log what `extract`, `validate` and `cache_teacher` found as a run `data`, one for each state of the data."""
    files = {
        "extract": project.data / "extract.json",
        "validate": project.data / "validation.json",
        "teacher": project.teacher / "manifest.json",
    }
    present = {name: path for name, path in files.items() if path.is_file()}
    if "extract" not in present:
        return
    settings = tracking.settings
    tags = {"leap.data": sha256_of_json({name: sha256_of(path) for name, path in present.items()})}
    run = RunWriter.find(tracking, tags)
    if run is None:
        run = RunWriter.create(tracking, "data", {**tags, "leap.profile": settings.profile}, "stages/extract.py")
    if not run.has("data", tags["leap.data"]):
        blocks = {"data", "validation", "similarity", "retrieval", "teacher"}
        run.set_params(flat(settings.model_dump(mode="json", include=blocks)))
        for name, path in present.items():
            run.log_numbers(plain_numbers(read_json(path, "dvc repro"), f"{name}/"))
            run.log_file(path)
        outputs = [project.sentences, project.held_out]
        run.log_inputs("training", {path.stem: data_hashes([path]) for path in outputs if path.is_file()})
        run.done("data", tags["leap.data"])
    run.end()


def log_report(tracking: Tracking, project: Project) -> None:
    """Log the report as a run `report`, one a profile, which always holds the newest page."""
    folder = project.reports
    if not (folder / "report.html").is_file():
        return
    tags = {"leap.report": tracking.settings.profile}
    run = RunWriter.find(tracking, tags) or RunWriter.create(tracking, "report", tags, "stages/report.py")
    checksum = sha256_of(folder / "report.html")
    if not run.has("report", checksum):
        for name in ("report.html", "paper.html", "report.md", "summary.json"):
            run.log_file(folder / name)
        if (folder / "plots").is_dir():
            run.log_file(folder / "plots", "plots")
        run.done("report", checksum)
    run.end()


def log_studies(tracking: Tracking, project: Project) -> None:
    """Log every study that has been run; see `log_study`."""
    for path in sorted((project.root / "studies").glob("*.json")):
        log_study(tracking, path)


def log_study_now(settings: Settings, path: Path) -> None:
    """Log a study that has just been run; where the store fails, `promote` logs it later."""
    tracking = Tracking.open(settings)
    if tracking.client is None:
        return
    try:
        with tracking.locked("runs"):
            log_study(tracking, path)
    except StoreError as error:
        logger.warning("MLflow: %s; `dvc repro` or `leap track` logs the study", error)


def log_study(tracking: Tracking, path: Path) -> None:
    """Log studies/<study>.json as a run with one nested for each variant and seed, again when it has changed."""
    content, checksum = read_json(path, f"make study-{path.stem}"), sha256_of(path)
    name = content["study"]
    tags = {"leap.study": name, "leap.content": checksum}
    parent = RunWriter.find(tracking, tags) or RunWriter.create(tracking, name, tags, "stages/study.py")
    if not parent.has("study", checksum):
        shared = {key: value for key, value in content["settings"].items() if key != "variants"}
        parent.set_params(flat(shared))
        parent.set_tags({"mlflow.note.content": content["description"]})
        parent.log_inputs("evaluation", {content["set"]: content["data"]})
        for variant, described in content["variants"].items():
            for seed, figures in described["seeds"].items():
                own = {"leap.variant": variant, "leap.seed": seed}
                _log_variant(tracking, parent, content, own, figures)
        parent.log_file(path)
        parent.done("study", checksum)
    parent.end()


def _log_variant(
    tracking: Tracking, parent: RunWriter, content: dict[str, Any], own: dict[str, str], figures: dict[str, Any]
) -> None:
    """Log one variant and seed below its study's run: what it changes as parameters, and its figures."""
    variant = own["leap.variant"]
    name, tags = f"{variant}-{own['leap.seed']}", {"mlflow.parentRunId": parent.id, **own}
    run = RunWriter.find(tracking, tags) or RunWriter.create(tracking, name, tags, "stages/study.py")
    if not run.has("figures", "yes"):
        block = content["settings"]["variants"][variant]
        changes = flat({key: value for key, value in block.items() if value is not None})
        run.set_tags({"mlflow.note.content": changes.pop("description")})
        run.set_params(changes)
        run.log_inputs("evaluation", {content["set"]: content["data"]})
        run.log_numbers(plain_numbers(figures))
        run.done("figures", "yes")
    run.end()

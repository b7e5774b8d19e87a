"""The facts of a run: data counts, teacher, settings that a reader needs; the summary's `run`."""

from pathlib import Path
from typing import Any

from leap.core.files import read_json
from leap.core.settings import Settings

EXTRACT = Path("data/extract.json")
MANIFEST = Path("data/teacher/manifest.json")


def run_facts(settings: Settings, project: Path = Path()) -> dict[str, Any]:
    """Collect the facts of the run; what a stage has not written yet is null.

    Returns:
        seeds, teacher {kind, source, sha256}, data (the counts of extract.json, flat, without its
        sources'), sources (sentences left of each), exit (the rule).
    """
    teacher = settings.teacher.model_dump()
    manifest = project / MANIFEST
    cached = read_json(manifest, "dvc repro").get("teacher") if manifest.is_file() else None
    path = project / EXTRACT
    extract = read_json(path, "dvc repro") if path.is_file() else None
    sources = extract.pop("sources", {}) if extract else {}
    return {
        "seeds": settings.seeds,
        "teacher": {
            "kind": teacher["kind"],
            "source": next(teacher[key] for key in ("repo", "path", "package") if key in teacher),
            "sha256": cached or teacher.get("sha256"),
        },
        "data": extract and counts(extract),
        "sources": {name: source["kept"] for name, source in sources.items()},
        "exit": settings.exit.rule(),
    }


def counts(content: dict[str, Any], prefix: str = "") -> dict[str, int]:
    """Return all whole numbers of nested counts by their path: {"per source docstrings": 12000}."""
    flat: dict[str, int] = {}
    for key, value in content.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            flat |= counts(value, f"{name} ")
        elif isinstance(value, int) and not isinstance(value, bool):
            flat[name] = value
    return flat

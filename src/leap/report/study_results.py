"""The studies that there are, for the report: read as they were written, what is missing is not there."""

from pathlib import Path
from typing import Any

from leap.core.files import read_json
from leap.core.settings import Settings

FOLDER = Path("studies")

Studies = dict[str, dict[str, Any]]


def read_studies(settings: Settings, folder: Path = FOLDER) -> Studies:
    """Read the content of every study of the settings that has been run, by its name.

    A study of other settings than now (another profile, other variants or sizes) is left out: it would show
    as a result of these.
    """
    contents = {}
    for name, block in settings.studies.items():
        path = folder / f"{name}.json"
        if path.is_file():
            content = read_json(path, f"make study-{name}")
            asked = block.model_dump(mode="json", exclude={"description"})
            if content["settings"] == asked and content["profile"] == settings.profile:
                contents[name] = content
    return contents


def first_seed(studies: Studies, study: str, variant: str) -> dict[str, Any] | None:
    """Return the figures of a variant's first seed; null where the study or the variant is missing."""
    seeds = studies.get(study, {}).get("variants", {}).get(variant, {}).get("seeds", {})
    return next(iter(seeds.values()), None)

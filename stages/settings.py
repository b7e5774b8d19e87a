"""Validates params.yaml before anything else of the pipeline runs: all mistakes in one message.

    python stages/settings.py

DVC makes names of variants and data sets parts of paths, and empties a stage's outputs before its command
runs: a name such as `../x` must be refused before any other stage begins. So this stage reads all settings,
and every other stage comes after it. Its output never changes, so a changed setting re-runs only what depends
on it.
"""

from typing import Any

from leap.core.files import whole_file
from leap.core.stage import Run, stage


@stage()
def settings(run: Run) -> dict[str, Any]:
    with whole_file(run.project.data / "settings.txt") as temporary:
        temporary.write_text("params.yaml was valid when the pipeline began\n", encoding="utf-8")
    return {"profile": run.settings.profile, "variants": list(run.settings.variants)}

"""Validates params.yaml before anything else of the pipeline runs: all mistakes in one message.

    python stages/settings.py

DVC makes names of variants and data sets parts of paths, and empties a stage's outputs before its command
runs: a name such as `../x` must be refused before any other stage begins. So this stage reads all settings,
and every other stage comes after it. Writes data/settings.txt, which never changes, and data/variants/V.json,
what a variant is trained by: a variant trains again when that changes, and not when its exit rule does.
"""

from typing import Any

from leap.core.files import whole_file, whole_folder, write_json
from leap.core.stage import Run, stage


@stage()
def settings(run: Run) -> dict[str, Any]:
    names = list(run.settings.variants)
    with whole_folder(run.project.data / "variants") as folder:
        for name in names:
            write_json(folder / f"{name}.json", run.settings.variant(name).training())
    with whole_file(run.project.data / "settings.txt") as temporary:
        temporary.write_text("params.yaml was valid when the pipeline began\n", encoding="utf-8")
    return {"profile": run.settings.profile, "variants": names}

"""Validates params.yaml before anything else of the pipeline runs: all mistakes in one message.

python stages/settings.py

DVC makes names of variants and data sets parts of paths, and empties a stage's outputs before its command
runs: a name such as `../x` must be refused before any other stage begins. So this stage reads all settings,
and every other stage comes after it. Its output never changes, so a changed setting re-runs only what depends
on it.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.files import whole_file
from leap.settings import Settings
from leap.stage import run

OUTPUT = Path("data/settings.txt")


def main(settings: Settings, _: argparse.Namespace) -> dict[str, Any]:
    with whole_file(OUTPUT) as beside:
        beside.write_text("params.yaml was valid when the pipeline began\n", encoding="utf-8")
    return {"stage": "settings", "profile": settings.profile, "variants": list(settings.variants)}


if __name__ == "__main__":
    run(main, __doc__)

"""Trains and measures the variants of one study: studies/<study>.json, its metrics and its plots.

    python stages/study.py --study ablation

Reads data/sentences.parquet and data/similarity/<primary_set>.parquet. Models lie in studies/work/ and are
kept while their settings, data and code are the same; an interrupted study goes on where it stopped.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.files import write_json, write_sealed
from leap.settings import Settings
from leap.stage import run
from leap.studies.run import layer_points, metrics, run_study

STUDIES = Path("studies")


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    name = arguments.study
    content = run_study(settings, name)
    figures = metrics(content)
    write_json(STUDIES / "plots" / f"{name}.json", layer_points(content))
    write_json(STUDIES / "metrics" / f"{name}.json", figures)
    write_sealed(STUDIES / f"{name}.json", content)
    return {
        "stage": "study",
        "study": name,
        "spearman_exit": {k: v["spearman_exit"] for k, v in figures.items()},
    }


if __name__ == "__main__":
    run(main, __doc__, ("study",))

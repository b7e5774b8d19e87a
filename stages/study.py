"""Trains and measures the variants of one study: studies/<study>.json.

    python stages/study.py --study ablation

Reads data/sentences.parquet and data/similarity/<primary_set>.parquet. Models lie in studies/work/ and are
used again while their settings, data and code are the same; an interrupted study goes on where it stopped.
"""

from typing import Any

from leap.core.files import write_with_checksum
from leap.core.stage import Run, stage
from leap.studies.run_study import metrics, run_study


@stage("study")
def study(run: Run) -> dict[str, Any]:
    content = run_study(run.settings, run.study)
    write_with_checksum(run.project.root / "studies" / f"{run.study}.json", content)
    return {"spearman_exit": {name: row["spearman_exit"] for name, row in metrics(content).items()}}

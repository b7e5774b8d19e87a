"""Trains and measures the variants of one study: studies/<study>.json.

    python stages/study.py --study ablation

Reads data/sentences.parquet and data/similarity/<primary_set>.parquet. Models lie in studies/work/ and are
used again while their settings, data and code are the same; an interrupted study goes on where it stopped. The
study is then a run of MLflow with a nested run a variant and seed.
"""

from typing import Any

from leap.core.files import write_with_checksum
from leap.core.stage import Run, stage
from leap.registry.project_runs import log_study_now
from leap.studies.run_study import metrics, run_study


@stage("study")
def study(run: Run) -> dict[str, Any]:
    content, path = run_study(run.settings, run.study), run.project.root / "studies" / f"{run.study}.json"
    write_with_checksum(path, content)
    log_study_now(run.settings, path)
    return {"spearman_exit": {name: row["spearman_exit"] for name, row in metrics(content).items()}}

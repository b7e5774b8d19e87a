"""Scores a checkpoint on one retrieval collection, full depth and exited.

    python stages/evaluate_retrieval.py --variant leap --seed 1 --set docstrings

Reads models/<variant>-<seed>/ and data/retrieval/<set>/; writes
evaluations/<variant>-<seed>/retrieval/<set>.json and <set>.parquet, a row a query.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.beir import read_collection
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evaluate.retrieval import measure_retrieval
from leap.evidence.evidence_file import record


@stage("variant", "seed", "set")
def evaluate_retrieval(run: Run) -> dict[str, Any]:
    source, data = run.settings.collection(run.set), run.project.collection(run.set)
    model = open_checkpoint(run)
    figures, rows = measure_retrieval(
        model, read_collection(data), source.skip_own_id, run.settings.evaluation, run.project.vectors
    )
    record(run, "retrieval", figures, [data], str(model.device), rows)
    return {key: figures[key] for key in ("ndcg_at_10_full", "ndcg_at_10_exit", "drop")}

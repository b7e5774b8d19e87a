"""Scores a checkpoint on one retrieval collection: full depth, queries that exit, both sides exited, by layer.

    python stages/evaluate_retrieval.py --variant leap --seed 1 --set docstrings

Reads models/<variant>-<seed>/, the teacher, whose index is searched too, and data/retrieval/<set>/; writes
evaluations/<variant>-<seed>/retrieval/<set>.json and <set>.parquet, a row a query.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.beir import read_collection
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evaluate.retrieval import measure_retrieval
from leap.evidence.evidence_file import record
from leap.exits import LeapEncoder
from leap.models.locate import locate


@stage("variant", "seed", "set")
def evaluate_retrieval(run: Run) -> dict[str, Any]:
    source, data = run.settings.collection(run.set), run.project.collection(run.set)
    model = open_checkpoint(run)
    teacher = LeapEncoder(locate(run.settings.teacher).folder, str(model.device))
    figures, rows = measure_retrieval(
        model, read_collection(data), source.skip_own_id, run.settings.evaluation, run.project.vectors, teacher
    )
    record(run, "retrieval", figures, [data], str(model.device), rows)
    return {key: figures[key] for key in ("ndcg_at_10_full", "ndcg_at_10_query_exit", "query_drop", "drop")}

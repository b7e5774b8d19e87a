"""Scores a checkpoint on one set of sentence pairs: full depth, exited, every layer, truncated.

    python stages/evaluate_sts.py --variant leap --seed 1 --set software

Reads models/<variant>-<seed>/, the teacher, and data/similarity/<set>.parquet; writes
evaluations/<variant>-<seed>/sts/<set>.json and <set>.parquet, a row a pair.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.pairs import read_pairs
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evaluate.similarity import measure_sts
from leap.evidence.evidence_file import record
from leap.exits import LeapEncoder
from leap.models.locate import locate


@stage("variant", "seed", "set")
def evaluate_sts(run: Run) -> dict[str, Any]:
    source, data = run.settings.pair_set(run.set), run.project.pairs(run.set)
    model, pairs = open_checkpoint(run), read_pairs(data)
    teacher = LeapEncoder(locate(run.settings.teacher).folder, str(model.device))
    chosen, vectors = run.settings.evaluation, run.project.vectors
    figures, rows = measure_sts(model, pairs, source.task, chosen, vectors, teacher)
    record(run, "sts", figures, [data], str(model.device), rows)
    return {key: figures[key] for key in ("spearman_full", "spearman_exit", "spearman_gain", "expected_layers")}

"""Scores a checkpoint on one set of sentence pairs: full depth, exited, every layer, truncated.

    python stages/evaluate_sts.py --variant leap --seed 1 --set software

Reads models/<variant>-<seed>/ and data/similarity/<set>.parquet; writes
evaluations/<variant>-<seed>/sts/<set>.json and <set>.parquet, a row a pair.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.pairs import read_pairs
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evaluate.similarity import measure_sts
from leap.evidence.evidence_file import record


@stage("variant", "seed", "set")
def evaluate_sts(run: Run) -> dict[str, Any]:
    source, data = run.settings.pair_set(run.set), run.project.pairs(run.set)
    model = open_checkpoint(run)
    figures, rows = measure_sts(model, read_pairs(data), source.task, run.settings.evaluation, run.project.vectors)
    record(run, "sts", figures, [data], str(model.device), rows)
    return {key: figures[key] for key in ("spearman_full", "spearman_exit", "spearman_gain", "expected_layers")}

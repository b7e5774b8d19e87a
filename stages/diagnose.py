"""Diagnoses a checkpoint's exits: its layers, the sentences that leave, strategies and rules side by side.

    python stages/diagnose.py --variant leap --seed 1

Reads models/<variant>-<seed>/, the teacher, and data/similarity/<primary_set>.parquet, whose unique sentences
are diagnosed; writes evaluations/<variant>-<seed>/diagnose.json and diagnose.parquet, a row a sentence.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.pairs import read_pairs
from leap.evaluate.examination import measure_exits
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evidence.evidence_file import record
from leap.models.locate import locate


@stage("variant", "seed")
def diagnose(run: Run) -> dict[str, Any]:
    chosen, data = run.settings.evaluation, run.project.pairs(run.settings.evaluation.primary_set)
    model = open_checkpoint(run)
    teacher = locate(run.settings.teacher).folder
    variant = run.settings.variant(run.variant)
    figures, rows = measure_exits(
        *(model, teacher, read_pairs(data), chosen, run.project.vectors),
        retrofitted=variant.checkpoint is None and variant.student.start.kind == "teacher",
    )
    record(run, "diagnose", figures, [data], str(model.device), rows)
    exits = {key: figures["exit"][key] for key in ("rate", "expected_layers", "similarity", "nn_at_10")}
    return {"verdict": figures["verdict"], **exits}

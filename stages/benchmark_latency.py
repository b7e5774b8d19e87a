"""Times a checkpoint: full depth, exits, checks without exits, every layer, and the teacher.

    python stages/benchmark_latency.py --variant leap --seed 1

Reads models/<variant>-<seed>/, the teacher, and data/similarity/<primary_set>.parquet, whose sentences are
encoded; writes evaluations/<variant>-<seed>/latency.json. The figures are this machine's: keep it idle meanwhile.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.pairs import read_pairs
from leap.evaluate.open_checkpoint import open_checkpoint
from leap.evidence.evidence_file import record
from leap.exits import LeapEncoder
from leap.latency.timing import latency_figures
from leap.models.locate import locate


@stage("variant", "seed")
def benchmark_latency(run: Run) -> dict[str, Any]:
    chosen, data = run.settings.evaluation, run.project.pairs(run.settings.evaluation.primary_set)
    model = open_checkpoint(run, run.settings.latency.device)
    sentences = read_pairs(data).sentences()
    teacher = LeapEncoder(locate(run.settings.teacher).folder, str(model.device))
    thetas = chosen.sweep.thresholds
    figures = latency_figures(
        model, sentences, model.rule, run.settings.latency, chosen.seed, teacher=teacher, thresholds=thetas
    )
    record(run, "latency", figures, [data], str(model.device))
    medians = {f"{row['path']}@{row['batch']}": row["ms_p50"] for row in figures["rows"]}
    return {"speed_up": figures["speed_up"], "ms_p50": medians}

"""Trains one variant of the student, or takes over a ready checkpoint where the variant names one.

    python stages/train.py --variant leap --seed 1

Reads data/sentences.parquet and data/teacher/. Writes students/<variant>-<seed>/ (a sentence-transformers folder)
and evaluations/<variant>-<seed>/training/ (history.jsonl, training.json). Ctrl-C or SIGTERM saves the state and
leaves; the same command goes on where it stopped.

With `train.processes` above 1 the stage starts itself again under torchrun. On several machines start it so
yourself on each, on a shared folder:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        stages/train.py --variant leap --seed 1
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.sentence_file import SentenceFile
from leap.models.device import resolve_device
from leap.tracking import Tracking
from leap.train.ranks import join_processes, start_processes
from leap.train.train_student import copy_checkpoint, train_student


@stage("variant", "seed")
def train(run: Run) -> dict[str, Any]:
    variant, checkpoint = run.settings.variant(run.variant), run.checkpoint
    if variant.checkpoint is not None:
        return copy_checkpoint(variant, checkpoint)
    start_processes(variant.train.processes)
    with join_processes(resolve_device(variant.train.device)) as ranks:
        text = SentenceFile(run.project.sentences)
        given = (variant, run.settings.teacher, run.seed, text, run.project.teacher, checkpoint)
        if not ranks.first:
            return {"rank": ranks.rank, **train_student(*given, lambda *_: None, ranks)}
        tracking = Tracking.open(run.settings)
        with tracking.training_run(run.variant, run.seed, variant.model_dump(mode="json")) as live:
            result = train_student(*given, live.metrics, ranks)
            live.finish(result["checkpoint"])
    return result

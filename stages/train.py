"""Trains one variant of the student, or takes over a ready checkpoint where the variant names one.

    python stages/train.py --variant leap --seed 1

Reads data/sentences.parquet and data/teacher/. Writes models/<variant>-<seed>/ (a sentence-transformers
folder with leap.json) and evaluations/<variant>-<seed>/training/ (history.jsonl, training.json). Ctrl-C or
SIGTERM saves the state and leaves; the same command goes on where it stopped.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.corpus import read_sentences
from leap.settings import Settings, VariantSettings
from leap.stage import run
from leap.tracking import Tracking, log_checkpoint
from leap.training.run import take_over, train_student


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed = settings.variant(arguments.variant), arguments.seed
    folder = Path("models") / f"{variant.name}-{seed}"
    record = Path("evaluations") / f"{variant.name}-{seed}" / "training"
    if variant.checkpoint is not None:
        result = take_over(variant, folder, record)
    else:
        result = _train(settings, variant, seed, folder, record)
    log_checkpoint(settings, variant.name, seed)
    return {"stage": "train", "variant": variant.name, "seed": seed, **result}


def _train(
    settings: Settings, variant: VariantSettings, seed: int, folder: Path, record: Path
) -> dict[str, Any]:
    sentences = read_sentences(Path("data/sentences.parquet"))
    tracking = Tracking.open(settings)
    with tracking.training_run(variant.name, seed, variant.model_dump(mode="json")) as live:
        result = train_student(
            variant,
            settings.teacher,
            seed,
            sentences,
            Path("data/teacher"),
            folder,
            record,
            live.metrics,
        )
        live.finish(result["checkpoint"])
    return result


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))

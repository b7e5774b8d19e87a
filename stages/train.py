"""Trains one variant of the student, or takes over a ready checkpoint where the variant names one.

    python stages/train.py --variant leap --seed 1

Reads data/sentences.parquet, data/held_out.parquet and data/teacher/. Writes models/<variant>-<seed>/ (a
sentence-transformers folder with leap.json, and calibration.json for strategy calibrated) and
evaluations/<variant>-<seed>/training/ (history.jsonl, training.json). Ctrl-C or SIGTERM saves the state and
leaves; the same command goes on where it stopped.

With `train.processes` above 1 the stage starts itself anew under torchrun. On several machines start it so
yourself on each, on a shared folder:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        stages/train.py --variant leap --seed 1
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from leap.calibration.held_out import calibrate_student, check_held_out
from leap.data.corpus import SentenceFile, read_sentences
from leap.exits.encoder import resolve_device
from leap.settings import Settings, VariantSettings
from leap.stage import run
from leap.tracking import Tracking, log_checkpoint
from leap.training.ranks import Ranks, joined
from leap.training.run import take_over, train_student


def main(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    variant, seed = settings.variant(arguments.variant), arguments.seed
    folder = Path("models") / f"{variant.name}-{seed}"
    record = Path("evaluations") / f"{variant.name}-{seed}" / "training"
    held_out = read_sentences(Path("data/held_out.parquet"))
    if variant.exit.calibration is not None:
        check_held_out(held_out, variant.exit.calibration)
    if variant.checkpoint is not None:
        result = take_over(variant, folder, record)
    else:
        if variant.train.processes > 1 and "RANK" not in os.environ:
            _under_torchrun(variant.train.processes)
        with joined(resolve_device(variant.train.device)) as ranks:
            result = _train(settings, variant, seed, folder, record, ranks)
        if not ranks.first:
            return {"stage": "train", "rank": ranks.rank, **result}
    # A ready checkpoint keeps the calibration that it came with, unless another is asked for.
    if variant.exit.calibration is not None or variant.checkpoint is None:
        calibrate_student(folder, held_out, variant.exit.calibration, variant.train.device)
    log_checkpoint(settings, variant.name, seed)
    return {"stage": "train", "variant": variant.name, "seed": seed, **result}


def _train(
    settings: Settings, variant: VariantSettings, seed: int, folder: Path, record: Path, ranks: Ranks
) -> dict[str, Any]:
    sentences = SentenceFile(Path("data/sentences.parquet"))
    given = (variant, settings.teacher, seed, sentences, Path("data/teacher"), folder, record)
    if not ranks.first:
        return train_student(*given, lambda *_: None, ranks)
    tracking = Tracking.open(settings)
    with tracking.training_run(variant.name, seed, variant.model_dump(mode="json")) as live:
        result = train_student(*given, live.metrics, ranks)
        live.finish(result["checkpoint"])
    return result


def _under_torchrun(processes: int) -> None:
    """Replaces this process by torchrun with the same command, which signals then reach."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={processes}", *sys.argv]
    os.execv(sys.executable, command)  # nosec B606  # no shell is what is wanted


if __name__ == "__main__":
    run(main, __doc__, ("variant", "seed"))

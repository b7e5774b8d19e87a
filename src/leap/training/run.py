"""One training from settings to saved folders."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from leap.errors import UserError
from leap.exits.encoder import resolve_device
from leap.exits.heads import FILE as HEADS
from leap.exits.rules import ExitRule
from leap.files import read_json, sha256_of, sha256_of_json, whole_folder, write_sealed
from leap.model.encoder import Encoder, EncoderConfig
from leap.model.find import CHANGING, WEIGHTS, check_files
from leap.model.locate import locate
from leap.model.student import save_student, start_student, student_tokenizer_folder
from leap.model.tokenizer import SentenceTokenizer
from leap.objective import objective
from leap.settings import VariantSettings
from leap.settings.sources import ModelSource
from leap.sums import FILE as SUMS
from leap.sums import write_sums
from leap.teacher import open_teacher
from leap.training.checkpoint import TrainingState
from leap.training.heads import fit_heads, pooled_layers
from leap.training.ranks import ALONE, Ranks
from leap.training.tokens import TokenizedText
from leap.training.trainer import Line, Trainer

log = logging.getLogger(__name__)


# The code that the weights depend on; a change elsewhere leaves a trained student as it is.
CODE = ("training", "objective", "model", "teacher", "one_thread.py", "calibration/least_squares.py")


def train_student(
    variant: VariantSettings,
    teacher_source: ModelSource,
    seed: int,
    sentences: Sequence[str],
    cache_folder: Path,
    folder: Path,
    record_folder: Path,
    on_line: Callable[[int, Line], None],
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Trains a variant and writes its two folders, each whole or not at all.

    A student that is already there and was made from the same settings, data and code is kept; only its exit
    rule is written anew. So changing theta costs no training.

    Args:
        variant: its settings.
        teacher_source: where the teacher lies.
        seed: of the student's start and the order of the batches.
        sentences: the training text.
        cache_folder: the teacher's cache of it.
        folder: models/<variant>-<seed>, for the student.
        record_folder: evaluations/<variant>-<seed>/training, for history.jsonl and training.json.
        on_line: called with every logged step, for a live tracker.
        ranks: the processes of this training; the first one writes.

    Returns:
        What training.json says: checkpoint (sha256 of the weights), steps, seconds, sentences_per_second.

    Raises:
        UserError: the start does not fit, the cache is another's, or a loss is not finite.
    """
    rule = ExitRule(**variant.exit.rule())
    identity = _identity(variant, seed, cache_folder)
    kept = _kept(folder, record_folder, identity, variant.train.heads)
    keep = variant.train.keep_checkpoints
    state = TrainingState(folder.with_name(f"{folder.name}.state"), identity, keep)
    if kept is not None:
        state.clear()  # a kill may have come between the record and this
        log.info("%s is already trained from these settings, data and code: kept", folder)
        write_sealed(folder / "leap.json", {"exit": asdict(rule)})
        return kept
    teacher = locate(teacher_source)
    device = ranks.device(resolve_device(variant.train.device))
    cache = open_teacher(cache_folder, sentences, teacher, device, variant.train.precision)
    tokenizer_folder = student_tokenizer_folder(variant.student, teacher.folder)
    tokenizer = SentenceTokenizer(tokenizer_folder, variant.train.max_length)
    text = TokenizedText.kept(cache_folder.with_name("tokens"), sentences, tokenizer)
    counts = text.counts(tokenizer.vocabulary)
    encoder, projection = start_student(variant.student, teacher.folder, counts, seed)
    loss = objective(variant.loss, variant.student.layers, variant.student.width, cache.width, ranks.gather)
    if projection is not None and variant.student.width != cache.width:
        with torch.no_grad():
            loss.projection.get_parameter("weight").copy_(projection)
    trainer = Trainer(encoder, loss, variant.train, text, sentences, cache, seed, device, ranks)
    log.info(
        "%s: %d sentences of %.1f tokens on average, %d steps on %s",
        *(variant.name, len(sentences), text.lengths.mean(), trainer.steps, device),
    )
    started = time.perf_counter()
    history = trainer.train(state, on_line)
    seconds = time.perf_counter() - started
    if not ranks.first:
        return {"steps": trainer.steps}
    with whole_folder(folder) as beside:
        save_student(encoder.cpu().eval(), beside, tokenizer_folder, variant.student.max_length, rule)
        if variant.train.heads:
            fit_heads(pooled_layers(Encoder.load(beside), text, variant.train.batch_size, device)).save(
                beside
            )
    result = {
        "checkpoint": sha256_of(folder / "model.safetensors"),
        "steps": trainer.steps,
        "seconds": round(seconds, 1),
        "sentences_per_second": round(median(line["sentences_per_second"] for line in history), 1),
        "loss": history[-1]["loss"],
    }
    _record(record_folder, history, result, identity)
    state.clear()
    return result


def take_over(variant: VariantSettings, folder: Path, record_folder: Path) -> dict[str, Any]:
    """Copies a variant's ready checkpoint to `folder`, with the variant's exit rule as its leap.json.

    Raises:
        UserError: the checkpoint cannot be had, or the exit rule does not fit its depth.
    """
    assert variant.checkpoint is not None
    located = locate(variant.checkpoint)
    rule = ExitRule(**variant.exit.rule())
    try:
        rule.check_depth(EncoderConfig.load(located.folder).layers)
    except ValueError as error:
        raise UserError(f"variants.{variant.name}.exit does not fit {located.folder}: {error}") from None
    with whole_folder(folder) as beside:
        ignored = shutil.ignore_patterns("*.bin", "*.onnx", ".*", "README.md")
        shutil.copytree(located.folder, beside, dirs_exist_ok=True, ignore=ignored)
        write_sealed(beside / "leap.json", {"exit": asdict(rule)})
        write_sums(beside, CHANGING)
    result = {"checkpoint": located.sha256, "steps": 0}
    _record(record_folder, [], result, {})
    return result


def _identity(variant: VariantSettings, seed: int, cache_folder: Path) -> dict[str, Any]:
    """What the weights are made from: they are the same wherever this is the same, on one machine."""
    settings = variant.model_dump(mode="json", exclude={"name", "description", "checkpoint", "exit"})
    cache = read_json(cache_folder / "manifest.json", "dvc repro cache_teacher")
    package = Path(__file__).parents[1]
    files = sorted(path for name in CODE for path in [package / name, *(package / name).glob("*.py")])
    return {
        "settings": sha256_of_json(settings),
        "seed": seed,
        # Not the stored layers: another variant may need more of them, which changes nothing here.
        "data": {key: cache[key] for key in ("teacher", "tokenizer", "sentences", "max_length")}
        | {"online": cache.get("online", False)},
        "code": sha256_of_json([sha256_of(path) for path in files if path.is_file()]),
    }


def _kept(folder: Path, record_folder: Path, identity: dict[str, Any], heads: bool) -> dict[str, Any] | None:
    record = record_folder / "training.json"
    if not record.exists():
        return None
    result: dict[str, Any] = read_json(record, "dvc repro train")
    made_from = result.pop("identity", None)
    result.pop("seal", None)
    if made_from != identity or result["history"] != sha256_of(record_folder / "history.jsonl"):
        return None
    if not (folder / SUMS).is_file() or (heads and not (folder / HEADS).is_file()):
        return None  # a kill may have come while DVC was putting files back from its cache
    try:
        check_files(folder)
    except UserError as error:
        log.warning("%s: it is trained anew", error)
        return None
    return result if sha256_of(folder / WEIGHTS) == result["checkpoint"] else None


def _record(
    folder: Path, history: list[dict[str, Any]], result: dict[str, Any], identity: dict[str, Any]
) -> None:
    with whole_folder(folder) as beside:
        lines = "".join(json.dumps(line) + "\n" for line in history)
        (beside / "history.jsonl").write_text(lines)
        result["history"] = sha256_of(beside / "history.jsonl")
        write_sealed(beside / "training.json", result | {"identity": identity})

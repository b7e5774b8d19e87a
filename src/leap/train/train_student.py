"""One training from settings to saved folders."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from leap.core.checksums import write_sums
from leap.core.files import read_json, sha256_of, sha256_of_json, whole_folder, write_with_checksum
from leap.core.project import Checkpoint, Place
from leap.core.settings import VariantSettings
from leap.core.settings.sources import ModelSource
from leap.core.settings.training import LossSettings, TeacherStart
from leap.core.source_code import code_of
from leap.models.device import resolve_device, training_precision
from leap.models.exit_heads import ExitHeads
from leap.models.find import CHANGING
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.models.saved_files import join_shards
from leap.train.objective import Objective, objective
from leap.train.ranks import ALONE, Ranks
from leap.train.start_heads import fit_start
from leap.train.student import save_student, start_student, student_tokenizer_folder
from leap.train.teacher import Teacher, open_teacher
from leap.train.tokens import TokenizedText
from leap.train.trainer import Line, Trainer
from leap.train.training_state import TrainingState

log = logging.getLogger(__name__)


# The code that the weights depend on: an interrupted training goes on only if it is the same.
CODE = ("train/**/*", "models/**/*", "core/one_thread.py")


def train_student(
    variant: VariantSettings,
    teacher_source: ModelSource,
    seed: int,
    sentences: Sequence[str],
    cache_folder: Path,
    place: Place | Checkpoint,
    on_line: Callable[[int, Line], None],
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Train a variant and write its two folders, each whole or not at all.

    Args:
        cache_folder: the teacher's cache of the sentences.
        place: where the student, its record and the states of the unfinished training go.
        on_line: called with every logged step, for a live tracker.
        ranks: the processes of this training; the first one writes.

    Returns:
        What training.json says: checkpoint (sha256 of the weights), steps, seconds, sentences_per_second.

    Raises:
        UserError: the start does not fit, the cache is another's, or a loss is not finite.
    """
    identity = training_identity(variant, seed, cache_folder)
    state = TrainingState(place.unfinished, identity, variant.train.keep_checkpoints)
    teacher = locate(teacher_source)
    device = ranks.device(resolve_device(variant.train.device))
    train = variant.train.model_copy(update={"precision": training_precision(variant.train.precision, device)})
    cache = open_teacher(cache_folder, sentences, teacher, device, train.precision)
    tokenizer_folder = student_tokenizer_folder(variant.student, teacher.folder)
    start = open_model(tokenizer_folder, variant.train.max_length)
    text = TokenizedText.cached(cache_folder.with_name("tokens"), sentences, start.tokenizer)
    counts = text.counts(start.encoder.config.vocabulary)
    encoder, projection = start_student(variant.student, teacher.folder, counts, seed)
    shape = variant.student.layers, variant.student.width, cache.width
    loss = objective(variant.loss, *shape, ranks.gather, seed)
    if projection is not None and variant.student.width != cache.width:
        with torch.no_grad():
            loss.projection.get_parameter("weight").copy_(projection)
    _start_heads(loss, variant, cache, len(sentences), device)
    trainer = Trainer(encoder, loss, train, text, sentences, cache, seed, device, ranks)
    log.info(
        "%s: %d sentences of %.1f tokens on average, %d steps on %s in %s",
        *(variant.name, len(sentences), text.lengths.mean(), trainer.steps, device, train.precision),
    )
    history = trainer.train(state, on_line)
    if not ranks.first:
        return {"steps": trainer.steps}
    with whole_folder(place.student) as temporary:
        # A retrofit's vectors at full depth are what they were, their length too.
        scaled = start.normalizes if isinstance(variant.student.start, TeacherStart) else True
        save_student(encoder.cpu().eval(), temporary, tokenizer_folder, variant.student.max_length, scaled)
        if (maps := loss.maps()) is not None:
            ExitHeads(maps).save(temporary)
            write_sums(temporary, CHANGING)
    result = {
        "checkpoint": sha256_of(place.student / "model.safetensors"),
        "steps": trainer.steps,
        "seconds": round(training_seconds(history, variant.train.batch_size), 1),
        "sentences_per_second": round(median(line["sentences_per_second"] for line in history), 1),
        "loss": history[-1]["loss"],
    }
    _record(place.training, history, result, identity)
    state.clear()
    return result


def _start_heads(
    loss: Objective, variant: VariantSettings, teacher: Teacher, sentences: int, device: torch.device
) -> None:
    """Fit the heads' start where the settings ask for one, before anything moves to the device."""
    heads = getattr(loss, "heads", None)
    if heads is not None and isinstance(variant.loss, LossSettings) and variant.loss.heads_start == "ridge":
        log.info("%s: exit heads start from ridge regression", variant.name)
        heads.begin(fit_start(teacher, sentences, device).cpu())


def training_seconds(history: Sequence[Line], batch_size: int) -> float:
    """Sum the time of all logged intervals, which a resumed training has from its beginning."""
    steps = [0.0, *(line["step"] for line in history)]
    return sum(
        (step - before) * batch_size / line["sentences_per_second"]
        for (before, step), line in zip(pairwise(steps), history, strict=True)
    )


def copy_checkpoint(variant: VariantSettings, place: Place | Checkpoint) -> dict[str, Any]:
    """Copy a variant's ready checkpoint to where a trained student would lie."""
    assert variant.checkpoint is not None
    located = locate(variant.checkpoint)
    with whole_folder(place.student) as temporary:
        ignored = shutil.ignore_patterns("*.bin", "*.onnx", ".*", "README.md")
        shutil.copytree(located.folder, temporary, dirs_exist_ok=True, ignore=ignored)
        join_shards(temporary)
        write_sums(temporary, CHANGING)
    result = {"checkpoint": sha256_of(place.student / "model.safetensors"), "steps": 0}
    _record(place.training, [], result, {})
    return result


def training_identity(variant: VariantSettings, seed: int, cache_folder: Path) -> dict[str, Any]:
    """Return what the weights are made from: they are the same wherever this is the same, on one machine."""
    cache = read_json(cache_folder / "manifest.json", "dvc repro cache_teacher")
    return {
        "settings": sha256_of_json(variant.training()),
        "seed": seed,
        # Not the stored layers: another variant may need more of them, which changes nothing here.
        "data": {key: cache[key] for key in ("teacher", "tokenizer", "sentences", "max_length")}
        | {"online": cache.get("online", False)},
        "code": sha256_of_json(code_of(*CODE)),
    }


def is_trained(place: Place | Checkpoint, identity: dict[str, Any]) -> bool:
    """Tell whether a student lies there that was made from the same settings, data and code."""
    record = place.training / "training.json"
    if not record.is_file():
        return False
    made: dict[str, Any] = read_json(record, "dvc repro train")
    weights = place.student / "model.safetensors"
    return made.get("identity") == identity and weights.is_file() and sha256_of(weights) == made["checkpoint"]


def _record(folder: Path, history: list[dict[str, Any]], result: dict[str, Any], identity: dict[str, Any]) -> None:
    with whole_folder(folder) as temporary:
        lines = "".join(json.dumps(line) + "\n" for line in history)
        (temporary / "history.jsonl").write_text(lines)
        result["history"] = sha256_of(temporary / "history.jsonl")
        write_with_checksum(temporary / "training.json", result | {"identity": identity})

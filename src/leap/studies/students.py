"""The models of a study: trained, kept from an earlier run, taken from the pipeline, or ready checkpoints."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leap.data.corpus import SentenceFile
from leap.files import sha256_of_json, whole_folder
from leap.model.encoder import EncoderConfig
from leap.model.locate import locate
from leap.objective.layer_map import needed_teacher_layers
from leap.settings import Settings, VariantSettings
from leap.settings.sources import ModelSource
from leap.teacher import build_cache
from leap.training.run import take_over, train_student

log = logging.getLogger(__name__)

WORK = Path("studies/work")


@dataclass(frozen=True)
class Student:
    """A model of a study: its settings, the seed of its training, its folder and its training's record."""

    variant: VariantSettings
    seed: int
    folder: Path
    record: Path


def students(settings: Settings, study: str) -> list[Student]:
    """All models of a study, every variant by every seed; trains what is not there yet.

    A model that was made from the same settings, data and code is kept, and where the pipeline has trained
    one of the same name so, that one is taken over. An interrupted training goes on where it stopped.

    Raises:
        UserError: the training text is missing, a checkpoint cannot be had, or a training fails.
    """
    block = settings.study(study)
    seeds = block.seeds or settings.seeds
    found = []
    for name, own in block.variants.items():
        variant = settings.study_variant(study, name)
        # A ready checkpoint is the same for every seed.
        for seed in seeds[:1] if variant.checkpoint is not None else seeds:
            place = WORK / study / f"{name}-{seed}"
            student = Student(variant, seed, place / "model", place / "training")
            if variant.checkpoint is not None:
                take_over(variant, student.folder, student.record)
            else:
                sentences = SentenceFile(Path("data/sentences.parquet"))[: block.sentences]
                _train(student, own.teacher or settings.teacher, sentences)
            found.append(student)
    return found


def _train(student: Student, teacher: ModelSource, sentences: Sequence[str]) -> None:
    if not student.folder.exists():
        _copy_from_pipeline(student)
    cache = _teacher_cache(student.variant, teacher, sentences)
    train_student(
        student.variant, teacher, student.seed, sentences, cache, student.folder, student.record, _quiet
    )


def _quiet(step: int, line: dict[str, float]) -> None:
    """A study's trainings are read from their records; no live tracker follows them."""


def _copy_from_pipeline(student: Student) -> None:
    """Copies what the pipeline trained under the same name; the training then keeps it or makes its own."""
    name = f"{student.variant.name}-{student.seed}"
    model, record = Path("models") / name, Path("evaluations") / name / "training"
    if (model / "model.safetensors").is_file() and (record / "training.json").is_file():
        for source, target in ((model, student.folder), (record, student.record)):
            with whole_folder(target) as beside:
                shutil.copytree(source, beside, dirs_exist_ok=True)


def _teacher_cache(variant: VariantSettings, source: ModelSource, sentences: Sequence[str]) -> Path:
    """The folder of the teacher's vectors of these sentences, shared by all studies that need them."""
    teacher = locate(source)
    depth = EncoderConfig.load(teacher.folder).layers
    layers = needed_teacher_layers(variant.student.layers, depth, variant.loss)
    key = [teacher.sha256, len(sentences), layers, variant.train.max_length]
    folder = WORK / "teachers" / sha256_of_json(key)[:16]
    build_cache(folder, teacher, sentences, layers, variant.train.max_length, variant.train.device)
    return folder

"""The models of a study: trained, kept from an earlier run, taken from the pipeline, or ready checkpoints."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leap.core.files import sha256_of_json, whole_folder
from leap.core.project import Project
from leap.core.settings import Settings, VariantSettings
from leap.core.settings.sources import ModelSource
from leap.data.sentence_file import SentenceFile
from leap.exits.calibrate.finish_model import finish_model
from leap.models.locate import locate
from leap.models.open_model import read_shape
from leap.train.objective.layer_map import needed_teacher_layers
from leap.train.teacher import build_cache
from leap.train.train_student import Place, copy_checkpoint, is_trained, train_student, training_identity

log = logging.getLogger(__name__)

WORK = Path("studies/work")


@dataclass(frozen=True)
class Student:
    """A model of a study: its settings, the seed of its training, and the folder of all its files."""

    variant: VariantSettings
    seed: int
    place: Path

    @property
    def student(self) -> Path:
        """The trained weights, as `train` leaves them."""
        return self.place / "student"

    @property
    def model(self) -> Path:
        """The student with its exit rule and heads, as `calibrate` leaves it."""
        return self.place / "model"

    @property
    def training(self) -> Path:
        """The record of its training."""
        return self.place / "training"

    @property
    def unfinished(self) -> Path:
        """The states of its training while that is not finished."""
        return self.place / "unfinished"


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
            student = Student(variant, seed, WORK / study / f"{name}-{seed}")
            sentences = SentenceFile(Path("data/sentences.parquet"))[: block.sentences]
            if variant.checkpoint is not None:
                copy_checkpoint(variant, student)
            else:
                _train(student, own.teacher or settings.teacher, sentences)
            without_calibration = variant.model_copy(
                update={"exit": variant.exit.model_copy(update={"calibration": None})}
            )
            finish_model(student.student, student.model, without_calibration, sentences, [])
            found.append(student)
    return found


def _train(student: Student, teacher: ModelSource, sentences: Sequence[str]) -> None:
    cache = _teacher_cache(student.variant, teacher, sentences)
    identity = training_identity(student.variant, student.seed, cache)
    for place in (student, Project().checkpoint(student.variant.name, student.seed)):
        if is_trained(place, identity):
            if place is not student:
                _copy(place, student)
            log.info("%s is already trained from these settings, data and code", student.place)
            return
    train_student(student.variant, teacher, student.seed, sentences, cache, student, _quiet)


def _copy(source: Place, target: Place) -> None:
    """Copies what the pipeline trained."""
    for one, two in ((source.student, target.student), (source.training, target.training)):
        with whole_folder(two) as temporary:
            shutil.copytree(one, temporary, dirs_exist_ok=True)


def _quiet(step: int, line: dict[str, float]) -> None:
    """A study's trainings are read from their records; no live tracker follows them."""


def _teacher_cache(variant: VariantSettings, source: ModelSource, sentences: Sequence[str]) -> Path:
    """The folder of the teacher's vectors of these sentences, shared by all studies that need them."""
    teacher = locate(source)
    depth = read_shape(teacher.folder).layers
    layers = needed_teacher_layers(variant.student.layers, depth, variant.loss)
    key = [teacher.sha256, len(sentences), layers, variant.train.max_length]
    folder = WORK / "teachers" / sha256_of_json(key)[:16]
    build_cache(folder, teacher, sentences, layers, variant.train.max_length, variant.train.device)
    return folder

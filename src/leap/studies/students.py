"""The models of a study: trained, of an earlier run, copied from the pipeline, or ready checkpoints."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of_json, sha256_of_sentences, whole_folder
from leap.core.project import Checkpoint, Place, Project
from leap.core.settings import Settings, VariantSettings
from leap.core.settings.sources import ModelSource
from leap.data.sentence_file import SentenceFile
from leap.exits.calibrate.finish_model import finish_model
from leap.models.locate import locate
from leap.models.open_model import read_shape
from leap.train.objective.layer_map import needed_teacher_layers
from leap.train.teacher.prepare import prepare_teacher
from leap.train.train_student import copy_checkpoint, is_trained, train_student, training_identity

log = logging.getLogger(__name__)

WORK = Path("studies/work")


@dataclass(frozen=True)
class Student:
    """A model of a study: its settings, the seed of its training, where that lies, and the finished model."""

    variant: VariantSettings
    seed: int
    place: Place
    model: Path


def students(settings: Settings, study: str) -> tuple[list[Student], dict[str, str]]:
    """Train all models of a study that are not there yet, every variant by every seed, and return them.

    A model that was made from the same settings, data and code is used again, and where the pipeline has trained
    one of the same name so, that one is copied. An interrupted training goes on where it stopped.

    Returns:
        The models, and why a ready checkpoint cannot be had, by its variant: the others are measured without it.

    Raises:
        UserError: the training text is missing, no checkpoint at all can be had, or a training fails.
    """
    block = settings.study(study)
    seeds = block.seeds or settings.seeds
    models: list[Student] = []
    left_out: dict[str, str] = {}
    for name, own in block.variants.items():
        variant = settings.study_variant(study, name)
        # A ready checkpoint is the same for every seed.
        for seed in seeds[:1] if variant.checkpoint is not None else seeds:
            root = WORK / study / f"{name}-{seed}"
            place = Place(root / "student", root / "training", root / "unfinished")
            student = Student(variant, seed, place, root / "model")
            sentences = SentenceFile(Path("data/sentences.parquet"))[: block.sentences]
            if variant.checkpoint is not None:
                try:
                    copy_checkpoint(variant, place)
                except UserError as error:
                    log.warning("%s: %s is left out: %s", study, name, error)
                    left_out[name] = str(error)
                    continue
            else:
                _train(student, own.teacher or settings.teacher, sentences)
            without_calibration = variant.model_copy(
                update={"exit": variant.exit.model_copy(update={"calibration": None})}
            )
            finish_model(place.student, student.model, without_calibration, sentences, [])
            models.append(student)
    if not models:
        raise UserError(
            f"no model of the study {study} can be had: {'; '.join(left_out.values())}; correct studies.{study}"
        )
    return models, left_out


def _train(student: Student, teacher: ModelSource, sentences: Sequence[str]) -> None:
    cache = _prepare_teacher(student.variant, teacher, sentences)
    identity = training_identity(student.variant, student.seed, cache)
    for source in (student.place, Project().checkpoint(student.variant.name, student.seed)):
        if is_trained(source, identity):
            if source is not student.place:
                _copy(source, student.place)
            log.info("%s is already trained from these settings, data and code", student.place.student)
            return
    train_student(student.variant, teacher, student.seed, sentences, cache, student.place, _quiet)


def _copy(source: Place | Checkpoint, target: Place) -> None:
    for one, two in ((source.student, target.student), (source.training, target.training)):
        with whole_folder(two) as temporary:
            shutil.copytree(one, temporary, dirs_exist_ok=True)


def _quiet(step: int, line: dict[str, float]) -> None:
    """A study's trainings are read from their records; no live tracker follows them."""


def _prepare_teacher(variant: VariantSettings, source: ModelSource, sentences: Sequence[str]) -> Path:
    """Return a folder with the teacher's vectors: the pipeline's where it serves, else one that studies share.

    With a pipeline whose teacher runs online, so it does here: nothing is stored twice, and the identity of a
    student that the pipeline has trained is the same.
    """
    teacher = locate(source)
    layers = needed_teacher_layers(variant.student.layers, read_shape(teacher.folder).layers, variant.loss)
    own = Project().teacher
    if (own / "manifest.json").is_file():
        have = read_json(own / "manifest.json", "dvc repro cache_teacher")
        wanted = (teacher.sha256, sha256_of_sentences(sentences), variant.train.max_length)
        same = tuple(have.get(key) for key in ("teacher", "sentences", "max_length")) == wanted
        if same and set(layers) <= set(have["layers"]):
            return own
    key = [teacher.sha256, len(sentences), layers, variant.train.max_length]
    folder = WORK / "teachers" / sha256_of_json(key)[:16]
    prepare_teacher(folder, source, sentences, [variant], variant.train)
    return folder

"""The teacher prepared for all variants at once: the layers that any of them reads, cached or online."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leap.core.settings import VariantSettings
from leap.core.settings.sources import ModelSource
from leap.core.settings.training import TrainSettings
from leap.core.spark import map_on_spark, uses_spark
from leap.models.locate import locate
from leap.models.open_model import read_shape
from leap.train.objective.layer_map import needed_teacher_layers
from leap.train.teacher.choice import run_online
from leap.train.teacher.online import write_online
from leap.train.teacher.teacher_cache import build_cache


def prepare_teacher(
    folder: Path,
    source: ModelSource,
    sentences: Sequence[str],
    variants: Sequence[VariantSettings],
    train: TrainSettings,
) -> dict[str, Any]:
    """Write the teacher's cache, or only its manifest where the teacher runs along with the students.

    `train` is the shared block, whose `teacher` and `device` hold for all variants. Returns the manifest.
    """
    teacher = locate(source)
    shape = read_shape(teacher.folder)
    needed = [needed_teacher_layers(item.student.layers, shape.layers, item.loss) for item in variants]
    layers = sorted({shape.layers}.union(*needed))
    longest = max((item.train.max_length for item in variants), default=train.max_length)
    if run_online(train.teacher, len(sentences), len(layers), shape.width):
        return write_online(folder, teacher, sentences, layers, longest)
    each = map_on_spark if uses_spark() else map
    return build_cache(folder, teacher, sentences, layers, longest, train.device, each)

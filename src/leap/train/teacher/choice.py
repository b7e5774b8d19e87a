"""Cached or online: one decision, taken by `cache_teacher` and recorded in the manifest."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from leap.core.errors import UserError
from leap.core.files import read_json, sha256_of_sentences
from leap.models.locate import Located
from leap.models.tokenizer import hash_tokenizer
from leap.train.teacher.interface import Teacher
from leap.train.teacher.online import OnlineTeacher
from leap.train.teacher.teacher_cache import TeacherCache

log = logging.getLogger(__name__)

# Above this a cache costs more than a teacher's forward pass: bert-large on 1.5 M sentences takes 37 GB.
LARGEST_CACHE = 20 * 10**9


def run_online(mode: Literal["auto", "cached", "online"], rows: int, layers: int, width: int) -> bool:
    """Decide whether the teacher runs online; the log says so, and why. `mode` is `train.teacher`, `width` D_t."""
    size = rows * layers * width * 2
    online = mode == "online" or (mode == "auto" and size > LARGEST_CACHE)
    why = f"train.teacher is {mode}, and {rows} sentences x {layers} layers take {size / 1e9:.2f} GB as a cache"
    log.info("the teacher %s: %s", "runs online" if online else "is cached", why)
    return online


def open_teacher(
    folder: Path, sentences: Sequence[str], teacher: Located, device: torch.device, precision: str
) -> Teacher:
    """Open the teacher that `cache_teacher` prepared in `folder`.

    Raises:
        UserError: it was prepared from another teacher or text, or a shard is missing or changed.
    """
    manifest = read_json(folder / "manifest.json", "dvc repro cache_teacher")
    if not isinstance(manifest, dict) or "checksum" not in manifest:
        raise UserError(f"{folder}/manifest.json has no checksum: `dvc repro cache_teacher` makes the right one")
    expected = {
        "teacher": teacher.sha256,
        "tokenizer": hash_tokenizer(teacher.folder),
        "sentences": sha256_of_sentences(sentences),
    }
    for key, wanted in expected.items():
        if manifest[key] != wanted:
            raise UserError(
                f"{folder}/manifest.json: {key} is {manifest[key][:12]}…, expected {wanted[:12]}…: the "
                "cache belongs to another run; `dvc repro cache_teacher` makes the right one"
            )
    if manifest.get("online"):
        return OnlineTeacher(teacher, sentences, manifest, device, precision, folder.with_name("tokens"))
    return TeacherCache(folder, manifest)

"""Computes the teacher's pooled layers of every training sentence, once for all variants.

    python stages/cache_teacher.py

Reads data/sentences.parquet, writes data/teacher/. An interrupted run goes on at the first missing shard.
With `train.teacher: online` (or auto, and a cache above 20 GB) only the manifest is written.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.corpus import SentenceFile
from leap.model.encoder import EncoderConfig
from leap.model.locate import locate
from leap.objective.layer_map import needed_teacher_layers
from leap.settings import Settings
from leap.stage import run
from leap.teacher import build_cache, run_online, write_online


def main(settings: Settings, _: argparse.Namespace) -> dict[str, Any]:
    teacher = locate(settings.teacher)
    depth = EncoderConfig.load(teacher.folder).layers
    variants = [settings.variant(name) for name in settings.variants]
    trained = [variant for variant in variants if variant.checkpoint is None]
    layers = {depth}.union(
        *(needed_teacher_layers(variant.student.layers, depth, variant.loss) for variant in trained)
    )
    folder, sentences = Path("data/teacher"), SentenceFile(Path("data/sentences.parquet"))
    longest = max((variant.train.max_length for variant in trained), default=settings.train.max_length)
    width = EncoderConfig.load(teacher.folder).width
    if run_online(settings.train.teacher, len(sentences), len(layers), width):
        manifest = write_online(folder, teacher, sentences, sorted(layers), longest)
    else:
        manifest = build_cache(folder, teacher, sentences, sorted(layers), longest, settings.train.device)
    return {
        "stage": "cache_teacher",
        "rows": manifest["rows"],
        "layers": manifest["layers"],
        "shards": len(manifest["shards"]),
    }


if __name__ == "__main__":
    run(main, __doc__)

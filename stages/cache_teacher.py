"""Computes the teacher's pooled layers of every training sentence, once for all variants.

    python stages/cache_teacher.py

Reads data/sentences.parquet, writes data/teacher/. An interrupted run goes on at the first missing shard.
With `train.teacher: online` (or auto, and a cache above 20 GB) only the manifest is written.
"""

from typing import Any

from leap.core.stage import Run, stage
from leap.data.sentence_file import SentenceFile
from leap.train.teacher.prepare import prepare_teacher


@stage()
def cache_teacher(run: Run) -> dict[str, Any]:
    variants = [run.settings.variant(name) for name in run.settings.variants]
    manifest = prepare_teacher(
        run.project.teacher,
        run.settings.teacher,
        SentenceFile(run.project.sentences),
        [variant for variant in variants if variant.checkpoint is None],
        run.settings.train,
    )
    return {"rows": manifest["rows"], "layers": manifest["layers"], "shards": len(manifest["shards"])}

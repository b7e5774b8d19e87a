"""Extracts the evaluation sets, then the training sentences without any evaluation text.

    python stages/extract.py

Writes data/similarity/, data/retrieval/, data/sentences.parquet, data/held_out.parquet (same form, for
calibration) and data/extract.json.
"""

from pathlib import Path
from typing import Any

from leap.core.files import whole_folder, write_with_checksum
from leap.core.spark import uses_spark
from leap.core.stage import Run, stage
from leap.data.cleaning import EvaluationTexts
from leap.data.evaluation_texts import evaluation_texts
from leap.data.pairs import write_pairs
from leap.extract.collections import write_collection
from leap.extract.sample import write_sample
from leap.extract.training_texts import text_parts, training_texts
from leap.extract.unique_texts import COUNTS


@stage()
def extract(run: Run) -> dict[str, Any]:
    settings, project, data = run.settings, run.project, run.settings.data
    folder = Path(data.folder)
    # The sets appear only when the sentences, written last, are there too.
    with whole_folder(project.similarity) as similarity, whole_folder(project.retrieval) as retrieval:
        pairs = {
            name: write_pairs(name, source, folder, similarity / f"{name}.parquet")
            for name, source in settings.similarity.items()
        }
        collections = {
            name: write_collection(name, source, folder, data.seed, retrieval / name)
            for name, source in settings.retrieval.items()
        }
        counts = write_sample(
            text_parts(data.sources, folder) if uses_spark() else [training_texts(data.sources, folder)],
            project.sentences,
            seed=data.seed,
            min_characters=data.min_characters,
            max_characters=data.max_characters,
            max_sentences=data.max_sentences,
            passages=data.passages,
            held_out=(data.held_out, project.held_out),
            split=data.split,
            evaluation=EvaluationTexts(evaluation_texts(similarity, retrieval, pairs, collections)),
        )
    by_source = {name: counts[name] for name in data.sources if name in counts}
    total = {key: sum(count[key] for count in by_source.values()) for key in COUNTS}
    found = {**total, "sources": by_source, "similarity": pairs, "retrieval": collections}
    write_with_checksum(project.data / "extract.json", found)
    return total

"""Extracts the evaluation sets, then the training sentences without any evaluation text.

python stages/extract.py

Writes data/similarity/, data/retrieval/, data/sentences.parquet, data/held_out.parquet (same form, for
calibration) and data/extract.json.
"""

import argparse
from pathlib import Path
from typing import Any

from leap.data.collections import write_collection
from leap.data.evaluation_texts import evaluation_texts
from leap.data.pairs import write_pairs
from leap.data.sentences import COUNTS, evaluation_prints, write_sample
from leap.data.training_texts import training_texts
from leap.files import whole_folder, write_sealed
from leap.settings import Settings
from leap.stage import run

DATA = Path("data")


def extract(settings: Settings, _: argparse.Namespace) -> dict[str, Any]:
    data = settings.data
    folder = Path(data.folder)
    # The sets appear only when the sentences, written last, are there too.
    with whole_folder(DATA / "similarity") as similarity, whole_folder(DATA / "retrieval") as retrieval:
        pairs = {
            name: write_pairs(name, source, folder, similarity / f"{name}.parquet")
            for name, source in settings.similarity.items()
        }
        collections = {
            name: write_collection(name, source, folder, data.seed, retrieval / name)
            for name, source in settings.retrieval.items()
        }
        by_source = write_sample(
            training_texts(data.sources, folder),
            DATA / "sentences.parquet",
            seed=data.seed,
            min_characters=data.min_characters,
            max_characters=data.max_characters,
            max_sentences=data.max_sentences,
            passages=data.passages,
            held_out=(data.held_out, DATA / "held_out.parquet"),
            evaluation=evaluation_prints(evaluation_texts(similarity, retrieval, pairs, collections)),
        )
    total = {key: sum(count[key] for count in by_source.values()) for key in COUNTS}
    counts = {**total, "sources": by_source, "similarity": pairs, "retrieval": collections}
    write_sealed(DATA / "extract.json", counts)
    return {"stage": "extract", **total}


if __name__ == "__main__":
    run(extract, __doc__)

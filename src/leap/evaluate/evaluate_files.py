"""`leap evaluate`: any model on scored pairs and a BEIR folder of one's own, by the pipeline's own figures.

leap evaluate models/leap-1 --pairs pairs.csv --collection beir/scifact
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leap.core.errors import UserError
from leap.core.files import must_be_new, write_json
from leap.core.grid import Grid
from leap.core.settings.sources import LocalCollection, LocalPairs
from leap.data.beir import read_collection
from leap.data.pairs import read_pairs, write_pairs
from leap.evaluate.retrieval import measure_retrieval
from leap.evaluate.shipped_settings import shipped_settings
from leap.evaluate.similarity import measure_sts
from leap.exits import LeapEncoder
from leap.extract.collections import write_collection

MARK = '"kind": "leap evaluate"'


def run_evaluate(
    name: str,
    pairs: Path | None,
    called: list[str],
    task: str,
    collection: Path | None,
    split: str,
    skip_own_id: bool,
    output: Path | None,
    device: str,
) -> Iterator[str]:
    """Measure a model on what is given, and yield a table of each; all figures go to `output`, where there is one.

    Raises:
        UserError: nothing is given, the output exists, or the model or a file cannot be used.
    """
    if pairs is None and collection is None:
        raise UserError("nothing to evaluate on: give --pairs FILE, --collection FOLDER, or both")
    if len(called) != 3 or task not in ("similarity", "duplicates"):
        raise UserError("--columns takes three names with commas between them, --task similarity or duplicates")
    if output is not None:
        must_be_new(output, mark=MARK)
    model = LeapEncoder(name, device)
    figures: dict[str, Any] = {"kind": "leap evaluate", "model": name, "exit_rule": vars(model.rule)}
    if pairs is not None:
        mapped = dict(zip(("sentence1", "sentence2", "score"), called, strict=True))
        figures["pairs"] = evaluate_pairs(model, pairs, mapped, task)
        yield sts_table(figures["pairs"]).text()
    if collection is not None:
        figures["collection"] = evaluate_collection(model, collection, split, skip_own_id)
        yield retrieval_table(figures["collection"]).text()
    if output is not None:
        write_json(output, figures)


def evaluate_pairs(model: LeapEncoder, file: Path, columns: dict[str, str], task: str) -> dict[str, Any]:
    """Measure a model, with its own rule, on a file of scored pairs: what sts/<set>.json holds (docs/formats.md).

    Args:
        file: csv, tsv, jsonl or parquet.
        columns: the names of the columns sentence1, sentence2 and score, where they are others.
        task: similarity (scores of 0 to 5) or duplicates (0 or 1).

    Raises:
        UserError: the file is not scored pairs.
    """
    if not file.is_file():
        raise UserError(f"{file} is not a file: name scored pairs as csv, tsv, jsonl or parquet")
    source = LocalPairs.model_validate({"kind": "local", "path": file.name, "task": task, "columns": columns})
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "pairs.parquet"
        write_pairs(file.stem, source, file.absolute().parent, target)
        return measure_sts(model, read_pairs(target), source.task, shipped_settings(), Path(scratch))[0]


def evaluate_collection(model: LeapEncoder, folder: Path, split: str, skip_own_id: bool) -> dict[str, Any]:
    """Measure a model, with its own rule, on a BEIR folder: what retrieval/<set>.json holds (docs/formats.md).

    Args:
        folder: corpus, queries and qrels as jsonl, tsv or parquet.
        split: of the judgements.
        skip_own_id: never rank the document whose id is the query's.

    Raises:
        UserError: the folder is not a collection.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name one with corpus, queries and qrels, as BEIR has them")
    place = folder.absolute()
    source = LocalCollection(kind="local", path=place.name, split=split, skip_own_id=skip_own_id)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "collection"
        write_collection(place.name, source, place.parent, shipped_settings().seed, target)
        return measure_retrieval(model, read_collection(target), skip_own_id, shipped_settings(), Path(scratch))[0]


def sts_table(figures: dict[str, Any]) -> Grid:
    """Tabulate Spearman at full depth and with exits, with 95 % intervals."""
    gain = "exits over one depth for all"
    rows = [
        ("full depth", *_cells(figures, "spearman_full", "ci95_full"), "all", str(figures["n"])),
        (
            "exits",
            *_cells(figures, "spearman_exit", "ci95"),
            f"{figures['expected_layers']:.2f}",
            str(figures["n"]),
        ),
        (gain, *_cells(figures, "spearman_gain", "spearman_gain_ci95"), "", ""),
    ]
    return Grid(("pairs", "Spearman", "95 % interval", "layers", "n"), rows)


def retrieval_table(figures: dict[str, Any]) -> Grid:
    """Tabulate nDCG@10 in all modes with 95 % intervals."""
    names = {"full": "both at full depth", "query_exit": "queries exit, index at full depth", "exit": "both exit"}
    rows = []
    for mode, name in names.items():
        cells = _cells(figures, f"ndcg_at_10_{mode}", f"ndcg_at_10_{mode}_ci95")
        rows.append((name, *cells, f"{figures[f'recall_at_100_{mode}']:.4f}", str(figures["n_queries"])))
    return Grid(("collection", "nDCG@10", "95 % interval", "recall@100", "queries"), rows)


def _cells(figures: dict[str, Any], value: str, interval: str) -> tuple[str, str]:
    low, high = figures[interval]
    return f"{figures[value]:.4f}", f"{low:.4f} to {high:.4f}"

"""Retrieval collections in the form of BEIR (Thakur et al. 2021): corpus, queries, relevance judgements."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.data.package_collection import docstring_collection
from leap.data.sentences import clean
from leap.data.tables import Row, file_rows, inside
from leap.errors import UserError
from leap.files import whole_folder
from leap.hub import fetch, matching
from leap.settings.sources import HubCollection, LocalCollection, RetrievalSource

ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
JUDGED_ENDINGS = (".tsv", ".jsonl", ".parquet", ".tsv.gz", ".jsonl.gz")


@dataclass(frozen=True)
class Collection:
    """A collection for evaluation.

    Attributes:
        corpus: document id to its text, the title before it as BEIR joins them.
        queries: query id to its text; only queries that have judgements.
        qrels: query id to the judged documents' grades. A judged document may be missing from the corpus: it
            still counts in the ideal ranking, as in BEIR.
    """

    corpus: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def write_collection(
    name: str, source: RetrievalSource, folder: Path, seed: int, target: Path
) -> dict[str, int]:
    """Writes a collection in BEIR form; returns how many documents, queries and judgements it has.

    Args:
        name: of the collection, for messages.
        source: hub files, a local folder, or docstrings of packages.
        folder: data.folder, under which local paths lie.
        seed: of the choice among docstrings.
        target: the folder to write: `corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`.

    Raises:
        UserError: files or columns are missing, an id is double, a judged query has no text.
    """
    if isinstance(source, HubCollection | LocalCollection):
        paths = _hub(source) if isinstance(source, HubCollection) else _local(source, folder)
        documents, queries = _texts(paths[0]), _texts(paths[1])
        qrels = _judgements(paths[2])
    else:
        documents, queries, qrels = docstring_collection(name, source, seed)
    missing = sorted(qrels.keys() - queries.keys())
    if missing:
        raise UserError(
            f"retrieval.{name}: {len(missing)} judged queries have no text, for example {missing[0]!r}"
        )
    judged = {key: queries[key] for key in queries if key in qrels}
    with whole_folder(target) as beside:
        _write_jsonl(beside / "corpus.jsonl", documents)
        _write_jsonl(beside / "queries.jsonl", judged)
        (beside / "qrels").mkdir()
        lines = [f"{query}\t{key}\t{grade}\n" for query in judged for key, grade in qrels[query].items()]
        text = "query-id\tcorpus-id\tscore\n" + "".join(lines)
        (beside / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
    return {"documents": len(documents), "queries": len(judged), "judgements": len(lines)}


def read_collection(folder: Path) -> Collection:
    """Reads a collection that `write_collection` wrote.

    Raises:
        UserError: a file is missing or damaged.
    """
    paths = [folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is missing: `dvc repro extract` writes it")
    qrels = _judgements(paths[2])
    queries = {key: text for key, (_, text) in _texts(paths[1]).items() if key in qrels}
    corpus = {key: f"{title} {text}".strip() for key, (title, text) in _texts(paths[0]).items()}
    return Collection(corpus, queries, qrels)


def _hub(source: HubCollection) -> list[Path]:
    patterns = (source.corpus, source.queries, source.qrels)
    root = fetch(source.repo, source.revision, patterns, "dataset", required=patterns)
    paths: list[Path] = []
    for pattern in patterns:
        found = matching(root, pattern)
        if len(found) != 1:
            raise UserError(
                f"dataset {source.repo} at commit {source.revision}: expected one file {pattern!r}, "
                f"found {len(found)}"
            )
        paths += found
    return paths


def _local(source: LocalCollection, folder: Path) -> list[Path]:
    root = folder / inside(source.path)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: it must hold corpus, queries and qrels; see data.folder")
    return [
        _first(root, [f"corpus{ending}" for ending in ENDINGS]),
        _first(root, [f"queries{ending}" for ending in ENDINGS]),
        _first(
            root,
            [f"{qrels}{ending}" for qrels in (f"qrels/{source.split}", "qrels") for ending in JUDGED_ENDINGS],
        ),
    ]


def _first(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (root / name).is_file():
            return root / name
    raise UserError(f"{root} has none of {', '.join(names)}")


def _texts(path: Path) -> dict[str, tuple[str, str]]:
    """Id to title and text."""
    found: dict[str, tuple[str, str]] = {}
    for row in file_rows(path, ("_id", "text"), optional=("title",)):
        identity, text, title = row.values
        key = _id(identity, "_id", row)
        if key in found:
            raise UserError(f"{row.file}, row {row.number}: _id {key!r} was there before, ids must be unique")
        if not isinstance(text, str):
            raise UserError(f"{row.file}, row {row.number}, text: expected text, found {text!r}")
        found[key] = clean(title or ""), clean(text)
    return found


def _judgements(path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for row in file_rows(path, ("query-id", "corpus-id", "score")):
        query, document = _id(row.values[0], "query-id", row), _id(row.values[1], "corpus-id", row)
        grades = qrels.setdefault(query, {})
        if document in grades:
            raise UserError(
                f"{row.file}, row {row.number}: query {query!r} and document {document!r} are judged twice"
            )
        grades[document] = _grade(row)
    return qrels


def _id(value: Any, column: str, row: Row) -> str:
    key = str(value).strip() if value is not None else ""
    if not key or any(character in key for character in "\t\r\n"):
        raise UserError(f"{row.file}, row {row.number}, {column}: expected an id, found {value!r}")
    return key


def _grade(row: Row) -> int:
    value = row.values[2]
    try:
        grade = float(value)
    except (TypeError, ValueError):
        grade = -0.5
    if not grade.is_integer():
        raise UserError(f"{row.file}, row {row.number}, score: expected a whole number, found {value!r}")
    return int(grade)


def _write_jsonl(path: Path, texts: dict[str, tuple[str, str]]) -> None:
    records: Iterable[dict[str, str]] = (
        {"_id": key, "title": title, "text": text} for key, (title, text) in texts.items()
    )
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)

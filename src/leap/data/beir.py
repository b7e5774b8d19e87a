"""Retrieval collections in the form of BEIR (Thakur et al. 2021): corpus, queries, relevance judgements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leap.core.checksums import FILE as SUMS
from leap.core.checksums import check_sums
from leap.core.errors import UserError
from leap.data.cleaning import clean
from leap.data.tables import Row, file_rows


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


def read_collection(folder: Path) -> Collection:
    """Reads a collection that `leap.extract.collections.write_collection` wrote.

    Raises:
        UserError: a file is missing or was changed after it was written.
    """
    paths = [folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"]
    for path in (*paths, folder / SUMS):
        if not path.is_file():
            raise UserError(f"{path} is missing: `dvc repro extract` writes it")
    check_sums(folder, "delete the folder, and `dvc repro extract` writes it anew")
    qrels = read_judgements(paths[2])
    queries = {key: text for key, (_, text) in read_texts(paths[1]).items() if key in qrels}
    corpus = {key: f"{title} {text}".strip() for key, (title, text) in read_texts(paths[0]).items()}
    return Collection(corpus, queries, qrels)


def read_texts(path: Path) -> dict[str, tuple[str, str]]:
    """Id to title and text, of a corpus or of queries.

    Raises:
        UserError: a column is missing, an id is double or empty, a text is not text.
    """
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


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Query id to document id to grade.

    Raises:
        UserError: a column is missing, a grade is not a whole number, a pair is judged twice.
    """
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
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # pandas' way to hold whole numbers beside a missing one
    key = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
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

"""Retrieval collections in the form of BEIR (Thakur et al. 2021): corpus, queries, relevance judgements."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from leap.core.checksums import FILE as SUMS
from leap.core.checksums import check_sums
from leap.core.errors import UserError
from leap.core.settings.sources import LocalCollection
from leap.data.cleaning import clean
from leap.data.tables import Row, file_rows, inside

ENDINGS = (".jsonl", ".jsonl.gz", ".ndjson", ".parquet")
JUDGED_ENDINGS = (".tsv", ".jsonl", ".parquet", ".tsv.gz", ".jsonl.gz", ".ndjson")


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
    """Read a collection that `leap.extract.collections.write_collection` wrote.

    Raises:
        UserError: a file is missing or was changed after it was written.
    """
    paths = [folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv"]
    for path in (*paths, folder / SUMS):
        if not path.is_file():
            raise UserError(f"{path} is missing: `dvc repro extract` writes it")
    check_sums(folder, "delete the folder, and `dvc repro extract` writes it again")
    qrels = read_judgements(paths[2])
    queries = {key: text for key, (_, text) in read_texts(paths[1]).items() if key in qrels}
    corpus = {key: f"{title} {text}".strip() for key, (title, text) in read_texts(paths[0]).items()}
    return Collection(corpus, queries, qrels)


def collection_files(source: LocalCollection, folder: Path) -> list[Path]:
    """Find corpus, queries and judgements of a folder in BEIR form; refuse one that lacks any."""
    root = folder / inside(source.path)
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: it must hold corpus, queries and qrels; see data.folder")
    return [
        _first(root, [f"corpus{ending}" for ending in ENDINGS]),
        _first(root, [f"queries{ending}" for ending in ENDINGS]),
        _first(
            root, [f"{qrels}{ending}" for qrels in (f"qrels/{source.split}", "qrels") for ending in JUDGED_ENDINGS]
        ),
    ]


def _first(root: Path, names: Sequence[str]) -> Path:
    """The first of these files that is there, in whatever case."""
    there = {
        file.relative_to(root).as_posix().lower(): file for file in sorted(root.glob("**/*")) if file.is_file()
    }
    for name in names:
        if name.lower() in there:
            return there[name.lower()]
    raise UserError(f"{root} has none of {', '.join(names)}: a collection needs one of them")


def read_texts(path: Path, most: int | None = None) -> dict[str, tuple[str, str]]:
    """Read a corpus or queries, or its first rows: id to title and text, either of which may be empty.

    Raises:
        UserError: a column is missing, an id is double or empty, a text is not text, there are no rows.
    """
    texts: dict[str, tuple[str, str]] = {}
    for row in islice(file_rows(path, ("_id", "text"), optional=("title",)), most):
        key = _id(row, 0, "_id")
        if key in texts:
            raise UserError(
                f"{row.file}, row {row.number}: _id {key!r} was there before: give every text an id of its own"
            )
        texts[key] = clean(row.text(2, "title")), clean(row.text(1, "text"))
    return texts


def read_judgements(path: Path, most: int | None = None) -> dict[str, dict[str, int]]:
    """Read relevance judgements: query id to document id to grade.

    Raises:
        UserError: a column is missing, a grade is not a whole number, a pair is judged twice.
    """
    qrels: dict[str, dict[str, int]] = {}
    for row in islice(file_rows(path, ("query-id", "corpus-id", "score")), most):
        query, document = _id(row, 0, "query-id"), _id(row, 1, "corpus-id")
        grades = qrels.setdefault(query, {})
        if document in grades:
            raise UserError(
                f"{row.file}, row {row.number}: query {query!r} and document {document!r} are judged twice: "
                "leave one of the rows"
            )
        grades[document] = _grade(row)
    return qrels


def _id(row: Row, place: int, column: str) -> str:
    value = row.values[place]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # how pandas holds whole numbers when one is missing
    key = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    # No controls, which a tsv could not hold, and no half of a surrogate pair, which no file can.
    if not key or any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in key):
        raise row.error(column, "an id", value)
    return key


def _grade(row: Row) -> int:
    value = row.values[2]
    try:
        grade = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        grade = math.nan
    if not grade.is_integer():
        raise row.error("score", "a whole number", value)
    return int(grade)

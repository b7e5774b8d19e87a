"""Making a retrieval collection in BEIR's form: from the hub, a local folder, or docstrings."""

import json
import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from leap.core.checksums import write_sums
from leap.core.errors import UserError
from leap.core.files import whole_folder
from leap.core.hub import fetch, find_matching
from leap.core.settings.sources import HubCollection, LocalCollection, RetrievalSource
from leap.data.beir import collection_files, read_judgements, read_texts
from leap.extract.package_collection import docstring_collection

log = logging.getLogger(__name__)


def write_collection(name: str, source: RetrievalSource, folder: Path, seed: int, target: Path) -> dict[str, int]:
    """Write a collection in BEIR form; return how many documents, queries and judgements it has.

    Args:
        source: hub files, a local folder, or docstrings of packages.
        folder: data.folder, under which local paths lie.
        seed: of the choice among docstrings.
        target: the folder to write: `corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`.

    Raises:
        UserError: files or columns are missing, an id is double, a judged query has no text.
    """
    if isinstance(source, HubCollection | LocalCollection):
        paths = _hub(source) if isinstance(source, HubCollection) else collection_files(source, folder)
        documents, queries = read_texts(paths[0]), read_texts(paths[1])
        qrels = read_judgements(paths[2])
    else:
        documents, queries, qrels = docstring_collection(name, source, seed)
    missing = sorted(qrels.keys() - queries.keys())
    if missing:
        raise UserError(
            f"retrieval.{name}: {len(missing)} judged queries have no text, for example {missing[0]!r}: "
            "queries and qrels must name queries alike"
        )
    judged = {key: queries[key] for key in queries if key in qrels}
    _check_documents(name, documents.keys(), {key for grades in qrels.values() for key in grades})
    with whole_folder(target) as temporary:
        _write_jsonl(temporary / "corpus.jsonl", documents)
        _write_jsonl(temporary / "queries.jsonl", judged)
        (temporary / "qrels").mkdir()
        lines = [f"{query}\t{key}\t{grade}\n" for query in judged for key, grade in qrels[query].items()]
        text = "query-id\tcorpus-id\tscore\n" + "".join(lines)
        (temporary / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
        write_sums(temporary)
    return {"documents": len(documents), "queries": len(judged), "judgements": len(lines)}


def _check_documents(name: str, documents: Collection[str], judged: set[str]) -> None:
    """Judged documents not in the corpus count in the ideal ranking, as in BEIR; all of them is a mistake."""
    missing = sorted(judged.difference(documents))
    if judged and len(missing) == len(judged):
        raise UserError(
            f"retrieval.{name}: none of the {len(judged)} judged documents is in the corpus, for example "
            f"{missing[0]!r}: qrels and corpus must name documents alike"
        )
    if missing:
        log.warning(
            "retrieval.%s: %d of %d judged documents are not in the corpus, for example %r",
            *(name, len(missing), len(judged), missing[0]),
        )


def _hub(source: HubCollection) -> list[Path]:
    patterns = (source.corpus, source.queries, source.qrels)
    root = fetch(source.repo, source.revision, patterns, "dataset", required=patterns)
    paths: list[Path] = []
    for pattern in patterns:
        matches = find_matching(root, pattern)
        if len(matches) != 1:
            raise UserError(
                f"dataset {source.repo} at commit {source.revision}: expected one file {pattern!r}, "
                f"found {len(matches)}: correct the pattern"
            )
        paths += matches
    return paths


def _write_jsonl(path: Path, texts: dict[str, tuple[str, str]]) -> None:
    records: Iterable[dict[str, str]] = (
        {"_id": key, "title": title, "text": text} for key, (title, text) in texts.items()
    )
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)

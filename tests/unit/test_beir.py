"""Collections in BEIR form, from files and from docstrings."""

import json
from pathlib import Path

import pandas as pd
import pytest

from leap.core.errors import UserError
from leap.core.settings.sources import HubCollection, LocalCollection, PackageCollection
from leap.data.beir import read_collection
from leap.extract import package_collection
from leap.extract.collections import write_collection
from leap.extract.docstrings import Docstring
from leap.extract.package_collection import docstring_collection

CORPUS = [("1", "A title", "The first  text."), ("2", "", "The second text."), ("q1", "", "A third text.")]
QUERIES = [("q1", "First query?"), ("q2", "Second query?"), ("q3", "Not judged?")]
QRELS = [("q1", "1", 2), ("q1", "gone", 1), ("q2", "2", 1)]
LOCAL = LocalCollection(kind="local", path="set")


def write_jsonl(folder: Path, name: str = "set") -> Path:
    root = folder / name
    (root / "qrels").mkdir(parents=True)
    corpus = [{"_id": key, "title": title, "text": text, "metadata": {}} for key, title, text in CORPUS]
    (root / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)), encoding="utf-8")
    queries = [{"_id": key, "text": text} for key, text in QUERIES]
    (root / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in QRELS)]
    (root / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def write_parquet(folder: Path) -> None:
    root = folder / "set"
    root.mkdir()
    pd.DataFrame(CORPUS, columns=["_id", "title", "text"]).to_parquet(root / "corpus.parquet")
    pd.DataFrame(QUERIES, columns=["_id", "text"]).to_parquet(root / "queries.parquet")
    pd.DataFrame(QRELS, columns=["query-id", "corpus-id", "score"]).to_parquet(root / "qrels.parquet")


@pytest.mark.parametrize("form", [write_jsonl, write_parquet])
def test_a_local_collection_comes_back(tmp_path: Path, form: object) -> None:
    form(tmp_path)  # type: ignore[operator]
    counts = write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")
    assert counts == {"documents": 3, "queries": 2, "judgements": 3}
    assert json.loads((tmp_path / "out" / "corpus.jsonl").read_text().splitlines()[0]) == {
        "_id": "1",
        "title": "A title",
        "text": "The first text.",
    }
    collection = read_collection(tmp_path / "out")
    assert collection.corpus == {
        "1": "A title The first text.",
        "2": "The second text.",
        "q1": "A third text.",
    }
    assert collection.queries == {"q1": "First query?", "q2": "Second query?"}
    # A judged document without a text stays: it counts in the ideal ranking.
    assert collection.qrels == {"q1": {"1": 2, "gone": 1}, "q2": {"2": 1}}


def test_hub_files_are_named_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_jsonl(tmp_path)
    rows = [{"query-id": query, "corpus-id": key, "score": grade} for query, key, grade in QRELS]
    (root / "qrels" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(root))
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    hub = {
        "kind": "hub",
        "repo": "a/b",
        "revision": "0" * 40,
        "corpus": "corpus.jsonl",
        "queries": "queries.jsonl",
    }
    source = HubCollection.model_validate(hub | {"qrels": "qrels/test.jsonl"})
    assert write_collection("mine", source, tmp_path, 1, tmp_path / "out")["judgements"] == 3
    twice = HubCollection.model_validate(hub | {"qrels": "qrels/test.*"})
    with pytest.raises(UserError, match=r"expected one file 'qrels/test.\*', found 2"):
        write_collection("mine", twice, tmp_path, 1, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "1", "text": "again"}', "row 4: _id '1' was there before"),
        ("corpus.jsonl", '{"_id": "4", "text": 4}', "corpus.jsonl, row 4, text: expected text, found 4"),
        ("corpus.jsonl", '{"_id": "4", "title": 2012, "text": "a"}', "corpus.jsonl, row 4, title: .* found 2012"),
        (
            "corpus.jsonl",
            '{"_id": "d\\ud800", "text": "a"}',
            r"row 4, _id: expected an id, found 'd.ud800'",
        ),
        ("queries.jsonl", '{"_id": true, "text": "a"}', "queries.jsonl, row 4, _id: expected an id, found True"),
        ("queries.jsonl", '{"_id": "", "text": "a"}', "row 4, _id: expected an id, found ''"),
        ("qrels/test.tsv", "q1\t1\t1", "row 4: query 'q1' and document '1' are judged twice"),
        ("qrels/test.tsv", "q1\t2\t0.5", "row 4, score: expected a whole number, found '0.5'"),
        ("qrels/test.tsv", "q1\t2\tinf", "row 4, score: expected a whole number, found 'inf'"),
        ("qrels/test.tsv", "q9\t2\t1", "1 judged queries have no text, for example 'q9'"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path: Path, file: str, line: str, message: str) -> None:
    root = write_jsonl(tmp_path)
    with (root / file).open("a", encoding="utf-8") as opened:
        opened.write(("" if file.endswith("tsv") else "\n") + line)
    with pytest.raises(UserError, match=message):
        write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_null_is_an_empty_text(tmp_path: Path) -> None:
    root = write_jsonl(tmp_path)
    with (root / "corpus.jsonl").open("a", encoding="utf-8") as opened:
        opened.write('\n{"_id": "4", "title": null, "text": null}')
    write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")
    assert read_collection(tmp_path / "out").corpus["4"] == ""


def test_the_files_of_a_folder_are_found_in_any_case(tmp_path: Path) -> None:
    root = write_jsonl(tmp_path)
    (root / "corpus.jsonl").rename(root / "Corpus.JSONL")
    (root / "queries.jsonl").rename(root / "queries.ndjson")
    assert write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")["documents"] == 3


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    root = write_jsonl(tmp_path)
    (root / "queries.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"queries.jsonl has no rows: it must hold at least one with _id, text"):
        write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")


def test_ids_are_strings_also_when_they_look_like_numbers(tmp_path: Path) -> None:
    root = write_jsonl(tmp_path)
    (root / "corpus.jsonl").write_text('{"_id": 1, "text": "a"}\n{"_id": 2, "text": "b"}', encoding="utf-8")
    write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")
    assert list(read_collection(tmp_path / "out").corpus) == ["1", "2"]


def test_a_folder_without_the_files_says_which_were_looked_for(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match=r"none of corpus.jsonl, corpus.jsonl.gz, corpus.ndjson, corpus.parquet"):
        write_collection("mine", LOCAL, tmp_path, 1, tmp_path / "out")


def docstring(number: int, *, summary: str | None = None, body: str | None = None) -> Docstring:
    summary = summary or f"Compute the thing that has the number {number}."
    body = body or f"It is done in many steps, of which the most important one has the number {number} too."
    return Docstring(f"toy.f{number}", summary, (summary, body, f"The rest is left to number {number} of them."))


PACKAGES = PackageCollection(kind="package", packages=["toy"], queries=10, documents=15)


def test_a_docstring_collection_joins_summary_and_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [docstring(number) for number in range(30)]
    monkeypatch.setattr(package_collection, "read_docstrings", lambda _: everything)
    documents, queries, qrels = docstring_collection("mine", PACKAGES, 1)
    assert (len(documents), len(queries), len(qrels)) == (15, 10, 10)
    by_summary = {item.summary: " ".join(item.sentences[1:]) for item in everything}
    for query, (_, summary) in queries.items():
        (relevant,) = qrels[query]
        assert documents[relevant] == ("", by_summary[summary])
    # The number of a document does not tell whose it is.
    assert [query[1:] for query in qrels] != [next(iter(grades))[1:] for grades in qrels.values()]
    monkeypatch.setattr(package_collection, "read_docstrings", lambda _: everything[::-1])
    assert docstring_collection("mine", PACKAGES, 1) == (documents, queries, qrels)
    assert docstring_collection("mine", PACKAGES, 2) != (documents, queries, qrels)


def test_double_texts_and_sentences_that_repeat_the_summary_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    same = docstring(
        100, body="A body that occurs twice, so that nobody could say which of them is meant by a query."
    )
    copy = docstring(100, summary="Another summary of the same body.", body=same.sentences[1])
    echo = docstring(101, body="This will compute the thing that has the number that you want to have here.")
    items = [*(docstring(number) for number in range(13)), same, copy, echo]
    monkeypatch.setattr(package_collection, "read_docstrings", lambda _: items)
    with pytest.raises(UserError, match=r"retrieval.mine: 15 documents are wanted.* have 14 fit docstrings"):
        docstring_collection("mine", PACKAGES, 1)

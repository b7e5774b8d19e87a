"""Odd text at every entry, each with the answer that a user would expect.

CASES is the table: a kind of text, what is left of it as training text, and a plain text that encodes alike.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import WORDS, write_folder

from leap.core.errors import UserError
from leap.core.settings.sources import LocalCollection, LocalPairs
from leap.data.beir import Collection, read_collection
from leap.data.cleaning import EvaluationTexts, clean
from leap.data.pairs import read_pairs, write_pairs
from leap.data.tables import file_rows
from leap.doctor.doctor_sentences import sample
from leap.evaluate.retrieval import query_scores, retrieve
from leap.exits import ExitRule, LeapEncoder
from leap.exits.calibrate.calibrate_folder import calibrate, read_column
from leap.exits.calibrate.risk import Demand
from leap.extract.collections import write_collection
from leap.extract.sample import write_sample
from leap.serve import check_texts

HEBREW = "שלום עולם"


class Case(NamedTuple):
    """A kind of text.

    raw: as it comes.
    clean: what extraction, pairs and collections make of it; "" is no sentence.
    like: a text that a model with whole words as tokens encodes alike; x is a word that it does not know.
    """

    raw: str
    clean: str
    like: str


CASES = {
    "empty": Case("", "", ""),
    "blank": Case(" \t ", "", ""),
    "line ends": Case("bi\r\nbo\rbu\n", "bi bo bu", "bi bo bu"),
    "byte order mark": Case("\ufeffbi bo", "bi bo", "x bi bo"),
    "zero-width space": Case("b\u200bi bo", "bi bo", "x x x bo"),
    "no-break space": Case("bi\u00a0bo", "bi bo", "bi bo"),
    "right to left": Case(HEBREW, HEBREW, "x x"),
    "right-to-left mark": Case("bi \u200fbo", "bi \u200fbo", "bi x bo"),
    "emoji": Case("bi 😀 bo", "bi 😀 bo", "bi x bo"),
    "emoji of several": Case("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👧", "x x x x x"),
    "half a surrogate pair": Case("bi \ud83d bo", "bi bo", "bi ? bo"),
    "NUL": Case("bi\x00bo bu", "bi bo bu", "bi x bo bu"),
    "control": Case("bi\x07 bo", "bi bo", "bi x bo"),
    "upper case": Case("BI Bo", "BI Bo", "bi bo"),
    "decomposed": Case("cafe\u0301 bi", "café bi", "x bi"),
    "a megabyte": Case("bi " * 350_000, ("bi " * 350_000).strip(), "bi " * 30),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LeapEncoder:
    return LeapEncoder(write_folder(tmp_path_factory.mktemp("odd") / "model"), "cpu")


@pytest.mark.parametrize("name", CASES)
def test_cleaning(name: str) -> None:
    assert clean(CASES[name].raw) == CASES[name].clean


@pytest.mark.parametrize("name", CASES)
def test_encoding(model: LeapEncoder, name: str) -> None:
    case = CASES[name]
    vectors, layers = model.encode([case.raw, "bi", case.like], return_exit_layers=True)
    assert np.isfinite(vectors).all()
    odd, plain = model.tokenizer([case.raw, case.like])
    assert odd == plain
    assert len(odd) <= 32
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
    assert layers[0] == layers[2]
    # The neighbour of an odd text is not touched by it.
    np.testing.assert_allclose(vectors[1], model.encode("bi"), atol=1e-5)
    np.testing.assert_allclose(vectors[0], model.encode(case.raw), atol=1e-5)


def test_many_alike_and_one_alone(model: LeapEncoder) -> None:
    vectors = model.encode(["bi bo"] * 50, batch_size=7)
    np.testing.assert_allclose(vectors, np.tile(model.encode("bi bo"), (50, 1)), atol=1e-5)
    assert model.encode([]).shape == (0, 16)


def test_training_text(tmp_path: Path) -> None:
    """Each kind is kept cleaned, or counted by the reason why not."""
    texts = [("odd", case.raw) for case in CASES.values()]
    # Long enough to be kept, where there is anything to keep.
    texts += [("long", f"{case.raw} is what stands at the beginning of this") for case in CASES.values()]
    options: dict[str, Any] = {"min_characters": 20, "max_characters": 100, "max_sentences": None}
    counts = write_sample([texts], tmp_path / "s.parquet", seed=1, evaluation=EvaluationTexts(), **options)
    assert (counts["odd"]["read"], counts["odd"]["too_short"], counts["odd"]["too_long"]) == (16, 15, 1)
    # Eight are "bi bo", since no emoji, mark or capital makes another text of it, two "bi bo bu", three nothing.
    assert (counts["long"]["too_long"], counts["long"]["duplicate"]) == (1, 10)
    sampled = pq.read_table(tmp_path / "s.parquet")["sentence"].to_pylist()
    possible = {f"{case.clean} is what stands at the beginning of this".strip() for case in CASES.values()}
    assert len(sampled) == len(set(sampled)) == 16 - 1 - 10
    assert set(sampled) <= possible


def test_training_text_that_is_all_alike_is_one_sentence(tmp_path: Path) -> None:
    options: dict[str, Any] = {"min_characters": 5, "max_characters": 100, "max_sentences": None}
    same = [("web", "This is the one sentence.")] * 500
    counts = write_sample([same], tmp_path / "s.parquet", seed=1, evaluation=EvaluationTexts(), **options)
    assert (counts["web"]["kept"], counts["web"]["duplicate"]) == (1, 499)
    assert pq.read_table(tmp_path / "s.parquet")["sentence"].to_pylist() == ["This is the one sentence."]


# What a file of sentences may be, and the rows it gives or what is said of it.
FILES: list[tuple[str, bytes, list[str] | str]] = [
    ("t.txt", b"\xef\xbb\xbfbi\r\nbo\r\n", ["bi", "bo"]),
    ("t.csv", b"\xef\xbb\xbftext\r\nbi\r\nbo\r\n", ["bi", "bo"]),
    ("t.csv", b"text\n" + b"b" * 1_000_000 + b"\n", ["b" * 1_000_000]),
    ("t.csv", b"text\nbi\x00bo\n", ["bi\x00bo"]),
    ("t.csv", f"text\n{HEBREW}\n😀\n".encode(), [HEBREW, "😀"]),
    ("t.csv", b"Text\nbi\n", "has no column text: its columns are Text; name those to read by --column"),
    ("t.csv", "text\nfür\n".encode("latin-1"), "is not UTF-8"),
    ("t.csv", "text\nbi\n".encode("utf-16"), "is not UTF-8"),
    ("t.csv", b"", "has no rows"),
    ("t.csv", b"text\n\n\n", "has no rows"),
    ("t.txt", b" \n\t\n", "has no rows"),
    ("t.jsonl", b'{"text": "bi \\ud83d bo"}\n', ["bi \ud83d bo"]),
    ("t.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n", "line 1: not JSON"),
    ("t.jsonl", b"[" * 100_000, "line 1: not JSON"),
]


@pytest.mark.parametrize(("name", "content", "expected"), FILES)
def test_files(tmp_path: Path, name: str, content: bytes, expected: list[str] | str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=f"{name}.*{expected}"):
            list(file_rows(path, ["text"]))
    else:
        assert [row.values[0] for row in file_rows(path, ["text"])] == expected


def test_doctor_and_calibration_take_odd_sentences(tmp_path: Path, model: LeapEncoder) -> None:
    """The doctor examines clean, different sentences; calibration takes what the model will be given."""
    plain = [f"{one} {two}" for one in WORDS for two in WORDS[:5]]
    rows = [case.raw for case in CASES.values()] * 2 + plain
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps({"sentence": row}) + "\n" for row in rows))
    cleaned = {case.clean for case in CASES.values()} - {""}
    assert set(sample(path, None).sentences) == cleaned | set(plain)
    texts = read_column(path, None)
    assert texts == rows
    assert len(calibrate(model, texts, Demand(0.5, 0.2, 0.8)).calibration.thresholds) == 5
    path.write_text('{"sentence": null}\n{"sentence": 1}\n')
    with pytest.raises(UserError, match="row 2, sentence: expected text, found 1"):
        read_column(path, None)
    path.write_text('{"sentence": "bi"}\n' * 500)
    with pytest.raises(UserError, match="1 different sentences are too few"):
        calibrate(model, read_column(path, None), Demand(0.5, 0.2, 0.8))
    with pytest.raises(UserError, match="holds 1 different sentences, at least 50"):
        sample(path, None)


@pytest.mark.parametrize("name", CASES)
def test_pairs(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rows = [{"sentence1": case.raw, "sentence2": "bi", "score": score} for score in (1, 2)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = LocalPairs(kind="local", path="p.jsonl")
    if case.clean:
        write_pairs("p", source, tmp_path, tmp_path / "p.parquet")
        assert read_pairs(tmp_path / "p.parquet").sentence1 == [case.clean] * 2
    else:
        with pytest.raises(UserError, match=r"p\.jsonl, row 1, sentence1: expected a sentence"):
            write_pairs("p", source, tmp_path, tmp_path / "p.parquet")


# Scores of a pair, and what is said of them; test_pairs.py has those of a csv.
@pytest.mark.parametrize("score", ["NaN", "Infinity", "-1", "5.01", "null", '"high"', "[1]", '""', "1e999"])
def test_scores_that_are_none(tmp_path: Path, score: str) -> None:
    line = '{"sentence1": "bi", "sentence2": "bo", "score": %s}\n'
    (tmp_path / "p.jsonl").write_text(line % "1" + line % score)
    with pytest.raises(UserError, match=r"p\.jsonl, row 2, score: expected a number from 0 to 5"):
        write_pairs("p", LocalPairs(kind="local", path="p.jsonl"), tmp_path, tmp_path / "p.parquet")


def test_one_pair_ranks_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("sentence1,sentence2,score\nbi,bo,1\n")
    with pytest.raises(UserError, match=r"all 1 pairs have the score 1\.0, nothing can be ranked"):
        write_pairs("p", LocalPairs(kind="local", path="p.csv"), tmp_path, tmp_path / "p.parquet")


def collection(folder: Path, corpus: Any, queries: Any, qrels: list[tuple[Any, Any, Any]]) -> Collection:
    """Writes a source in parquet, where ids keep their types, and what `extract` makes of it."""
    source = folder / "set"
    source.mkdir()
    pd.DataFrame(corpus, columns=["_id", "text"]).to_parquet(source / "corpus.parquet")
    pd.DataFrame(queries, columns=["_id", "text"]).to_parquet(source / "queries.parquet")
    pd.DataFrame(qrels, columns=["query-id", "corpus-id", "score"]).to_parquet(source / "qrels.parquet")
    write_collection("c", LocalCollection(kind="local", path="set"), folder, 1, folder / "out")
    return read_collection(folder / "out")


def test_ids_that_look_like_numbers(tmp_path: Path) -> None:
    result = collection(tmp_path, [("007", "bi"), ("7", "bo")], [("1e3", "be")], [("1e3", "007", 1)])
    assert (list(result.corpus), result.qrels) == (["007", "7"], {"1e3": {"007": 1}})


def test_ids_that_are_numbers_are_the_same_in_every_file(tmp_path: Path) -> None:
    """pandas writes whole numbers as 1.0 where a column once had a gap."""
    result = collection(tmp_path, [(1.0, "bi"), (2.0, "bo")], [(10, "be")], [(10, 1, 1)])
    assert (list(result.corpus), result.qrels) == (["1", "2"], {"10": {"1": 1}})


@pytest.mark.parametrize(
    ("corpus", "qrels", "message"),
    [
        (
            [("1", "bi"), ("1", "bo")],
            [("q", "1", 1)],
            "_id '1' was there before: give every text an id of its own",
        ),
        ([(1.5, "bi")], [("q", "1", 1)], "_id: expected an id, found 1.5"),
        ([(math.nan, "bi"), (1.0, "bo")], [("q", "1", 1)], "_id: expected an id, found (nan|None)"),
        ([("1", "bi")], [("q", "1", math.nan)], "score: expected a whole number, found (nan|None)"),
        ([("1", "bi")], [("q", "1", 0.5)], "score: expected a whole number, found 0.5"),
        ([("1", "bi")], [("other", "1", 1)], "1 judged queries have no text, for example 'other'"),
        ([("1", "bi")], [("q", "2", 1), ("q", "3", 1)], "none of the 2 judged documents is in the corpus"),
    ],
)
def test_collections_that_do_not_fit(tmp_path: Path, corpus: Any, qrels: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        collection(tmp_path, corpus, [("q", "be")], qrels)


def test_judged_documents_that_are_missing_count_as_not_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = collection(tmp_path, [("1", "bi")], [("q", "be")], [("q", "1", 1), ("q", "gone", 1)])
    assert "1 of 2 judged documents are not in the corpus, for example 'gone'" in caplog.text
    scores = query_scores({"q": ["1"]}, result.qrels, ["q"])
    # Ideal: both, at ranks 1 and 2.
    assert scores["ndcg_at_10"].tolist() == pytest.approx([1 / (1 + 1 / math.log2(3))])
    assert scores["recall_at_100"].tolist() == [0.5]


def test_queries_without_relevant_documents(tmp_path: Path, model: LeapEncoder) -> None:
    """One that nobody judged is left out; one whose judgements are all 0 counts as 0, as in trec_eval -c."""
    queries = [("q", "bi"), ("none", "bo"), ("unjudged", "bu")]
    result = collection(tmp_path, [("1", "bi"), ("2", "bo")], queries, [("q", "1", 1), ("none", "2", 0)])
    assert list(result.queries) == ["q", "none"]
    ranked = retrieve(model, result, ExitRule(1.0, 5), 8, skip_own_id=False)
    assert ranked.scores["full"]["ndcg_at_10"].tolist() == [1.0, 0.0]


def test_documents_of_odd_text(tmp_path: Path, model: LeapEncoder) -> None:
    """An empty document stays a document: it is ranked like any other, and nothing is lost."""
    rows = [(name, case.raw.encode("utf-8", "ignore").decode()) for name, case in CASES.items()]
    result = collection(tmp_path, rows, [("q", "bi bo")], [("q", "upper case", 1)])
    assert list(result.corpus) == list(CASES)
    ranked = retrieve(model, result, ExitRule(1.0, 5), 8, skip_own_id=False)
    assert torch.isfinite(ranked.held.full).all()
    assert ranked.scores["full"]["recall_at_100"].tolist() == [1.0]


@pytest.mark.parametrize("name", CASES)
def test_served(name: str) -> None:
    """Text is taken as it is, only too much of it is refused, with what may be sent."""
    raw = CASES[name].raw
    if name == "a megabyte":
        with pytest.raises(ValueError, match="1050000 characters: at most 20000"):
            check_texts(["bi", raw])
    else:
        assert check_texts(["bi", raw]) == ["bi", raw]

"""`leap encode` and `leap evaluate`: files of one's own, by the encoder's and the pipeline's numbers."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from leap.cli import app
from leap.core.errors import UserError
from leap.data.pairs import Pairs
from leap.evaluate.shipped_settings import shipped_settings
from leap.evaluate.similarity import measure_sts
from leap.exits import LeapEncoder
from leap.serve import bulk


@pytest.fixture
def texts(tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bulk, "CHUNK", 25)
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"title": text}) + "\n" for text in sentences))
    return path


def leap(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_vectors_lie_in_the_files_order(tiny_folder: Path, texts: Path, sentences: list[str]) -> None:
    expected, layers = LeapEncoder(tiny_folder, "cpu").encode(
        sentences, threshold=0.885, input_type="query", return_exit_layers=True
    )
    options = ("--column", "title", "--threshold", "0.885", "--input-type", "query")
    assert f"out.parquet: 60 vectors, {layers.mean():.2f} layers" in leap(
        "encode", tiny_folder, texts, "out.parquet", *options
    )
    table = pq.read_table("out.parquet")
    assert table["text"].to_pylist() == sentences
    np.testing.assert_allclose(np.stack(table["vector"].to_pylist()), expected, atol=1e-6)
    assert table["exit_layer"].to_pylist() == layers.tolist()
    leap("encode", tiny_folder, texts, "out.npy", *options)
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-6)


def test_a_layer_is_a_budget(tiny_folder: Path, texts: Path, sentences: list[str]) -> None:
    leap("encode", tiny_folder, texts, "out.npy", "--column", "title", "--layer", "2")
    expected = LeapEncoder(tiny_folder, "cpu").encode(sentences, strategy="fixed", layer=2)
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-6)


def test_what_cannot_be_encoded_leaves_no_file(tiny_folder: Path, texts: Path) -> None:
    (texts.parent / "none.txt").touch()
    for arguments, message in (
        ((texts, "out.csv"), r"ends in \.parquet or \.npy"),
        ((texts, "out.npy", "--column", "title", "--layer", "9"), "layer 9"),
        ((texts, "out.npy", "--column", "title", "--input-type", "both"), "neither query nor document"),
        ((texts, "out.npy"), "sentence"),
        (("none.txt", "out.npy"), "no rows|without rows|empty"),
        ((texts, texts), "ends in"),
    ):
        with pytest.raises(UserError, match=message):
            leap("encode", tiny_folder, *arguments)
    assert sorted(path.name for path in texts.parent.iterdir()) == ["none.txt", "texts.jsonl"]
    (texts.parent / "mine.npy").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.npy exists"):
        leap("encode", tiny_folder, texts, "mine.npy", "--column", "title")


def test_pairs_are_measured_as_the_pipeline_measures_them(
    tiny_folder: Path, texts: Path, sentences: list[str]
) -> None:
    generator = random.Random(2)
    rows = [(*generator.sample(sentences, 2), round(5 * generator.random(), 2)) for _ in range(40)]
    lines = [json.dumps(dict(zip(("a", "b", "like"), row, strict=True))) for row in rows]
    Path("pairs.jsonl").write_text("\n".join(lines))
    output = leap(
        "evaluate", tiny_folder, "--pairs", "pairs.jsonl", "--columns", "a,b,like", "--output", "out.json"
    )
    one, two, scores = (list(column) for column in zip(*rows, strict=True))
    expected = measure_sts(
        LeapEncoder(tiny_folder, "cpu"),
        Pairs(one, two, np.array(scores)),
        "similarity",
        shipped_settings(),
        Path("cache"),
    )[0]
    content = json.loads(Path("out.json").read_text())["pairs"]
    assert content["spearman_exit"] == pytest.approx(expected["spearman_exit"])
    assert content["ci95"] == pytest.approx(expected["ci95"])
    assert f"{expected['spearman_full']:.4f}" in output
    assert "exits" in output


def test_a_collection_is_measured_in_all_modes(tiny_folder: Path, texts: Path, sentences: list[str]) -> None:
    folder = Path("mine")
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(sentences)]
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    queries = [json.dumps({"_id": f"q{n}", "text": sentences[n]}) for n in range(12)]
    (folder / "queries.jsonl").write_text("\n".join(queries))
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(12))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    output = leap("evaluate", tiny_folder, "--collection", folder, "--output", "out.json")
    content = json.loads(Path("out.json").read_text())["collection"]
    assert content["n_queries"] == 12
    assert content["ndcg_at_10_full"] == content["ndcg_at_10_exit"] == 1.0
    for words in ("both at full depth", "queries exit, index at full depth", "both exit", "1.0000 to 1.0000"):
        assert words in output
    assert sorted(path.name for path in folder.rglob("*")) == [
        "corpus.jsonl",
        "qrels",
        "queries.jsonl",
        "test.tsv",
    ]


def test_nothing_to_evaluate_on_is_said(tiny_folder: Path, texts: Path) -> None:
    for arguments, message in (
        ((), "give --pairs FILE, --collection FOLDER"),
        (("--pairs", "none.csv"), r"none\.csv is not a file"),
        (("--collection", "none"), "none is not a folder"),
        (("--pairs", texts, "--columns", "a,b"), "three names"),
    ):
        with pytest.raises(UserError, match=message):
            leap("evaluate", tiny_folder, *arguments)

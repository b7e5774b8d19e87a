"""What others call by themselves: mteb evaluates a model that exits, LangChain's vector store searches by it."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from tiny_models import write_folder

import leap
from leap.exits import LeapEncoder

METADATA: dict[str, Any] = {
    "description": "made sentences",
    "reference": None,
    "dataset": {"path": "local", "revision": "1"},
    "category": "t2t",
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "modalities": ["text"],
    "date": None,
    "domains": None,
    "task_subtypes": None,
    "license": None,
    "annotations_creators": None,
    "dialect": None,
    "sample_creation": None,
    "bibtex_citation": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with prompts whose queries leave early by leap.json."""
    made = write_folder(tmp_path_factory.mktemp("prompted") / "model")
    prompts = {"prompts": {"query": "ba be ", "document": "du "}, "similarity_fn_name": "cosine"}
    (made / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    rule = {"threshold": 0.885, "min_layer": 2, "patience": 1}
    (made / "leap.json").write_text(json.dumps({"exit": rule, "query": {"layer": 2}, "document": "full"}))
    return made


def test_mteb_evaluates_similarity_and_retrieval(folder: Path, sentences: list[str]) -> None:
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    generator = random.Random(3)
    one, two = (generator.sample(sentences, 30) for _ in range(2))
    scores = [generator.random() for _ in one]
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {f"q{number}": f"{sentences[number]} {sentences[number + 20]}" for number in range(20)}
    qrels = {f"q{number}": {f"d{number}": 1, f"d{number + 20}": 1} for number in range(20)}

    class Similarity(AbsTaskSTS):  # type: ignore[misc, unused-ignore]
        metadata = TaskMetadata(type="STS", name="Similarity", main_score="cosine_spearman", **METADATA)

        def load_data(self, **_: Any) -> None:
            rows = {"sentence1": one, "sentence2": two, "score": scores}
            self.dataset, self.data_loaded = DatasetDict(test=Dataset.from_dict(rows)), True

    class Search(AbsTaskRetrieval):  # type: ignore[misc, unused-ignore]
        metadata = TaskMetadata(type="Retrieval", name="Search", main_score="ndcg_at_10", **METADATA)

        def load_data(self, **_: Any) -> None:
            split = RetrievalSplitData(
                corpus=Dataset.from_list([{"id": key, "title": "", "text": text} for key, text in corpus.items()]),
                queries=Dataset.from_list([{"id": key, "text": text} for key, text in queries.items()]),
                relevant_docs=qrels,
                top_ranked=None,
            )
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    model = leap.sentence_transformer(folder, device="cpu")
    actual = mteb.evaluate(model, [Similarity(), Search()], cache=None, co2_tracker=False, show_progress_bar=False)
    similarity, search = (result.get_score() for result in actual.task_results)

    encoder = LeapEncoder(folder, "cpu")
    cosines = encoder.similarity_pairwise(encoder.encode(one), encoder.encode(two))
    assert similarity == pytest.approx(spearmanr(cosines, scores).statistic, abs=1e-4)
    ranks = encoder.similarity(encoder.encode_query(list(queries.values())), encoder.encode_document(sentences))
    assert search == pytest.approx(_ndcg(ranks.numpy(), corpus, qrels), abs=1e-4)
    assert 0 < search < 1


def _ndcg(similarities: Any, corpus: dict[str, str], qrels: dict[str, dict[str, int]]) -> float:
    names, discount = list(corpus), 1 / np.log2(np.arange(2, 12))
    gains = [
        sum(discount[place] for place, row in enumerate((-own).argsort()[:10]) if names[row] in wanted)
        / discount[: len(wanted)].sum()
        for own, wanted in zip(similarities, qrels.values(), strict=True)
    ]
    return float(np.mean(gains))


def test_a_vector_store_of_langchain_searches_by_queries_that_leave_early(
    folder: Path, sentences: list[str]
) -> None:
    embeddings = pytest.importorskip("langchain_core.embeddings")
    from langchain_core.vectorstores import InMemoryVectorStore

    class Encoder(LeapEncoder, embeddings.Embeddings):  # type: ignore[misc, name-defined]
        """What docs/exits.md shows."""

    encoder = Encoder(folder, "cpu")
    for model in (encoder, LeapEncoder(folder, "cpu")):  # a store asks for the methods, not the class
        store = InMemoryVectorStore.from_texts(sentences, model)
        actual = store.similarity_search_with_score(sentences[7], k=5)
        queries, documents = encoder.encode_query([sentences[7]]), encoder.encode_document(sentences)
        scores, places = encoder.similarity(queries, documents)[0].topk(5)
        assert [document.page_content for document, _ in actual] == [sentences[place] for place in places.tolist()]
        np.testing.assert_allclose([score for _, score in actual], scores, atol=1e-5)
    assert not np.allclose(encoder.encode_query(sentences[7]), encoder.encode_document(sentences[7]), atol=1e-3)

import dataclasses
import json
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import MakeFolder
from zoo import write_model

import leap
from leap.data.beir import Collection
from leap.evaluate.retrieval import (
    Ranking,
    _drop,
    own_places,
    query_columns,
    query_scores,
    ranking,
    retrieval_figures,
    retrieve,
    tie_order,
)
from leap.exits import ExitRule, LeapEncoder
from leap.models.exit_heads import ExitHeads

FULL = ExitRule(2.0, 1)


def score(found: Ranking, qrels: dict[str, dict[str, int]]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in query_scores(found, qrels, list(qrels)).items()}


def figures(
    model: LeapEncoder, collection: Collection, rule: ExitRule, batch_size: int, skip_own_id: bool
) -> dict[str, Any]:
    return retrieval_figures(retrieve(model, collection, rule, batch_size, skip_own_id), [8], 100, 1)


def test_ndcg_and_recall_by_hand() -> None:
    # Grades 2 and 1 are found at ranks 3 and 1; a third relevant document is not.
    result = score({"q": ["b", "x", "a"]}, {"q": {"a": 2, "b": 1, "c": 1, "x": 0}})
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert result["ndcg_at_10"] == pytest.approx((1 + 2 / log2(4)) / ideal)
    assert result["ndcg_at_3"] == result["ndcg_at_5"] == pytest.approx(result["ndcg_at_10"])
    assert result["ndcg_at_1"] == pytest.approx(1 / 2)
    assert result["recall_at_100"] == pytest.approx(2 / 3)


def test_cut_off_at_ten() -> None:
    others = [f"x{number}" for number in range(10)]
    assert score({"q": [*others[:9], "a"]}, {"q": {"a": 1}})["ndcg_at_10"] == pytest.approx(1 / log2(11))
    assert score({"q": [*others, "a"]}, {"q": {"a": 1}})["ndcg_at_10"] == 0.0


def test_a_query_without_results_counts_as_nought() -> None:
    qrels = {"q": {"a": 1}, "r": {"a": 1}, "s": {"a": 1}, "t": {"a": 1}}
    result = score({"q": ["a"], "r": []}, qrels)
    assert result["ndcg_at_10"] == pytest.approx(0.25)
    assert result["recall_at_100"] == pytest.approx(0.25)


def test_the_ranking_is_scored_as_it_stands_whatever_the_ids() -> None:
    # A hundred ids against trec_eval's own tie order: the scorer must not sort them again.
    ranking = [f"d{number:03}" for number in range(100)]
    assert score({"q": ranking}, {"q": {"d000": 1}})["ndcg_at_1"] == 1.0
    assert score({"q": ranking[::-1]}, {"q": {"d099": 1}})["ndcg_at_1"] == 1.0


def test_ties_go_to_the_higher_id() -> None:
    assert tie_order({"a": "", "c": "", "b": ""}) == ["c", "b", "a"]
    # As trec_eval orders equal scores.
    import ir_measures

    run, qrels = {"q": {"a": 1.0, "c": 1.0, "b": 1.0}}, {"q": {"c": 1}}
    result = ir_measures.pytrec_eval.calc_aggregate([ir_measures.nDCG @ 1], qrels, run)
    assert list(result.values()) == [1.0]


def test_own_places() -> None:
    assert own_places(["a", "q"], ["c", "a"]).tolist() == [1, -1]


def test_a_collection_where_queries_are_documents(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"t{number}": text for number, text in enumerate(sentences)}
    queries = {f"t{number}": sentences[number] for number in range(10)}
    collection = Collection(corpus, queries, {key: {key: 1} for key in queries})
    result = figures(tiny_model, collection, FULL, batch_size=8, skip_own_id=False)
    assert (result["n_queries"], result["n_documents"]) == (10, 60)
    assert result["ndcg_at_1_full"] == result["ndcg_at_10_full"] == result["recall_at_100_full"] == 1.0
    assert result["ndcg_at_10_exit"] == 1.0
    assert result["drop"] == 0.0
    assert result["expected_layers_queries"] == result["expected_layers_documents"] == 5.0
    skipped = figures(tiny_model, collection, FULL, batch_size=8, skip_own_id=True)
    assert skipped["recall_at_100_full"] == 0.0
    # Nothing is found at full depth, so there is nothing to lose.
    assert skipped["drop"] is None
    json.dumps(skipped, allow_nan=False)


def test_duplicates_tie_and_the_corpus_order_does_not_matter(
    tiny_model: LeapEncoder, sentences: list[str]
) -> None:
    # Three documents of one text: the highest id, d9, is first in any order and at any batch size.
    corpus = {f"d{number}": sentences[number] for number in range(7)}
    corpus |= dict.fromkeys(("d7", "d9", "d8"), sentences[0])
    collection = Collection(corpus, {"q": sentences[0]}, {"q": {"d9": 1}})
    backwards = Collection(dict(reversed(corpus.items())), collection.queries, collection.qrels)
    for batch_size in (1, 3, 64):
        for shown in (collection, backwards):
            result = figures(tiny_model, shown, FULL, batch_size, skip_own_id=False)
            assert result["ndcg_at_1_full"] == 1.0


def test_exited_queries_search_exited_documents(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {"q": sentences[3], "r": sentences[8]}
    collection = Collection(corpus, queries, {"q": {"d3": 1}, "r": {"d8": 1}})
    result = figures(tiny_model, collection, ExitRule(0.0, 2), batch_size=8, skip_own_id=False)
    # The same text finds itself only if both sides leave at the same layer.
    assert result["ndcg_at_1_exit"] == 1.0
    assert result["expected_layers_queries"] == result["expected_layers_documents"] == 2.0


def backwards(sentences: list[str], queries: int = 40) -> Collection:
    """Each query is a document read backwards: near it, and not the same."""
    corpus = {f"d{number:02}": text for number, text in enumerate(sentences)}
    asked = {f"q{number}": " ".join(sentences[number].split()[::-1]) for number in range(queries)}
    return Collection(corpus, asked, {f"q{number}": {f"d{number:02}": 1} for number in range(queries)})


def at_layer(model: LeapEncoder, texts: list[str], layer: int) -> torch.Tensor:
    return torch.from_numpy(model.encode(texts, strategy="fixed", layer=layer))


def ndcg_of(queries: torch.Tensor, documents: torch.Tensor, collection: Collection) -> float:
    """The same by brute force: the place of the one right document."""
    cosines = torch.nn.functional.cosine_similarity(queries[:, None].double(), documents[None].double(), dim=-1)
    right = cosines.diagonal()
    ranks = (cosines > right[:, None] + 1e-9).sum(1) + 1
    return sum(1 / log2(1 + rank) for rank in ranks.tolist() if rank <= 10) / len(collection.queries)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_every_query_layer_in_every_index(
    tiny_model: LeapEncoder, sentences: list[str], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leap.evaluate.encode.CHUNK", chunk)
    collection = backwards(sentences)
    asked, texts = list(collection.queries.values()), list(collection.corpus.values())
    result = figures(tiny_model, collection, ExitRule(0.885, 2, 2), 8, skip_own_id=False)
    full = at_layer(tiny_model, texts, 5)
    rows = result["by_query_layer"]
    assert [row["layer"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        queries = at_layer(tiny_model, asked, row["layer"])
        assert row["own_index"] == pytest.approx(ndcg_of(queries, full, collection))
        assert row["both_exit"] == pytest.approx(
            ndcg_of(queries, at_layer(tiny_model, texts, row["layer"]), collection)
        )
        assert row["teacher_index"] is None
    assert rows[-1]["own_index"] == rows[-1]["both_exit"] == result["ndcg_at_10_full"]
    assert len({row["own_index"] for row in rows}) > 2
    assert result["teacher_index"] is None


@pytest.mark.parametrize("dimensions", [None, 5])
def test_every_query_layer_goes_through_the_exit_heads(
    make_folder: MakeFolder, sentences: list[str], dimensions: int | None
) -> None:
    folder = make_folder()
    ExitHeads(torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(0))).save(folder)
    model = LeapEncoder(folder, "cpu", truncate_dim=dimensions)
    collection = backwards(sentences)
    asked, texts = list(collection.queries.values()), list(collection.corpus.values())
    result = figures(model, collection, ExitRule(0.885, 2, 2), 8, skip_own_id=False)
    full = at_layer(model, texts, 5)
    for row in result["by_query_layer"]:
        queries, exited = (at_layer(model, side, row["layer"]) for side in (asked, texts))
        assert row["own_index"] == pytest.approx(ndcg_of(queries, full, collection))
        assert row["both_exit"] == pytest.approx(ndcg_of(queries, exited, collection))


def test_queries_exit_and_documents_stay_at_full_depth(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    collection, rule = backwards(sentences), ExitRule(0.885, 2, 2)
    asked, texts = list(collection.queries.values()), list(collection.corpus.values())
    result = figures(tiny_model, collection, rule, 8, skip_own_id=False)
    exited = torch.from_numpy(tiny_model.encode(asked, threshold=0.885, min_layer=2, patience=2))
    expected = ndcg_of(exited, at_layer(tiny_model, texts, 5), collection)
    assert result["ndcg_at_10_query_exit"] == pytest.approx(expected)
    assert result["query_drop"] == pytest.approx(1 - expected / result["ndcg_at_10_full"])
    for name in ("query_drop", "drop"):
        low, high = result[f"{name}_ci95"]
        assert low < result[name] < high
    assert result["ndcg_at_10_query_exit"] not in (result["ndcg_at_10_full"], result["ndcg_at_10_exit"])


def test_the_interval_of_a_drop_is_paired() -> None:
    full = np.random.default_rng(1).uniform(0.1, 1.0, 200)
    # Every query loses a tenth: however queries are drawn, a tenth is lost.
    lost = _drop("drop", 0.9 * full, full, 100, 1)
    assert lost["drop"] == pytest.approx(0.1)
    assert lost["drop_ci95"] == pytest.approx([0.1, 0.1])
    assert _drop("drop", full, np.zeros(200), 100, 1) == {"drop": None, "drop_ci95": None}


def test_the_teachers_index_is_searched_where_the_spaces_agree(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    collection, rule = backwards(sentences), ExitRule(0.885, 2, 2)
    model, stranger, wide = (
        LeapEncoder(make_folder(**shape), "cpu") for shape in ({}, {"seed": 9}, {"width": 24, "seed": 3})
    )

    def found(teacher: LeapEncoder) -> dict[str, Any]:
        return retrieval_figures(retrieve(model, collection, rule, 8, False, None, teacher), [8], 100, 1)

    own = found(model)
    assert own["teacher_index"]["similarity"] == pytest.approx(1.0)
    for mode in ("full", "query_exit"):
        assert own["teacher_index"][f"ndcg_at_10_{mode}"] == own[f"ndcg_at_10_{mode}"]
    assert own["teacher_index"]["ndcg_at_10_teacher"] == own["ndcg_at_10_full"]
    assert [row["teacher_index"] for row in own["by_query_layer"]] == [
        row["own_index"] for row in own["by_query_layer"]
    ]
    other = found(stranger)
    assert abs(other["teacher_index"]["similarity"]) < 0.5
    of_another_width = found(wide)
    assert of_another_width["teacher_index"]["similarity"] is None
    for shown in (other, of_another_width):
        assert shown["teacher_index"]["ndcg_at_10_full"] is None
        assert shown["teacher_index"]["ndcg_at_10_teacher"] > 0
        assert {row["teacher_index"] for row in shown["by_query_layer"]} == {None}
        json.dumps(shown, allow_nan=False)


def test_a_query_never_finds_itself_in_any_index(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"t{number}": text for number, text in enumerate(sentences)}
    queries = {f"t{number}": sentences[number] for number in range(10)}
    collection = Collection(corpus, queries, {key: {key: 1} for key in queries})
    result = retrieve(tiny_model, collection, ExitRule(0.885, 2, 2), 8, True, None, tiny_model)
    shown = retrieval_figures(result, [8], 100, 1)
    for row in shown["by_query_layer"]:
        assert (row["own_index"], row["teacher_index"], row["both_exit"]) == (0.0, 0.0, 0.0)


def test_drop_is_relative_to_full_depth(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {f"q{number}": " ".join(sentences[number].split()[::-1]) for number in range(40)}
    qrels = {f"q{number}": {f"d{number}": 1} for number in range(40)}
    collection = Collection(corpus, queries, qrels)
    result = figures(tiny_model, collection, ExitRule(0.885, 2, 2), 8, skip_own_id=False)
    full, exited = result["ndcg_at_10_full"], result["ndcg_at_10_exit"]
    assert 0 < exited != full < 1
    assert result["drop"] == pytest.approx((full - exited) / full)
    assert 2 < result["expected_layers_documents"] < 5


@settings(deadline=None)
@given(
    directions=st.lists(st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 2), (0, 0)]), min_size=2, max_size=12),
    order=st.randoms(use_true_random=False),
    skip_own_id=st.booleans(),
)
def test_a_ranking_depends_on_nothing_but_ids_and_vectors(
    directions: list[tuple[int, int]], order: Any, skip_own_id: bool
) -> None:
    # Few directions, so that ties are everywhere.
    vectors = {f"d{number}": torch.tensor(pair).float() for number, pair in enumerate(directions)}
    shuffled = list(vectors)
    order.shuffle(shuffled)
    results = []
    for corpus in (vectors, {key: vectors[key] for key in shuffled}):
        documents = tie_order(dict.fromkeys(corpus, ""))
        held = torch.stack([corpus[key] for key in documents])
        sought = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        results.append(ranking(sought, held, ["d0", "q"], documents, skip_own_id))
    assert results[0] == results[1]
    for query, vector in (("d0", (1.0, 0.0)), ("q", (1.0, 1.0))):
        allowed = [key for key in vectors if not (skip_own_id and key == query)]
        near = torch.nn.functional.cosine_similarity
        cosines = {key: round(float(near(vectors[key], torch.tensor(vector), dim=0)), 6) for key in allowed}
        # Highest cosine first, then the highest id, as trec_eval has it.
        expected = sorted(sorted(allowed, reverse=True), key=lambda key: -cosines[key])
        assert results[0][query] == expected


def test_scores_are_those_of_the_beir_package() -> None:
    # BEIR hands cosines to pytrec_eval; without ties both rankings are the same.
    from beir.retrieval.evaluation import EvaluateRetrieval

    generator = torch.Generator().manual_seed(4)
    queries, documents = [f"q{n}" for n in range(20)], [f"d{n:02}" for n in range(60)]
    sought, held = torch.randn(20, 8, generator=generator), torch.randn(60, 8, generator=generator)
    grades = torch.randint(0, 3, (20, 60), generator=generator) * (torch.rand(20, 60, generator=generator) < 0.1)
    qrels = {
        query: {documents[j]: int(grades[i, j]) for j in range(60) if grades[i, j]}
        for i, query in enumerate(queries)
    }
    qrels = {query: judged for query, judged in qrels.items() if judged}
    cosines = torch.nn.functional.normalize(sought, dim=-1) @ torch.nn.functional.normalize(held, dim=-1).T
    run = {q: {d: float(cosines[i, j]) for j, d in enumerate(documents)} for i, q in enumerate(queries)}
    ndcg, _, recall, _ = EvaluateRetrieval.evaluate(qrels, run, [1, 3, 5, 10, 100], ignore_identical_ids=False)
    order = tie_order(dict.fromkeys(documents, ""))
    index = torch.tensor([documents.index(key) for key in order])
    ours = score(ranking(sought, held[index], queries, order, skip_own_id=False), qrels)
    for k in (1, 3, 5, 10):
        assert ours[f"ndcg_at_{k}"] == pytest.approx(ndcg[f"NDCG@{k}"], abs=1e-5)
    assert ours["recall_at_100"] == pytest.approx(recall["Recall@100"], abs=1e-5)


def test_figures_by_length_and_the_table_of_queries(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {f"q{number}": " ".join(text.split()[::-1]) for number, text in enumerate(sentences)}
    collection = Collection(corpus, queries, {f"q{number}": {f"d{number}": 1} for number in range(60)})
    result = retrieve(tiny_model, collection, ExitRule(0.885, 2, 2), 8, skip_own_id=False)
    shown = retrieval_figures(result, [8], 100, 1)
    columns = query_columns(result)
    assert columns["query"] == list(queries)
    assert columns["ndcg_at_10_exit"].mean() == pytest.approx(shown["ndcg_at_10_exit"])
    low, high = shown["ndcg_at_10_exit_ci95"]
    assert low < shown["ndcg_at_10_exit"] < high
    short = columns["tokens"] <= 8
    row = shown["queries_by_length"][0]
    assert (row["tokens"], row["n"]) == ([1, 8], short.sum())
    assert row["ndcg_at_10_full"] == pytest.approx(columns["ndcg_at_10_full"][short].mean())
    assert row["expected_layers"] == pytest.approx(columns["layer"][short].mean())
    assert [row["tokens"] for row in shown["documents_by_length"]] == [[1, 8], [9, None]]
    assert sum(row["n"] for row in shown["documents_by_length"]) == 60
    assert all(0 < row["similarity"] <= 1 for row in shown["documents_by_length"])


def test_any_architecture_is_ranked(tmp_path: Path, sentences: list[str]) -> None:
    model = LeapEncoder(write_model(tmp_path / "electra", "electra"), "cpu")
    result = figures(model, backwards(sentences), ExitRule(0.5, 2), 8, skip_own_id=False)
    assert [row["layer"] for row in result["by_query_layer"]] == [1, 2, 3, 4]
    assert 0 < result["ndcg_at_10_full"] <= 1


def test_queries_leave_by_the_rule_for_queries(make_folder: MakeFolder, sentences: list[str]) -> None:
    folder = make_folder()
    (folder / "leap.json").write_text(
        json.dumps({"exit": {"threshold": 1.0, "min_layer": 5, "patience": 1}, "query": {"layer": 2}})
    )
    collection = backwards(sentences)
    result = figures(LeapEncoder(folder, "cpu"), collection, ExitRule(1.0, 5), 8, skip_own_id=False)
    assert result["expected_layers_queries"] == 2
    assert result["ndcg_at_10_query_exit"] == pytest.approx(result["by_query_layer"][1]["own_index"])
    assert result["ndcg_at_10_exit"] == result["ndcg_at_10_full"]


def test_a_model_with_prompts_scores_as_sentence_transformers_evaluator_scores_it(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    folder = make_folder()
    prompts = {"prompts": {"query": "ba be ka go ", "document": "du di "}, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {f"q{number}": f"{sentences[number]} {sentences[number + 20]}" for number in range(20)}
    wanted = {f"q{number}": {f"d{number}", f"d{number + 20}"} for number in range(20)}
    evaluator = InformationRetrievalEvaluator(queries, corpus, wanted, name="x", show_progress_bar=False)
    plain = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    theirs = evaluator(plain)["x_cosine_ndcg@10"]
    collection = Collection(corpus, queries, {query: dict.fromkeys(result, 1) for query, result in wanted.items()})
    model = LeapEncoder(folder, "cpu")
    result = figures(model, collection, FULL, 8, skip_own_id=False)
    assert result["ndcg_at_10_full"] == result["ndcg_at_10_exit"] == pytest.approx(theirs, abs=1e-6)
    model.prompts = dataclasses.replace(model.prompts, named={"query": "", "document": ""})
    without = figures(model, collection, FULL, 8, skip_own_id=False)["ndcg_at_10_full"]
    assert without != pytest.approx(theirs, abs=1e-3)
    # Queries that leave by leap.json's rule have the same prompt.
    (folder / "leap.json").write_text(
        json.dumps(
            {"exit": {"threshold": 1.0, "min_layer": 5, "patience": 1}, "query": {"layer": 2}, "document": "full"}
        )
    )
    theirs = evaluator(leap.sentence_transformer(folder, "cpu"))["x_cosine_ndcg@10"]
    result = figures(LeapEncoder(folder, "cpu"), collection, FULL, 8, skip_own_id=False)
    assert result["ndcg_at_10_query_exit"] == pytest.approx(theirs, abs=1e-6)

import json
from math import log2

import pytest

from leap.data.beir import Collection
from leap.evaluation.retrieval import own_places, retrieval_figures, score, tie_order
from leap.exits import ExitRule, LeapEncoder

FULL = ExitRule(2.0, 1)


def test_ndcg_and_recall_by_hand() -> None:
    # Grades 2 and 1 are found at ranks 3 and 1; a third relevant document is not.
    found = score({"q": ["b", "x", "a"]}, {"q": {"a": 2, "b": 1, "c": 1, "x": 0}})
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert found["ndcg_at_10"] == pytest.approx((1 + 2 / log2(4)) / ideal)
    assert found["ndcg_at_3"] == found["ndcg_at_5"] == pytest.approx(found["ndcg_at_10"])
    assert found["ndcg_at_1"] == pytest.approx(1 / 2)
    assert found["recall_at_100"] == pytest.approx(2 / 3)


def test_cut_off_at_ten() -> None:
    others = [f"x{number}" for number in range(10)]
    assert score({"q": [*others[:9], "a"]}, {"q": {"a": 1}})["ndcg_at_10"] == pytest.approx(1 / log2(11))
    assert score({"q": [*others, "a"]}, {"q": {"a": 1}})["ndcg_at_10"] == 0.0


def test_a_query_without_results_counts_as_nought() -> None:
    qrels = {"q": {"a": 1}, "r": {"a": 1}, "s": {"a": 1}, "t": {"a": 1}}
    found = score({"q": ["a"], "r": []}, qrels)
    assert found["ndcg_at_10"] == pytest.approx(0.25)
    assert found["recall_at_100"] == pytest.approx(0.25)


def test_the_ranking_is_scored_as_it_stands_whatever_the_ids() -> None:
    # A hundred ids against trec_eval's own tie order: the scorer must not sort them anew.
    ranking = [f"d{number:03}" for number in range(100)]
    assert score({"q": ranking}, {"q": {"d000": 1}})["ndcg_at_1"] == 1.0
    assert score({"q": ranking[::-1]}, {"q": {"d099": 1}})["ndcg_at_1"] == 1.0


def test_ties_go_to_the_higher_id() -> None:
    assert tie_order({"a": "", "c": "", "b": ""}) == ["c", "b", "a"]
    # As trec_eval orders equal scores.
    import ir_measures

    run, qrels = {"q": {"a": 1.0, "c": 1.0, "b": 1.0}}, {"q": {"c": 1}}
    found = ir_measures.pytrec_eval.calc_aggregate([ir_measures.nDCG @ 1], qrels, run)
    assert list(found.values()) == [1.0]


def test_own_places() -> None:
    assert own_places(["a", "q"], ["c", "a"]).tolist() == [1, -1]


def test_a_collection_where_queries_are_documents(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"t{number}": text for number, text in enumerate(sentences)}
    queries = {f"t{number}": sentences[number] for number in range(10)}
    collection = Collection(corpus, queries, {key: {key: 1} for key in queries})
    found = retrieval_figures(tiny_model, collection, FULL, batch_size=8, skip_own_id=False)
    assert (found["n_queries"], found["n_documents"]) == (10, 60)
    assert found["ndcg_at_1_full"] == found["ndcg_at_10_full"] == found["recall_at_100_full"] == 1.0
    assert found["ndcg_at_10_exit"] == 1.0
    assert found["drop"] == 0.0
    assert found["expected_layers_queries"] == found["expected_layers_documents"] == 5.0
    skipped = retrieval_figures(tiny_model, collection, FULL, batch_size=8, skip_own_id=True)
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
            found = retrieval_figures(tiny_model, shown, FULL, batch_size, skip_own_id=False)
            assert found["ndcg_at_1_full"] == 1.0


def test_exited_queries_search_exited_documents(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {"q": sentences[3], "r": sentences[8]}
    collection = Collection(corpus, queries, {"q": {"d3": 1}, "r": {"d8": 1}})
    found = retrieval_figures(tiny_model, collection, ExitRule(0.0, 2), batch_size=8, skip_own_id=False)
    # The same text finds itself only if both sides leave at the same layer.
    assert found["ndcg_at_1_exit"] == 1.0
    assert found["expected_layers_queries"] == found["expected_layers_documents"] == 2.0


def test_drop_is_relative_to_full_depth(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    corpus = {f"d{number}": text for number, text in enumerate(sentences)}
    queries = {f"q{number}": " ".join(sentences[number].split()[::-1]) for number in range(40)}
    qrels = {f"q{number}": {f"d{number}": 1} for number in range(40)}
    collection = Collection(corpus, queries, qrels)
    found = retrieval_figures(tiny_model, collection, ExitRule(0.885, 2, 2), 8, skip_own_id=False)
    full, exited = found["ndcg_at_10_full"], found["ndcg_at_10_exit"]
    assert 0 < exited != full < 1
    assert found["drop"] == pytest.approx((full - exited) / full)
    assert 2 < found["expected_layers_documents"] < 5

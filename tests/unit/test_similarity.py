import json

import numpy as np
import pytest

from leap.evaluation import similarity
from leap.evaluation.similarity import PairCosines, duplicate_scores, pair_cosines, similarity_figures
from leap.exits import ExitRule, LeapEncoder

RULE = ExitRule(0.885, 2, 2)


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def test_pair_cosines_are_those_of_encode(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    left, right = sentences[:25], [*sentences[25:49], sentences[0]]
    found = pair_cosines(tiny_model, left, right, RULE, batch_size=8)
    assert found.by_layer.shape == (5, 25)
    options = {"threshold": RULE.threshold, "min_layer": RULE.min_layer, "patience": RULE.patience}
    both, layers = tiny_model.encode([*left, *right], return_exit_layers=True, **options)
    assert len(set(layers)) > 1
    assert found.expected_layers == pytest.approx(layers.mean())
    expected = [cosine(both[i], both[25 + i]) for i in range(25)]
    assert found.exited == pytest.approx(expected, abs=1e-5)
    for layer in (1, 5):
        fixed = tiny_model.encode([*left, *right], strategy="fixed", layer=layer)
        expected = [cosine(fixed[i], fixed[25 + i]) for i in range(25)]
        assert found.by_layer[layer - 1] == pytest.approx(expected, abs=1e-5)


def test_chunks_change_nothing(
    tiny_model: LeapEncoder, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pair_cosines(tiny_model, sentences[:30], sentences[30:], RULE, batch_size=8)
    monkeypatch.setattr(similarity, "CHUNK", 7)
    chunked = pair_cosines(tiny_model, sentences[:30], sentences[30:], RULE, batch_size=8)
    assert chunked.by_layer == pytest.approx(whole.by_layer, abs=1e-5)
    assert chunked.exited == pytest.approx(whole.exited, abs=1e-5)
    assert chunked.expected_layers == whole.expected_layers


def test_equal_sentences_tie_exactly(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    found = pair_cosines(tiny_model, sentences, sentences, RULE, batch_size=8)
    assert (found.by_layer == 1.0).all()
    assert (found.exited == 1.0).all()


def test_figures_by_hand() -> None:
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    # Full depth orders all pairs, layer 1 the other way round; exits swap the middle ones: 1 - 6 * 2 / 60.
    cosines = PairCosines(
        by_layer=np.array([[0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4]]),
        exited=np.array([0.1, 0.3, 0.2, 0.4]),
        expected_layers=1.75,
    )
    figures = similarity_figures(cosines, scores, "similarity", 500, 1)
    assert figures["n"] == 4
    assert figures["spearman_full"] == pytest.approx(1.0)
    assert figures["spearman_exit"] == pytest.approx(0.8)
    assert figures["spearman_by_layer"] == pytest.approx([-1.0, 1.0])
    assert figures["spearman_truncated"] == pytest.approx(0.5)
    assert figures["expected_layers"] == 1.75
    assert figures["ci95"][0] < 0.8 < figures["ci95"][1]
    assert "average_precision_full" not in figures
    json.dumps(figures, allow_nan=False)


def test_intervals_are_paired() -> None:
    generator = np.random.default_rng(0)
    scores, noise = generator.normal(size=(2, 200))
    cosines = PairCosines(np.array([scores + noise]), scores + noise, 1.0)
    figures = similarity_figures(cosines, scores, "similarity", 200, 1)
    assert figures["ci95"] == figures["ci95_full"]


def test_a_collapsed_model_orders_nothing() -> None:
    cosines = PairCosines(np.ones((2, 5)), np.ones(5), 2.0)
    figures = similarity_figures(cosines, np.arange(5.0), "similarity", 100, 1)
    assert figures["spearman_full"] == figures["spearman_exit"] == 0.0
    assert figures["ci95"] == [0.0, 0.0]


def test_duplicates_by_hand() -> None:
    # By cosine: duplicate, other, duplicate, other.
    precision, f1 = duplicate_scores(np.array([0.9, 0.8, 0.7, 0.1]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert precision == pytest.approx((1 / 1 + 2 / 3) / 2)
    # At 0.7: precision 2/3, recall 1.
    assert f1 == pytest.approx(0.8)


def test_duplicates_are_scored_besides() -> None:
    cosines = PairCosines(np.array([[0.9, 0.8, 0.7, 0.1]]), np.array([0.9, 0.1, 0.8, 0.2]), 1.0)
    figures = similarity_figures(cosines, np.array([1.0, 0.0, 1.0, 0.0]), "duplicates", 100, 1)
    assert figures["average_precision_full"] == pytest.approx(5 / 6)
    assert (figures["average_precision_exit"], figures["best_f1_exit"]) == (1.0, 1.0)
    json.dumps(figures, allow_nan=False)

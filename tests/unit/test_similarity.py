import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from leap.evaluate import similarity
from leap.evaluate.duplicates import duplicate_scores
from leap.evaluate.similarity import PairCosines, pair_columns, pair_cosines, similarity_figures
from leap.exits import ExitRule, LeapEncoder

RULE = ExitRule(0.885, 2, 2)


def made_cosines(
    by_layer: np.ndarray,
    exited: np.ndarray,
    layers: list[list[int]] | int = 1,
    tokens: int | np.ndarray = 5,
) -> PairCosines:
    """The oracle does as the exits do."""
    pairs = len(exited)
    both = np.broadcast_to(np.asarray(layers), (2, pairs))
    return PairCosines(by_layer, exited, both, exited, both, np.broadcast_to(tokens, (2, pairs)))


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


@pytest.mark.parametrize("dimensions", [None, 5])
def test_pair_cosines_are_those_of_encode(tiny_folder: Path, sentences: list[str], dimensions: int | None) -> None:
    tiny_model = LeapEncoder(tiny_folder, "cpu", truncate_dim=dimensions)
    left, right = sentences[:25], [*sentences[25:49], sentences[0]]
    result = pair_cosines(tiny_model, left, right, RULE, batch_size=8)
    assert result.by_layer.shape == (5, 25)
    options = {"threshold": RULE.threshold, "min_layer": RULE.min_layer, "patience": RULE.patience}
    both, layers = tiny_model.encode([*left, *right], return_exit_layers=True, **options)
    assert len(set(layers)) > 1
    assert result.expected_layers == pytest.approx(layers.mean())
    assert result.layers.tolist() == [layers[:25].tolist(), layers[25:].tolist()]
    assert result.tokens[0].tolist() == [len(text.split()) + 2 for text in left]
    assert result.oracle_layers.mean() <= result.expected_layers
    expected = [cosine(both[i], both[25 + i]) for i in range(25)]
    assert result.exited == pytest.approx(expected, abs=1e-5)
    for layer in (1, 5):
        fixed = tiny_model.encode([*left, *right], strategy="fixed", layer=layer)
        expected = [cosine(fixed[i], fixed[25 + i]) for i in range(25)]
        assert result.by_layer[layer - 1] == pytest.approx(expected, abs=1e-5)


def test_chunks_change_nothing(
    tiny_model: LeapEncoder, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pair_cosines(tiny_model, sentences[:30], sentences[30:], RULE, batch_size=8)
    monkeypatch.setattr(similarity, "CHUNK", 7)
    chunked = pair_cosines(tiny_model, sentences[:30], sentences[30:], RULE, batch_size=8)
    assert chunked.by_layer == pytest.approx(whole.by_layer, abs=1e-5)
    assert chunked.exited == pytest.approx(whole.exited, abs=1e-5)
    assert (chunked.layers == whole.layers).all()


def test_equal_sentences_tie_exactly(tiny_model: LeapEncoder, sentences: list[str]) -> None:
    result = pair_cosines(tiny_model, sentences, sentences, RULE, batch_size=8)
    assert (result.by_layer == 1.0).all()
    assert (result.exited == 1.0).all()


def test_figures_by_hand() -> None:
    scores = np.array([0.0, 1.0, 2.0, 3.0])
    # Full depth orders all pairs, layer 1 the other way round; exits swap the middle ones: 1 - 6 * 2 / 60.
    cosines = made_cosines(
        by_layer=np.array([[0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4]]),
        exited=np.array([0.1, 0.3, 0.2, 0.4]),
        layers=[[1, 1, 2, 2], [2, 2, 2, 2]],
    )
    figures = similarity_figures(cosines, scores, "similarity", 500, 1)
    assert figures["n"] == 4
    assert figures["spearman_full"] == pytest.approx(1.0)
    assert figures["spearman_exit"] == pytest.approx(0.8)
    assert figures["spearman_by_layer"] == pytest.approx([-1.0, 1.0])
    assert figures["spearman_truncated"] == pytest.approx(0.5)
    assert figures["expected_layers"] == 1.75
    assert figures["spearman_gain"] == pytest.approx(0.8 - 0.5)
    assert figures["spearman_ceiling"] == pytest.approx(0.8 - 0.5)
    assert figures["ceiling_expected_layers"] == 1.75
    assert figures["ci95"][0] < 0.8 < figures["ci95"][1]
    assert "average_precision_full" not in figures
    json.dumps(figures, allow_nan=False)


def test_intervals_are_paired() -> None:
    generator = np.random.default_rng(0)
    scores, noise = generator.normal(size=(2, 200))
    cosines = made_cosines(np.array([scores + noise]), scores + noise)
    figures = similarity_figures(cosines, scores, "similarity", 200, 1)
    assert figures["ci95"] == figures["ci95_full"]


def test_a_collapsed_model_orders_nothing() -> None:
    cosines = made_cosines(np.ones((2, 5)), np.ones(5), 2)
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
    cosines = made_cosines(np.array([[0.9, 0.8, 0.7, 0.1]]), np.array([0.9, 0.1, 0.8, 0.2]))
    figures = similarity_figures(cosines, np.array([1.0, 0.0, 1.0, 0.0]), "duplicates", 100, 1)
    assert figures["average_precision_full"] == pytest.approx(5 / 6)
    assert (figures["average_precision_exit"], figures["best_f1_exit"]) == (1.0, 1.0)
    json.dumps(figures, allow_nan=False)


@pytest.mark.parametrize("seed", range(5))
def test_duplicates_score_as_scikit_learn_scores_them_at_every_threshold(seed: int) -> None:
    from sklearn.metrics import average_precision_score, f1_score

    generator = np.random.default_rng(seed)
    labels = (generator.random(300) < 0.4).astype(np.float64)
    # Ties within and between both classes.
    cosines = np.round(labels * 0.3 + generator.random(300), 2)
    precision, f1 = duplicate_scores(cosines, labels)
    assert precision == pytest.approx(average_precision_score(labels, cosines))
    assert f1 == pytest.approx(max(f1_score(labels, cosines >= threshold) for threshold in cosines))


def test_a_gain_by_hand_with_an_interval_that_covers_it() -> None:
    # Long pairs are ordered only by the last layer, short ones by both; each leaves where it is ordered.
    generator = np.random.default_rng(1)
    scores = generator.random(400)
    long = np.arange(400) % 2 == 1
    early = np.where(long, generator.random(400), scores)
    layers = np.where(long, 2, 1)
    cosines = made_cosines(np.stack([early, scores]), scores, np.stack([layers, layers]), np.where(long, 30, 5))
    figures = similarity_figures(cosines, scores, "similarity", 300, 1, [8])
    cut = (figures["spearman_by_layer"][0] + 1) / 2
    assert figures["spearman_exit"] == pytest.approx(1.0)
    assert figures["spearman_gain"] == pytest.approx(1 - cut)
    low, high = figures["spearman_gain_ci95"]
    assert 0.1 < low < figures["spearman_gain"] < high < 0.5
    assert [(row["tokens"], row["n"], row["expected_layers"]) for row in figures["by_length"]] == [
        ([1, 8], 200, 1.0),
        ([9, None], 200, 2.0),
    ]
    # All pairs of one length leave at one layer: cutting there is the same.
    assert [row["spearman_gain"] for row in figures["by_length"]] == [0.0, 0.0]


def test_the_table_of_pairs_gives_the_figures_back() -> None:
    generator = np.random.default_rng(3)
    scores, exited = generator.random((2, 50))
    cosines = made_cosines(generator.random((3, 50)), exited, 2)
    columns = pair_columns(cosines, scores)
    figures = similarity_figures(cosines, scores, "similarity", 100, 1)
    assert spearmanr(columns["cosine_full"], columns["score"]).statistic == pytest.approx(figures["spearman_full"])
    assert spearmanr(columns["cosine_exit"], columns["score"]).statistic == pytest.approx(figures["spearman_exit"])
    assert columns["layer1"].mean() == columns["layer2"].mean() == 2.0

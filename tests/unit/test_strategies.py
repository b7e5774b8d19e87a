import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny_models import MakeFolder

from leap.evaluate.judge import Judge, ScoredPairs
from leap.evaluate.lengths import length_bins
from leap.evaluate.strategies import own_strategies, strategies
from leap.evaluate.sweep import sweep
from leap.evidence.bounds import passes, recommend
from leap.exits import ExitRule, LeapEncoder
from leap.exits.calibrate.fit_predictors import fit_predictors
from leap.exits.neighbours import NeighbourOverlap, neighbours, overlap
from leap.exits.rules import at_layers, converged, patient


def random_pooled(layers: int = 6, rows: int = 40, spread: float = 0.6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(layers + 1, rows, 8, generator=generator)
    return (steps * (spread ** torch.arange(layers + 1))[:, None, None]).cumsum(0)


def slowly_patient(pooled: torch.Tensor, rule: ExitRule, patience: int) -> list[int]:
    """PABEE's counter, a row and a layer at a time."""
    depth, result = len(pooled) - 1, []
    for row in range(pooled.shape[1]):
        counter, leaves = 0, depth
        for layer in range(1, depth + 1):
            if layer <= rule.patience:
                continue
            before, now = pooled[layer - rule.patience, row], pooled[layer, row]
            near = torch.nn.functional.cosine_similarity(now, before, dim=0) >= rule.threshold
            counter = counter + 1 if near else 0
            if counter >= patience and layer >= rule.min_layer:
                leaves = layer
                break
        result.append(leaves)
    return result


@given(st.integers(1, 4), st.floats(-1, 1), st.integers(1, 6), st.integers(1, 2), st.integers(0, 3))
def test_patient_is_pabees_counter(patience: int, threshold: float, min_layer: int, k: int, seed: int) -> None:
    pooled, rule = random_pooled(seed=seed), ExitRule(threshold, min_layer, k)
    assert patient(pooled, rule, patience).tolist() == slowly_patient(pooled, rule, patience)
    if patience == 1:
        assert patient(pooled, rule, 1).equal(converged(pooled, rule))


def test_the_table_of_strategies() -> None:
    rule, pooled = ExitRule(0.9, 2), random_pooled()
    own = {"predictors": lambda vectors: torch.full((vectors.shape[1],), 3)}
    table = strategies(rule, 6, own)
    assert list(table) == ["converged", "patience_2", "patience_3", "predictors", "near_final"]
    results = {name: choose(pooled).double().mean().item() for name, choose in table.items()}
    assert results["converged"] <= results["patience_2"] <= results["patience_3"]
    assert results["predictors"] == 3.0
    assert list(strategies(rule, 2)) == ["converged", "near_final"]


def test_a_models_own_strategies_are_what_its_folder_has_files_for(
    make_folder: MakeFolder, sentences: list[str]
) -> None:
    model = LeapEncoder(make_folder(), "cpu")
    pooled = torch.empty(model.depth + 1, len(sentences), model.encoder.config.width)
    for rows, batch in model.pooled_layers(sentences):
        pooled[:, rows] = batch
    rule = ExitRule(0.9, 2)
    assert own_strategies(model, rule) == {}
    fit_predictors([pooled]).save(model.folder)
    own = own_strategies(model, rule)
    _, exits = model.encode(sentences, strategy="predictors", threshold=0.9, min_layer=2, return_exit_layers=True)
    assert list(own) == ["predictors"]
    assert own["predictors"](pooled).tolist() == exits.tolist()


def test_the_judge_by_its_reference() -> None:
    pooled = random_pooled()
    near = torch.nn.functional.cosine_similarity
    scores = near(pooled[-1, :20], pooled[-1, 20:], dim=1).numpy() + np.random.default_rng(0).random(20)
    pairs = ScoredPairs(torch.arange(20), torch.arange(20, 40), scores)
    exits = torch.tensor([2, 3, 4, 6] * 10)
    result = Judge(NeighbourOverlap(pooled, 5), pairs)(exits)
    vectors, full = at_layers(pooled, exits), pooled[-1]

    def correlation(items: torch.Tensor) -> float:
        return float(spearmanr(near(items[:20].double(), items[20:].double(), dim=1), pairs.scores).statistic)

    assert result == pytest.approx(
        {
            "rate": 0.75,
            "expected_layers": 3.75,
            "layer_reduction": 6 / 3.75,
            "similarity": near(vectors, full, dim=1).mean().item(),
            "nn_at_10": overlap(neighbours(vectors, 5), neighbours(full, 5)).mean().item(),
            "spearman": correlation(vectors),
            "quality": correlation(vectors) / correlation(full),
        },
        abs=1e-6,
    )
    assert "spearman" not in Judge(NeighbourOverlap(pooled, 5))(exits)


def test_gains_are_against_the_model_cut_at_the_same_depth() -> None:
    pooled = random_pooled()
    judge = Judge(NeighbourOverlap(pooled, 5))
    mixed = judge(torch.tensor([2, 3, 4, 6] * 10))
    third, fourth = (judge(torch.full((40,), layer)) for layer in (3, 4))
    assert judge.gains(third) == {"similarity_gain": 0.0, "nn_at_10_gain": 0.0}
    expected = {
        f"{name}_gain": mixed[name] - (0.25 * third[name] + 0.75 * fourth[name])
        for name in ("similarity", "nn_at_10")
    }
    assert judge.gains(mixed) == pytest.approx(expected, abs=1e-8)


def test_kept_neighbours_computes_a_choice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    overlaps = NeighbourOverlap(random_pooled(), 5)
    first = overlaps(3)
    monkeypatch.setattr("leap.exits.neighbours.nearest", None)
    assert overlaps(torch.full((40,), 3)).equal(first)
    with pytest.raises(TypeError):
        overlaps(4)


def test_the_sweep_is_every_combination_without_a_forward_pass() -> None:
    pooled = random_pooled()
    judge = Judge(NeighbourOverlap(pooled, 5))
    points = sweep(pooled, judge, [0.9, 0.97], [2, 4, 6, 8], [1, 2, 6])
    # min_layer 6 and 8 and patience 6 leave no early exit in a model of 6 layers.
    assert {(p["threshold"], p["min_layer"], p["patience"]) for p in points} == {
        (theta, low, k) for theta in (0.9, 0.97) for low in (2, 4) for k in (1, 2)
    }
    for point in points:
        expected = judge(converged(pooled, ExitRule(point["threshold"], point["min_layer"], point["patience"])))
        assert {key: point[key] for key in expected} == expected
    assert any(point["efficient"] for point in points)
    for point in points:
        better = [
            other
            for other in points
            if other["expected_layers"] <= point["expected_layers"] and other["similarity"] > point["similarity"]
        ]
        assert not (point["efficient"] and better)


def point(layers: float, rate: float = 1.0, similarity: float = 0.95, nn: float = 0.85) -> dict[str, object]:
    results: dict[str, object] = {
        "expected_layers": layers,
        "rate": rate,
        "similarity": similarity,
        "nn_at_10": nn,
    }
    return {**results, "passes": passes(results)}


def test_the_recommended_point_has_the_fewest_layers_of_those_that_pass() -> None:
    points = [
        point(2.0, similarity=0.9399),
        point(3.0, nn=0.7999),
        point(4.0, similarity=0.94, nn=0.8),
        point(4.0, similarity=0.96),
        point(11.0, rate=0.5),
    ]
    assert [p["passes"] for p in points] == [False, False, True, True, False]
    assert recommend(points) == points[3]
    assert recommend(points[:2]) is None


def test_length_bins() -> None:
    tokens = np.array([3] * 10 + [8] * 5 + [9] * 12 + [40] * 3)
    results = [(bounds, int(mask.sum())) for bounds, mask in length_bins(tokens, [8, 16])]
    # The three long ones are too few to say anything.
    assert results == [([1, 8], 15), ([9, 16], 12)]
    assert [bounds for bounds, _ in length_bins(tokens, [])] == [[1, None]]

"""The figures of a study, on vectors made so that the answers are known."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr, t

from leap.core.settings.studies import Study
from leap.evidence.spread import over_seeds
from leap.exits import ExitRule
from leap.exits.neighbours import neighbours
from leap.exits.rules import converged
from leap.studies.figures import Measured, extra_rows, patience_rows, threshold_rows, usual_figures, width_rows

ROWS, WIDTH, LAYERS = 24, 8, 5


@pytest.fixture
def taken() -> Measured:
    """Layers that come nearer and nearer to the last one."""
    generator = torch.Generator().manual_seed(3)
    final, noise = (torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))
    pooled = torch.stack([final + noise * away for away in (2.0, 1.0, 0.6, 0.2, 0.05, 0.0)])
    sides = torch.randperm(ROWS, generator=generator)
    scores = np.random.default_rng(0).random(ROWS // 2)
    return Measured(pooled, sides[: ROWS // 2], sides[ROWS // 2 :], scores, neighbours(pooled[-1], 3))


def test_full_depth_loses_nothing_and_its_correlation_is_scipys(taken: Measured) -> None:
    figures = taken.figures(taken.full_depth())
    last = taken.pooled[-1].double()
    cosines = torch.cosine_similarity(last[taken.one], last[taken.two], dim=-1).numpy()
    assert figures["spearman"] == pytest.approx(spearmanr(cosines, taken.scores).statistic)
    assert figures["similarity"] == pytest.approx(1.0)
    assert (figures["nn_at_10"], figures["nn_fail_50"]) == (1.0, 0.0)
    assert (figures["exit_rate"], figures["layer_reduction"]) == (0.0, 1.0)


def test_usual_figures_follow_the_deployable_rule(taken: Measured) -> None:
    rule = ExitRule(0.95, 2, 1)
    exits = converged(taken.pooled, rule)
    figures = usual_figures(taken, rule)
    assert figures["expected_layers"] == pytest.approx(exits.double().mean().item())
    assert figures["spearman_exit"] == pytest.approx(taken.figures(exits)["spearman"])
    assert figures["spearman_full"] == figures["layers"][-1]["spearman"]
    assert figures["oracle"]["similarity"] >= 0.95
    assert [row["layer"] for row in figures["layers"]] == [1, 2, 3, 4, 5]


def test_a_higher_theta_leaves_later_under_both_rules(taken: Measured) -> None:
    rows = threshold_rows(taken, ExitRule(0.95, 2, 1), [0.8, 0.9, 0.99])
    for strategy in ("converged", "near_final"):
        depths = [row["expected_layers"] for row in rows if row["strategy"] == strategy]
        assert depths == sorted(depths)
        assert depths[0] < depths[-1]
    assert all(row["exit_by_7"] is None for row in rows)  # there is no layer 8 to leave before


def test_patience_one_is_the_deployable_rule_and_more_leaves_later(taken: Measured) -> None:
    rule = ExitRule(0.9, 2, 1)
    one, two, three = patience_rows(taken, rule, [1, 2, 3])
    assert one["expected_layers"] == converged(taken.pooled, rule).double().mean().item()
    assert one["expected_layers"] <= two["expected_layers"] <= three["expected_layers"]


def test_patience_counts_layers_in_a_row() -> None:
    # Both sentences turn by these degrees from layer to layer; up to 18 degrees is a similarity of 0.95.
    places = torch.tensor([0.0, 40.0, 45.0, 90.0, 95.0, 100.0, 101.0]).deg2rad()
    pooled = torch.stack([places.cos(), places.sin()], dim=-1)[:, None].repeat(1, 3, 1)
    taken = Measured(pooled, torch.tensor([0]), torch.tensor([1]), np.ones(1), neighbours(torch.eye(3), 1))
    one, two, three = patience_rows(taken, ExitRule(0.95, 1, 1), [1, 2, 3])
    assert [row["expected_layers"] for row in (one, two, three)] == [2.0, 5.0, 6.0]


def test_a_models_own_strategies_stand_beside_pabees(taken: Measured) -> None:
    rule, own = ExitRule(0.9, 2, 1), {"calibrated": lambda pooled: torch.full((pooled.shape[1],), 3)}
    asked = {"description": "strategies", "variants": {"leap": {"description": "leap"}}}
    rows = extra_rows(taken, rule, Study.model_validate(asked | {"patiences": [2]}), own)
    assert [(row["strategy"], row["expected_layers"]) for row in rows["own"]] == [("calibrated", 3.0)]
    assert rows["own"][0]["spearman"] == taken.correlation(taken.pooled[3])
    assert extra_rows(taken, rule, Study.model_validate(asked), own) == {}


def test_widths_keep_the_first_dimensions_and_multiply_with_layers(taken: Measured) -> None:
    rows = width_rows(taken, ExitRule(0.9, 2, 1), [1.0, 0.5])
    whole, half = (row for row in rows if row["path"] == "exit")
    assert (whole["width"], half["width"]) == (WIDTH, WIDTH // 2)
    assert half["reduction"] == pytest.approx(2 * whole["layer_reduction"])
    cut = Measured(
        taken.pooled[..., : WIDTH // 2], taken.one, taken.two, taken.scores, neighbours(taken.pooled[-1], 3)
    )
    full = next(row for row in rows if row["path"] == "full" and row["width"] == WIDTH // 2)
    assert full["spearman"] == pytest.approx(cut.figures(cut.full_depth())["spearman"])


def test_an_interval_over_seeds_is_students() -> None:
    values = [0.70, 0.72, 0.77]
    spread = over_seeds(values)
    low, high = t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / np.sqrt(3))
    assert spread["mean"] == pytest.approx(0.73)
    assert spread["ci95"] == pytest.approx([low, high])
    assert over_seeds([0.7]) == {"mean": 0.7, "std": None, "ci95": None, "low": 0.7, "high": 0.7, "n": 1}

import pytest

from leap.evidence.spread import spread


def test_spread_by_hand() -> None:
    seeds = [
        {"sts": {"spearman_exit": 0.76}, "exit": {"rate": 1.0}, "retrieval": {"x": {"ndcg_at_10_exit": 0.4}}},
        {"sts": {"spearman_exit": 0.80}, "exit": None, "retrieval": {"x": None}},
    ]
    figures = spread(seeds)
    assert figures["sts.spearman_exit"] == {
        "mean": pytest.approx(0.78),
        # The sample's: root of (0.02^2 + 0.02^2) / 1.
        "std": pytest.approx(0.0008**0.5),
        # Student's t of one degree of freedom is 12.7062; the standard error of two values half their distance.
        "ci95": pytest.approx([0.78 - 12.7062 * 0.02, 0.78 + 12.7062 * 0.02], abs=1e-5),
        "low": 0.76,
        "high": 0.80,
        "n": 2,
    }
    # What one seed has not measured is left out, never counted as zero.
    assert figures["exit.rate"] == {"mean": 1.0, "std": None, "ci95": None, "low": 1.0, "high": 1.0, "n": 1}
    assert figures["retrieval.x.ndcg_at_10_exit"]["n"] == 1
    assert set(figures) == {"sts.spearman_exit", "exit.rate", "retrieval.x.ndcg_at_10_exit"}

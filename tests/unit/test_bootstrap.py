import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from leap.evidence import bootstrap
from leap.evidence.bootstrap import mean_interval, percentile_interval, resamples
from leap.evidence.spearman import spearman, spearman_of_resamples


def test_spearman_by_hand() -> None:
    # Ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15) = 0.8
    assert spearman(np.array([1.0, 2.0, 3.0, 10.0]), np.array([0.0, 5.0, 4.0, 9.0])) == pytest.approx(0.8)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=40))
def test_spearman_is_scipys_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, dtype=np.float64).T
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert spearman(x, y) == 0.0
    else:
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_spearman_of_resamples_is_scipys_on_the_rows_drawn() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=50)
    y = np.round(x + generator.normal(size=50))
    counts = next(resamples(50, 20, seed=4))
    expected = [spearmanr(np.repeat(x, row), np.repeat(y, row)).statistic for row in counts]
    assert spearman_of_resamples(x, y, counts) == pytest.approx(expected, abs=1e-12)


def test_resamples_have_the_size_of_the_set_and_are_seeded() -> None:
    counts = np.concatenate(list(resamples(7, 100, seed=1)))
    assert counts.shape == (100, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert counts.max() > 1
    assert (counts == np.concatenate(list(resamples(7, 100, seed=1)))).all()
    assert (counts != np.concatenate(list(resamples(7, 100, seed=2)))).any()


def test_blocks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=30)
    whole = mean_interval(values, 1000, seed=1)
    monkeypatch.setattr(bootstrap, "BLOCK", 30 * 7)
    assert mean_interval(values, 1000, seed=1) == pytest.approx(whole, abs=1e-12)


def test_interval_of_a_mean_covers_it_nineteen_times_in_twenty() -> None:
    generator = np.random.default_rng(8)
    covered = 0
    for seed in range(300):
        low, high = mean_interval(generator.normal(0.3, 1.0, size=80), 400, seed)
        covered += low <= 0.3 <= high
    # Binomial(300, 0.95) lies in 273..295 but once in a thousand; the percentile interval is a little narrow.
    assert 270 <= covered <= 295


def test_interval_has_the_width_of_theory() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    low, high = mean_interval(values, 2000, seed=1)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 2000**0.5, rel=0.06)
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=0.003)


def test_interval_of_spearman_covers_it_nineteen_times_in_twenty() -> None:
    # For a normal pair of correlation r, Spearman's is 6 / pi * asin(r / 2).
    truth = 6 / np.pi * np.arcsin(0.4)
    generator = np.random.default_rng(5)
    covered = 0
    for seed in range(200):
        x, noise = generator.normal(size=(2, 150))
        y = 0.8 * x + 0.6 * noise
        low, high = percentile_interval(
            [spearman_of_resamples(x, y, counts) for counts in resamples(150, 300, seed)]
        )
        covered += low <= truth <= high
    assert 178 <= covered <= 199


def test_a_constant_has_no_width() -> None:
    assert mean_interval(np.full(20, 0.5), 100, seed=0) == [0.5, 0.5]

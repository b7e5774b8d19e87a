import numpy as np
import pytest
import torch

from leap.evaluate.gain import at_depths, matched_oracle, mean_gain, spearman_gains
from leap.evaluate.layers import interpolate
from leap.evidence.bootstrap import resamples
from leap.evidence.spearman import spearman
from leap.exits.rules import at_layers, near_final, similarity_to_final


def test_at_depths_reads_between_two_layers() -> None:
    curves = np.array([[0.1, 0.5], [0.3, 0.6], [1.0, 0.9]])
    result = at_depths(curves, np.array([1.5, 2.75]))
    assert result == pytest.approx([0.2, 0.6 * 0.25 + 0.9 * 0.75])
    # The ends, and a sum that misses them by its last bit.
    assert at_depths(curves, np.array([3.0000000001, 1.0])) == pytest.approx([1.0, 0.5])
    assert at_depths(curves, np.array([0.9999999999, 3.0])) == pytest.approx([0.1, 0.9])


def test_mean_gain_by_hand() -> None:
    # One text is as good at layer 1 as at 3, the other only at 3: leaving at 1 and 3 loses nothing.
    by_layer = np.array([[0.9, 0.2], [0.9, 0.5], [0.9, 1.0]])
    gain = mean_gain(by_layer, np.array([0.9, 1.0]), np.array([1.0, 3.0]), 200, 1)
    # Expected depth 2, where the mean is 0.7.
    assert gain.value == pytest.approx(0.95 - 0.7)
    # A resample of one text alone has no gain, one of both has all of it.
    assert gain.interval == pytest.approx([0.0, 0.25])
    assert gain.as_evidence("x") == {"x": gain.value, "x_ci95": gain.interval}


def test_one_depth_for_all_gains_nothing() -> None:
    by_layer = np.random.default_rng(0).random((4, 50))
    gain = mean_gain(by_layer, by_layer[2], np.full(50, 3.0), 100, 1)
    assert gain.value == 0.0
    assert gain.interval == [0.0, 0.0]


def test_leaving_at_random_gains_nothing_within_its_interval() -> None:
    generator = np.random.default_rng(2)
    by_layer = np.sort(generator.random((6, 2000)), axis=0)
    layers = generator.integers(1, 7, 2000)
    chosen = by_layer[layers - 1, np.arange(2000)]
    gain = mean_gain(by_layer, chosen, layers.astype(np.float64), 300, 1)
    assert gain.interval[0] < 0 < gain.interval[1]
    assert gain.interval[1] - gain.interval[0] < 0.05


def test_spearman_gains_are_those_of_the_rows_drawn() -> None:
    generator = np.random.default_rng(5)
    scores = generator.random(60)
    by_layer = np.stack([scores + noise * generator.normal(size=60) for noise in (2.0, 1.0, 0.3, 0.1)])
    layers = generator.integers(2, 9, 60) / 2
    chosen = generator.random(60)
    counts = next(resamples(60, 10, seed=3))
    result = spearman_gains(by_layer, layers, chosen, counts, scores)
    for row, gain in zip(counts, result, strict=True):
        drawn = np.repeat(np.arange(60), row)
        curve = [spearman(layer[drawn], scores[drawn]) for layer in by_layer]
        expected = spearman(chosen[drawn], scores[drawn]) - interpolate(curve, layers[drawn].mean())
        assert gain == pytest.approx(expected, abs=1e-12)


def test_the_oracle_stops_at_the_depth_that_it_is_given() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(9, 200, 8, generator=generator) * (0.7 ** torch.arange(9))[:, None, None]
    pooled = steps.cumsum(0)
    for depth in (2.0, 4.5, 7.9):
        layers, threshold = matched_oracle(pooled, depth)
        result = layers.double().mean().item()
        assert depth - 0.02 <= result <= depth
        assert layers.equal(near_final(pooled, threshold))
    # Among choices of one expected depth the oracle is at least as near as leaving at one layer.
    layers, _ = matched_oracle(pooled, 4.0)
    own = torch.nn.functional.cosine_similarity(at_layers(pooled, layers), pooled[-1], dim=-1).mean()
    assert own > similarity_to_final(pooled)[3].mean()


def test_a_model_that_never_leaves_has_no_headroom() -> None:
    pooled = torch.randn(5, 20, 8, generator=torch.Generator().manual_seed(1))
    layers, _ = matched_oracle(pooled, 4.0)
    assert layers.tolist() == [4] * 20

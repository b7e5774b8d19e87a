"""Sentences that score unlike the calibration's: counted while they are served, said in the log, judged."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import WORDS, MakeFolder

from leap.exits import LeapEncoder
from leap.exits.calibrate.calibrate_folder import calibrate
from leap.exits.calibrate.risk import Demand
from leap.serve import Monitor
from leap.serve.score_shift import ScoreReference, stability_index


def drawn(seed: int, words: list[str], lengths: range, rows: int = 1500) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=generator.choice(lengths))) for _ in range(rows)]


@pytest.fixture
def calibrated(make_folder: MakeFolder) -> LeapEncoder:
    """A model whose sentences were of 5 to 15 words."""
    folder = make_folder()
    loaded = calibrate(LeapEncoder(folder, "cpu"), drawn(1, WORDS, range(5, 16)), Demand(0.5, 0.2, 0.9))
    loaded.save(folder)
    return LeapEncoder(folder, "cpu")


def test_the_index_is_the_formulas() -> None:
    result, expected = np.array([30.0, 70.0]), np.array([50.0, 50.0])
    p, q = np.array([30.5, 70.5]) / 101, np.array([0.5, 0.5])
    assert stability_index(result, expected) == pytest.approx(float(((p - q) * np.log(p / q)).sum()))
    assert stability_index(expected, expected) == 0
    assert stability_index(np.zeros(2), np.zeros(2)) is None


def test_scores_are_counted_in_the_calibrations_bins() -> None:
    reference = ScoreReference(1, {3: (np.linspace(0.1, 0.9, 9), np.full(10, 0.1))})
    counted = reference.counts(3, torch.tensor([0.05, 0.15, 0.15, 0.95, torch.nan]))
    assert counted is not None
    assert counted[0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    assert counted[1].tolist() == [0.4] * 10
    assert reference.counts(4, torch.tensor([0.5])) is None


def test_sentences_like_the_calibrations_raise_nothing(
    calibrated: LeapEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calibrated.monitor = Monitor(calibrated, tmp_path / "windows")
    calibrated.encode(drawn(2, WORDS, range(5, 16)), threshold=0.9, min_layer=2)
    window = calibrated.monitor.window()
    assert sum(window.scores) == pytest.approx(sum(window.calibrated_scores)) == 1500
    assert window.score_shift is not None
    assert window.score_shift < 0.05
    assert "score unlike" not in caplog.text


def test_sentences_of_another_domain_are_said_to_be_one(
    calibrated: LeapEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calibrated.monitor = Monitor(calibrated, tmp_path / "windows")
    others = drawn(3, WORDS[:6], range(1, 3))
    for start in range(0, 1500, 100):
        calibrated.encode(others[start : start + 100], threshold=0.9, min_layer=2)
    window = calibrated.monitor.window()
    assert window.score_shift is not None
    assert window.score_shift > 0.2
    assert caplog.text.count("score unlike those of the calibration") == 1


def test_without_a_calibration_there_is_nothing_to_compare_with(
    make_folder: MakeFolder, tmp_path: Path, sentences: list[str]
) -> None:
    model = LeapEncoder(make_folder(), "cpu")
    model.monitor = Monitor(model, tmp_path / "windows")
    model.encode(sentences)
    assert model.monitor.window().score_shift is None

"""The pipeline's own calibration: what it needs before training, and what it leaves beside the weights."""

import json
from pathlib import Path

import pytest
from leap.exits.calibrate.held_out import calibrate_student, check_held_out
from tiny_models import WORDS, write_folder

from leap.core.errors import UserError
from leap.core.settings.training import CalibrationSettings
from leap.exits import LeapEncoder
from leap.exits.calibration import FILE

HALF = CalibrationSettings(floor=0.5, risk=0.05, confidence=0.95)
SENTENCES = [f"{one} {two} {three}" for one in WORDS[:8] for two in WORDS[8:16] for three in WORDS[16:24]]


def test_too_few_sentences_are_refused_before_the_training() -> None:
    # The exact test of 5 % at half of 5 %: (1 - .05)^n <= .025 first holds for n = 72, a third of all.
    check_held_out(["a sentence"] * 216, HALF)
    with pytest.raises(UserError, match=r"held_out\.parquet has 215 sentences.* needs 216: raise data\.held_out"):
        check_held_out(["a sentence"] * 215, HALF)


def test_a_student_is_calibrated_and_an_old_calibration_goes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    calibrate_student(folder, SENTENCES, HALF, "cpu")
    content = json.loads((folder / FILE).read_text())
    assert {key: content["report"][key] for key in ("floor", "risk", "confidence")} == HALF.model_dump()
    assert content["report"]["exited"] > 0
    _, layers = LeapEncoder(folder).encode(SENTENCES[:50], strategy="calibrated", return_exit_layers=True)
    assert min(layers) == content["min_layer"]
    calibrate_student(folder, SENTENCES, None, "cpu")
    assert not (folder / FILE).exists()

"""The pipeline's own calibration: what it needs before any work, and what it leaves next to the weights."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import WORDS, write_folder
from tiny_settings import tiny_variant

from leap.core.errors import UserError
from leap.core.settings.training import CalibrationSettings
from leap.exits import LeapEncoder
from leap.exits.calibrate.finish_model import check_held_out, finish_model
from leap.exits.calibration import FILE

HALF = CalibrationSettings(floor=0.5, risk=0.05, keep=0.2, confidence=0.95)
SENTENCES = [f"{one} {two} {three}" for one in WORDS[:8] for two in WORDS[8:16] for three in WORDS[16:24]]


def test_too_few_sentences_are_refused_before_any_work() -> None:
    # The exact test of 5 % at half of 5 %: (1 - .05)^n <= .025 first holds for n = 72, a third of all.
    check_held_out(["a sentence"] * 216, HALF)
    with pytest.raises(UserError, match=r"held_out\.parquet has 215 sentences.* needs 216: raise data\.held_out"):
        check_held_out(["a sentence"] * 215, HALF)


def test_a_student_is_calibrated_and_an_old_calibration_goes(tmp_path: Path) -> None:
    student, target = write_folder(tmp_path / "student"), tmp_path / "model"
    variant = tiny_variant()
    exits = variant.exit.model_copy(update={"min_layer": 2, "calibration": HALF})
    calibrated = finish_model(student, target, variant.model_copy(update={"exit": exits}), SENTENCES, SENTENCES)
    content = json.loads((target / FILE).read_text())
    assert {key: content["report"][key] for key in HALF.model_dump()} == HALF.model_dump()
    assert content["report"]["exited"] > 0
    assert calibrated.report["nn_at_10"] == content["report"]["nn_at_10"] > 0.2
    _, layers = LeapEncoder(target).encode(SENTENCES[:50], strategy="calibrated", return_exit_layers=True)
    assert min(layers) == content["min_layer"]
    assert not (student / FILE).exists()
    # A ready checkpoint's calibration is made again, not carried along.
    shutil.copy(target / FILE, student / FILE)
    exits = exits.model_copy(update={"calibration": HALF.model_copy(update={"floor": 0.9999})})
    finish_model(student, target, variant.model_copy(update={"exit": exits}), SENTENCES, SENTENCES)
    assert json.loads((target / FILE).read_text())["report"]["floor"] == 0.9999

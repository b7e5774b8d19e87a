"""From a student to the model that is judged and served: exit rule, predictors and tested thresholds."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from leap.core.checksums import write_sums
from leap.core.errors import UserError
from leap.core.files import whole_folder, write_with_checksum
from leap.core.sample_sizes import fewest_to_calibrate
from leap.core.settings import VariantSettings
from leap.core.settings.training import CalibrationSettings
from leap.exits.calibrate.calibrate_folder import Calibrated, calibrate, describe
from leap.exits.calibrate.fit_predictors import fit_predictors
from leap.exits.calibrate.risk import Demand
from leap.exits.calibration import FILE as CALIBRATION
from leap.exits.leap_encoder import LeapEncoder
from leap.exits.rules import ExitRule
from leap.models.find import CHANGING
from leap.models.open_model import read_shape

log = logging.getLogger(__name__)

BATCH_SIZE = 256


def finish_model(
    student: Path, target: Path, variant: VariantSettings, training_text: Sequence[str], held_out: Sequence[str]
) -> Calibrated | None:
    """Write a copy of a student with its exit rule, predictors and calibration, whole or not at all.

    Args:
        student: what `train` wrote.
        target: models/<variant>-<seed>.
        variant: `exit` says what to make.
        training_text: the sentences that the predictors are fitted on.
        held_out: the sentences that the thresholds are tested on, never seen in training.

    Raises:
        UserError: the student is missing, the rule does not fit its depth, or there are too few sentences.
    """
    if not student.is_dir():
        raise UserError(f"{student} is missing: `dvc repro` or `python stages/train.py` trains it")
    wanted = variant.exit.calibration
    if wanted is not None:
        check_held_out(held_out, wanted)
    calibrated = None
    with whole_folder(target) as temporary:
        shutil.copytree(student, temporary, dirs_exist_ok=True)
        write_rule(temporary, variant)
        write_sums(temporary, CHANGING)
        model = LeapEncoder(temporary, variant.train.device)
        # A ready checkpoint keeps its predictors and its calibration, unless others are asked for.
        if variant.exit.predictors:
            fit_predictors(pooled for _, pooled in model.pooled_layers(training_text, BATCH_SIZE)).save(temporary)
        if wanted is not None:
            (temporary / CALIBRATION).unlink(missing_ok=True)
            demand = Demand(wanted.floor, wanted.risk, wanted.confidence, wanted.keep)
            calibrated = calibrate(model, held_out, demand, batch_size=BATCH_SIZE)
            calibrated.save(temporary)
    for line in [] if calibrated is None else describe(calibrated):
        log.info("%s, calibrated: %s", target, line)
    return calibrated


def write_rule(folder: Path, variant: VariantSettings) -> None:
    """Write leap.json, the exit rule that LeapEncoder uses by default; refuse one that does not fit the depth."""
    rule = ExitRule(**variant.exit.rule())
    try:
        rule.check_depth(read_shape(folder).layers)
    except ValueError as error:
        raise UserError(f"variants.{variant.name}.exit does not fit the model: {error}") from None
    layer = variant.exit.query_layer
    queries = {} if layer is None else {"query": {"layer": layer}, "document": "full"}
    write_with_checksum(folder / "leap.json", {"exit": asdict(rule), **queries})


def check_held_out(sentences: Sequence[str], settings: CalibrationSettings) -> None:
    least = fewest_to_calibrate(settings.risk, settings.confidence, settings.keep)
    if len(sentences) < least:
        raise UserError(
            f"data/held_out.parquet has {len(sentences)} sentences, and exit.calibration with risk "
            f"{settings.risk} at confidence {settings.confidence} needs {least}: raise data.held_out, or set "
            "exit.calibration to null"
        )

"""The pipeline's calibration: of a student just trained, on the sentences that extract held out."""

import logging
from collections.abc import Sequence
from pathlib import Path

from leap.calibration.risk import Demand
from leap.calibration.run import calibrate, lines, needed_sentences
from leap.errors import UserError
from leap.exits.calibration import FILE
from leap.exits.encoder import LeapEncoder
from leap.settings.student import CalibrationSettings

log = logging.getLogger(__name__)

BATCH_SIZE = 256


def check_held_out(sentences: Sequence[str], settings: CalibrationSettings) -> None:
    """Refuses, before hours of training, what could not be calibrated after them.

    Raises:
        UserError: there are too few sentences.
    """
    least = needed_sentences(demand(settings))
    if len(sentences) < least:
        raise UserError(
            f"data/held_out.parquet has {len(sentences)} sentences, and exit.calibration with risk "
            f"{settings.risk} at confidence {settings.confidence} needs {least}: raise data.held_out, or set "
            "exit.calibration to null"
        )


def calibrate_student(
    folder: Path, sentences: Sequence[str], settings: CalibrationSettings | None, device: str
) -> None:
    """Writes calibration.json beside the student's weights, or takes an old one away if none is asked for.

    Args:
        folder: models/<variant>-<seed>.
        sentences: of data/held_out.parquet.
        settings: what to hold.
        device: as in LeapEncoder.
    """
    if settings is None:
        (folder / FILE).unlink(missing_ok=True)
        return
    found = calibrate(LeapEncoder(folder, device), sentences, demand(settings), batch_size=BATCH_SIZE)
    found.save(folder)
    for line in lines(found):
        log.info("%s, calibrated: %s", folder, line)


def demand(settings: CalibrationSettings) -> Demand:
    """The settings as `leap calibrate` names them."""
    return Demand(settings.floor, settings.risk, settings.confidence)

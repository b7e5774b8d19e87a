"""A checkpoint, opened as it is judged: the folder that serves, with the exit rule that lies in it."""

from leap.core.errors import UserError
from leap.core.stage import Run
from leap.exits import LeapEncoder


def open_checkpoint(run: Run, device: str | None = None) -> LeapEncoder:
    """Open the run's model on a device, `evaluation.device` if None; refuse an unknown variant or model."""
    run.settings.variant(run.variant)
    folder = run.checkpoint.model
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: `dvc repro` or `python stages/calibrate.py` writes it")
    return LeapEncoder(folder, device or run.settings.evaluation.device)

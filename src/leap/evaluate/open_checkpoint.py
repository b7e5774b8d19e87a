"""A checkpoint, opened as it is judged: the folder that serves, with the exit rule that lies in it."""

from leap.core.errors import UserError
from leap.core.stage import Run
from leap.exits import LeapEncoder


def open_checkpoint(run: Run, device: str | None = None) -> LeapEncoder:
    """Open the run's model.

    Args:
        run: names the variant and the seed.
        device: as in LeapEncoder; `evaluation.device` if None.

    Raises:
        UserError: there is no such variant or model.
    """
    run.settings.variant(run.variant)
    folder = run.checkpoint.model
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: `dvc repro` or `python stages/calibrate.py` writes it")
    return LeapEncoder(folder, device or run.settings.evaluation.device)

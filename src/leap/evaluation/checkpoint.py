"""A trained checkpoint, opened as it is judged: at the variant's own exit rule."""

from pathlib import Path

from leap.errors import UserError
from leap.exits import ExitRule, LeapEncoder
from leap.settings import Settings

MODELS = Path("models")


def checkpoint_folder(variant: str, seed: int) -> Path:
    """Where the training of a variant and seed leaves its model."""
    return MODELS / f"{variant}-{seed}"


def open_checkpoint(settings: Settings, variant: str, seed: int, device: str) -> tuple[LeapEncoder, ExitRule]:
    """The model and the exit rule that the settings name for it.

    The rule is read from the settings and not from the model's leap.json, so a changed threshold is measured
    without a new training.

    Raises:
        UserError: there is no such variant or checkpoint, or the rule does not fit the model's depth.
    """
    exit_settings = settings.variant(variant).exit
    folder = checkpoint_folder(variant, seed)
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: `dvc repro` or `python stages/train.py` trains it")
    model = LeapEncoder(folder, device)
    rule = ExitRule(exit_settings.threshold, exit_settings.min_layer, exit_settings.patience)
    if rule.min_layer > model.depth:
        raise UserError(
            f"variants.{variant}.exit.min_layer: {rule.min_layer} is above the {model.depth} layers of "
            f"{folder}; set it to {model.depth} or less"
        )
    if rule.patience >= model.depth:
        raise UserError(
            f"variants.{variant}.exit.patience: {rule.patience} must be below the {model.depth} layers of "
            f"{folder}"
        )
    return model, rule

"""The source of an export: a checkpoint's folder, or a registered version, with its card."""

import logging
from pathlib import Path

from leap.core.errors import UserError
from leap.core.files import read_json
from leap.core.settings import Settings
from leap.evidence.evidence_file import model_hash, read_evidence
from leap.registry.card import model_card
from leap.registry.export_folder import CARD

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"


def model_folder(model: str, settings: Settings | None, scratch: Path) -> Path:
    """The checkpoint folder of what the user named.

    Args:
        model: a folder, or `models:/NAME@ALIAS` and what else MLflow takes.
        settings: name the registry; needed for a registered model only.
        scratch: where a registered model is downloaded to.

    Raises:
        UserError: there is none.
    """
    if not model.startswith("models:/"):
        folder = Path(model)
        if not (folder / WEIGHTS).is_file():
            raise UserError(f"{folder} has no {WEIGHTS}: name models/leap-1 or models:/leap-docstrings@champion")
        return folder
    if settings is None:
        raise UserError(
            f"{model} is in a registry, which params.yaml names: run this in the project, or name --params FILE"
        )
    from leap.core.passwords import without_passwords
    from leap.tracking.store import StoreError, Tracking, store_errors

    tracking = Tracking.open(settings, required=True)
    from mlflow.artifacts import download_artifacts

    try:
        with store_errors():
            downloaded = Path(download_artifacts(model, dst_path=str(scratch), tracking_uri=tracking.uri))
    except StoreError as error:
        raise UserError(f"{model} cannot be had from {without_passwords(tracking.uri)}: {error}") from None
    checkpoints = sorted(path.parent for path in downloaded.glob(f"artifacts/*/{WEIGHTS}"))
    if not checkpoints:
        raise UserError(f"{model} holds no checkpoint: name a version that the gate registered (`leap history`)")
    return checkpoints[0]


def card_of(folder: Path, settings: Settings | None) -> str | None:
    """Return the checkpoint's card: its own README.md, else one made from its verdict and evidence."""
    if (folder / CARD).is_file():
        return (folder / CARD).read_text(encoding="utf-8")
    variant, _, seed = folder.name.rpartition("-")
    path = Path("verdicts") / f"{folder.name}.json"
    if settings is None or not seed.isdigit() or variant not in settings.variants or not path.is_file():
        logger.info("no verdict on %s here: its card has no figures", folder)
        return None
    verdict = read_json(path, "dvc repro")
    if verdict["model"] != model_hash(folder):
        logger.info("%s is about another model than %s: the card has no figures", path, folder)
        return None
    return model_card(settings, read_evidence(variant, int(seed), settings, models=folder.parent), verdict)

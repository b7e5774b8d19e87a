"""`leap export`: a checkpoint or a registered version in a form that other programs load."""

import tempfile
from pathlib import Path

from leap.core.errors import UserError
from leap.core.files import must_be_new
from leap.core.settings import read_settings
from leap.registry.card import plain_card
from leap.registry.export_folder import export_truncated, export_whole
from leap.registry.export_onnx import export_onnx
from leap.registry.export_source import card_of, model_folder

WHOLE = "sentence-transformers"


def run_export(model: str, target: Path, form: str, layers: int | None, params: Path) -> None:
    """Write the model to a new folder, with its card; the settings are read where they are there.

    Raises:
        UserError: the form does not fit `layers`, the target exists, or there is no such model.
    """
    if form == WHOLE and layers is not None:
        raise UserError(f"--to {form} writes all layers: leave out --layers, or name --to truncated or --to onnx")
    if form != WHOLE and layers is None:
        raise UserError(f"--to {form} needs --layers K, the number of layers to keep, for example --layers 6")
    must_be_new(target)
    settings = read_settings(params) if params.exists() else None
    with tempfile.TemporaryDirectory() as scratch:
        folder = model_folder(model, settings, Path(scratch))
        card = card_of(folder, settings)
        if layers is None:
            export_whole(folder, target, card or plain_card(target.name))
        else:
            (export_onnx if form == "onnx" else export_truncated)(folder, layers, target, card)

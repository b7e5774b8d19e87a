"""The modules after the transformer: how a folder makes one vector of the tokens."""

from pathlib import Path
from typing import Any, Literal

from leap.core.errors import UserError
from leap.models.folder import ModelFolder, UnsupportedError, read_json_file

Pooling = Literal["mean", "cls"]

# sentence-transformers 5 writes one name, older versions a flag a mode.
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


def read_pooling(folder: Path) -> Pooling:
    """Read the pooling of 1_Pooling/config.json; the mean where there is none, as in sentence-transformers.

    Raises:
        UserError: it is neither the mean nor the first token.
    """
    path = _pooling_config(folder)
    content = read_json_file(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object: fetch the model again")
    if not content.get("include_prompt", True):  # of the first token too: it is the first one behind the prompt
        raise UnsupportedError(f"{path}: include_prompt false is not supported: prompts are always pooled")
    modes = pooling_modes(content)
    if modes not in (["cls"], ["mean"]):
        raise UnsupportedError(
            f"{path}: pooling by {', '.join(modes)} is not supported, only mean and cls: choose another model"
        )
    return "cls" if modes == ["cls"] else "mean"


def normalizes(folder: Path) -> bool:
    """Tell whether the folder's modules end by scaling vectors to length 1; refuse modules that are not known."""
    kinds = [module.kind for module in ModelFolder.read(folder).modules]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedError(
                f"{folder}/modules.json: module {kind} is not supported, only Transformer, Pooling and "
                "Normalize: choose another model"
            )
    return "Normalize" in kinds


def pooling_modes(content: dict[str, Any]) -> list[str]:
    """Return the modes that a Pooling module's config.json switches on; the mean where it says nothing."""
    if "pooling_mode" in content:
        named = content["pooling_mode"]
        return [str(name) for name in named] if isinstance(named, list) else [str(named)]
    on = [key for key, value in content.items() if key.startswith("pooling_mode_") and value]
    return [_FLAGS.get(key, key.removeprefix("pooling_mode_")) for key in on] or ["mean"]


def _pooling_config(folder: Path) -> Path:
    modules = ModelFolder.read(folder).modules
    return (
        folder / next((module.path for module in modules if module.kind == "Pooling"), "1_Pooling") / "config.json"
    )

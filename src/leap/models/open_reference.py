"""A folder opened by sentence-transformers: local files, safetensors, no code of its own, no weight made up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leap.core.errors import UserError
from leap.models.folder import ModelFolder, check_types, read_json_file
from leap.models.weights import check_finite, tensor_types

OWN = "sentence_transformers."
# Characters of a library's message that are shown.
SHOWN = 400


def open_reference(folder: Path, layers: int | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """Open a folder by sentence-transformers; what is missing of its weights is set to NaN, so that a use shows.

    Args:
        folder: the model's.
        layers: keep only the first ones; all if None.
        dtype: as `model_kwargs` name it to sentence-transformers. It keeps some tensors wider, such as the
            frequencies of rotary positions, which a cast of the whole model would narrow.

    Raises:
        UserError: it needs code of its own, or cannot be read.
    """
    _check_safe(folder)
    with _quiet():
        from sentence_transformers import SentenceTransformer

        try:
            model = SentenceTransformer(
                str(folder),
                device="cpu",
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True, "dtype": dtype},
                config_kwargs=None if layers is None else _shorten(folder, layers),
            )
        except Exception as error:  # noqa: BLE001 - the libraries raise whatever a damaged file makes them
            raise UserError(
                f"{folder} cannot be read by sentence-transformers ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:SHOWN]}): install or change what it names, or fetch the model "
                "again if its files are damaged"
            ) from None
    auto = getattr(model[0], "auto_model", None)
    if auto is None:
        raise UserError(
            f"{folder}: the first module is {type(model[0]).__name__}, no transformer whose layers could be left: "
            "choose another model, or use it by sentence-transformers"
        )
    with torch.no_grad():
        for _, parameter in _missing_parameters(auto):
            parameter.fill_(torch.nan)
    missing = {id(parameter) for _, parameter in _missing_parameters(auto)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in missing:
            check_finite(folder, name, parameter.detach())
    return model


def _shorten(folder: Path, layers: int) -> dict[str, Any]:
    """Return the changes to config.json for a model's first layers, lists of something a layer included."""
    from transformers import AutoConfig

    transformer = str(ModelFolder.read(folder).transformer)
    config = AutoConfig.from_pretrained(transformer, local_files_only=True)  # nosec B615
    depth = config.num_hidden_layers
    lists = {key: value for key, value in config.to_dict().items() if isinstance(value, list)}
    shorter = {key: value[:layers] for key, value in lists.items() if len(value) == depth}
    return {"num_hidden_layers": layers, **shorter}


def _missing_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that transformers made itself, since the weights lack them."""
    named = list(model.named_parameters())
    made = [item for item in named if not getattr(item[1], "_is_hf_initialized", False)]
    return made if len(made) < len(named) else []


def missing_weights(model: nn.Module) -> str:
    """Name the weights that the files lack, as the beginning of a sentence; empty where they lack none."""
    names = [name for name, _ in _missing_parameters(model)]
    return (
        f"the weights lack {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}, and so"
        if names
        else ""
    )


def _check_safe(folder: Path) -> None:
    """Refuse code of a model's own, pickles, and numbers that are not the weights themselves."""
    layout = ModelFolder.read(folder)
    path = folder / "modules.json"
    for module in read_json_file(path) if path.is_file() else ():
        if not str(module["type"]).startswith(OWN):
            raise UserError(
                f"{path}: module {module['type']} is code of the model's own, which is never run: choose a model "
                "of sentence-transformers' own modules"
            )
        inside = folder / str(module.get("path", ""))
        if (inside / "pytorch_model.bin").is_file() and not any(inside.glob("*.safetensors")):
            raise UserError(
                f"{inside} has a pickle (pytorch_model.bin) and no safetensors: save the model again with "
                "sentence-transformers: SentenceTransformer(OLD).save('NEW FOLDER')"
            )
    config = read_json_file(layout.transformer / "config.json")
    if isinstance(config, dict) and config.get("auto_map") and not _is_known(str(config.get("model_type"))):
        raise UserError(
            f"{layout.transformer}/config.json: model_type {config.get('model_type')!r} is code of the model's "
            "own (auto_map), which is never run (trust_remote_code): choose an architecture that transformers has"
        )
    for file in layout.weights:
        check_types(file, tensor_types(file))


def _is_known(model_type: str) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()  # type: ignore[no-untyped-call]
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]


def first_line(error: Exception) -> str:
    """Return the first line of what a library says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0]}"

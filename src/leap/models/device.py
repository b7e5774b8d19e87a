"""Where a model is computed and in what precision, from the words of a setting or an argument."""

import re
from pathlib import Path
from typing import Any

import torch

from leap.core.errors import UserError
from leap.models.folder import FLOATS, INDEX, WEIGHTS, ModelFolder, read_json_file
from leap.models.tokenizer import sentence_settings
from leap.models.weights import tensor_types

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def resolve_device(device: str) -> torch.device:
    """Return the device of a setting: auto is cuda where there is one.

    Raises:
        UserError: it is no device, or cuda is asked for and there is none.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", str(device)):
        raise UserError(f"device {device!r} is none of auto, cpu, cuda and cuda:N")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {device!r} is set but this machine has no usable CUDA device: set cpu or auto")
    return torch.device(device)


def training_precision(precision: str, device: torch.device) -> str:
    """Return fp32 or bf16 for a setting: auto is bf16 where that is faster, on CUDA and on a CPU with AMX."""
    if precision != "auto":
        return precision
    # Without such units a CPU computes bfloat16 by way of float32, several times slower than float32.
    units: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16" if device.type == "cuda" or units.get("amx_bf16", False) else "fp32"


def dtype_of(model_kwargs: dict[str, Any] | None) -> torch.dtype | None:
    """Return the precision that `model_kwargs` name, None for none or auto; ValueError for anything else."""
    named = dict(model_kwargs or {})
    dtype = named.pop("dtype", named.pop("torch_dtype", None))
    if dtype in (None, "auto") and not named:
        return None
    kind: torch.dtype | None = (
        getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    )
    if named or not isinstance(kind, torch.dtype) or kind not in PRECISIONS:
        raise ValueError(f"model_kwargs {model_kwargs} is not supported: only dtype, float32, bfloat16 or float16")
    return kind


def own_dtype(folder: Path) -> torch.dtype:
    """Return the precision in which sentence-transformers computes a folder where the caller names none.

    The first of these that says one: the arguments in sentence_bert_config.json, config.json (`dtype`, in older
    ones `torch_dtype`), the index of shards, the first floating-point weight (transformers' `_get_dtype`, for
    "auto"). float64 is computed in float32.

    Raises:
        UserError: it is none of float32, bfloat16 and float16, or the folder is no whole model.
    """
    layout = ModelFolder.read(folder)
    layout.check()
    first, config = layout.weights[0], layout.transformer / "config.json"
    own = sentence_settings(layout.transformer) if layout.modules else {}
    said = [own.get(key) for key in ("model_args", "model_kwargs", "config_args", "config_kwargs")]
    said.append(read_json_file(config))
    if first.name != WEIGHTS:
        said.append(read_json_file(layout.transformer / INDEX).get("metadata"))
    names = (part.get("dtype") or part.get("torch_dtype") for part in said if isinstance(part, dict))
    name = next((name for name in names if name not in (None, "auto")), None)
    if name is None:
        kind = next((kind for kind in tensor_types(first).values() if kind in FLOATS), "F32")
        name = {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
    dtype = getattr(torch, str(name), None)
    if dtype == torch.float64:
        return torch.float32
    if not isinstance(dtype, torch.dtype) or dtype not in PRECISIONS:
        raise UserError(
            f"{config}: dtype {name!r} is none of float32, bfloat16 and float16: correct it, or name one by "
            "model_kwargs={'dtype': 'float32'}"
        )
    return dtype

"""Where a model is computed and in what precision, from the words of a setting or an argument."""

import re
from typing import Any

import torch

from leap.core.errors import UserError


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


def dtype_of(model_kwargs: dict[str, Any] | None) -> torch.dtype:
    """Return the precision that `model_kwargs` name, else float32; ValueError for another keyword or type."""
    named = dict(model_kwargs or {})
    dtype = named.pop("dtype", named.pop("torch_dtype", None)) or torch.float32
    kind = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if named or kind not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"model_kwargs {model_kwargs} is not supported: only dtype, float32, bfloat16 or float16")
    return kind

"""Safetensors files with the sha256 of their content: a flipped bit in a tensor would load without it.

Hashing costs about a second for each gigabyte or two.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leap.core.files import sha256_of_json

# The one entry of the file's metadata: safetensors writes several in a random order.
ENTRY = "leap"


class DamagedError(ValueError):
    """A file that is not what was written; the message says in what way."""


def save_with_checksum(tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, str] | None = None) -> None:
    """Write tensors and notes with the sha256 of both; the same content has the same bytes.

    Args:
        tensors: by name, on any device.
        path: the file.
        notes: text by name; `checksum` is taken.
    """
    plain = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    notes = dict(notes or {})
    entry = json.dumps(notes | {"checksum": _checksum(plain, notes)}, sort_keys=True)
    save_file(plain, path, metadata={ENTRY: entry})


def load_with_checksum(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_with_checksum` wrote: the tensors on the CPU, and the notes.

    Raises:
        DamagedError: the file is cut, changed, or was not written by `save_with_checksum`.
        OSError: it cannot be read at all.
    """
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get(ENTRY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, json.JSONDecodeError) as error:
        raise DamagedError(f"it is not a whole safetensors file ({error})") from None
    expected = notes.pop("checksum", None) if isinstance(notes, dict) else None
    if expected is None:
        raise DamagedError("it does not carry the checksum of its content")
    if _checksum(tensors, notes) != expected:
        raise DamagedError("it was changed after it was written: its checksum does not match its content")
    return tensors, notes


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256(sha256_of_json(notes).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""Safetensors files that carry the hash of their own content, so that no damaged byte is taken for a number.

Safetensors checks that a file is whole, not that it is the one that was written: a flipped bit in a tensor
loads. Hashing costs about a second for each gigabyte or two.
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

# The one entry of the file's metadata.
ENTRY = "sealed"


class DamagedError(ValueError):
    """A file that is not what was written; the message says in what way."""


def save_sealed(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors and metadata with the sha256 of both.

    Args:
        tensors: on the CPU, by name.
        path: the file.
        metadata: text by name; `content` is the hash's own.
    """
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    notes = dict(metadata or {})
    sealed = {**notes, "content": _digest(plain, notes)}
    # Safetensors writes several entries in a random order: the same content would have other bytes each time.
    save_file(plain, path, metadata={ENTRY: json.dumps(sealed, sort_keys=True)})


def load_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads what `save_sealed` wrote: the tensors on the CPU, and the metadata.

    Raises:
        DamagedError: the file is cut, changed, or was not written by `save_sealed`.
        OSError: it cannot be read at all.
    """
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get(ENTRY, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, json.JSONDecodeError) as error:
        raise DamagedError(f"it is not a whole safetensors file ({error})") from None
    expected = notes.pop("content", None) if isinstance(notes, dict) else None
    if expected is None:
        raise DamagedError("it does not carry the hash of its content")
    if _digest(tensors, notes) != expected:
        raise DamagedError("it was changed after it was written: its hash does not fit its content")
    return tensors, notes


def _digest(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256(sha256_of_json(notes).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""The forms in which `encode` returns vectors: sentence-transformers' own, precisions included."""

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Array = np.ndarray[Any, Any]


def finish(vectors: Tensor, normalizes: bool, dimensions: int, normalize_embeddings: bool) -> Tensor:
    """Return a batch of pooled vectors as the model's last modules and `encode`'s arguments leave them.

    The order is sentence-transformers': the model's own Normalize, truncation, then the caller's.
    """
    if normalizes:
        vectors = F.normalize(vectors, dim=-1)
    vectors = vectors[:, :dimensions]
    return F.normalize(vectors, dim=-1) if normalize_embeddings else vectors


def check_precision(precision: str | None) -> None:
    if precision is not None and precision not in get_args(Precision):
        raise ValueError(f"precision {precision!r} is none of {', '.join(get_args(Precision))}")


def convert(
    vectors: Tensor, precision: Precision | None, to_numpy: bool, to_tensor: bool
) -> Array | Tensor | list[Tensor]:
    """Return [N, D] float32 in the form that was asked for: an array, one tensor, or a list of tensors."""
    if precision in (None, "float32") or not len(vectors):
        return vectors if to_tensor else vectors.cpu().numpy() if to_numpy else list(vectors)
    quantized = quantize(vectors.cpu().numpy(), precision)
    if to_numpy and not to_tensor:
        return quantized
    tensor = torch.from_numpy(quantized)
    return tensor if to_tensor else list(tensor)


def quantize(vectors: Array, precision: Precision) -> Array:
    """Return vectors [N, D] in fewer bits, as `sentence_transformers.util.quantize_embeddings` makes them.

    int8 and uint8 cut each dimension's range over all N into 255 steps; binary and ubinary keep the sign, eight
    dimensions a byte. Raises ValueError for one vector, which has no range.
    """
    if precision in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return packed if precision == "ubinary" else np.asarray(packed - 128).astype(np.int8)
    if len(vectors) == 1:
        raise ValueError(f"precision {precision!r} needs the range of several vectors: encode more than one")
    lowest = vectors.min(0)
    steps = (vectors.max(0) - lowest) / 255
    buckets = np.clip(np.floor((vectors - lowest) / np.where(steps == 0, 1, steps)), 0, 255)
    return np.asarray(buckets if precision == "uint8" else buckets - 128).astype(
        np.uint8 if precision == "uint8" else np.int8
    )

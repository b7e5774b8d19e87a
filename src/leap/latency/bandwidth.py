"""The physical floor of one forward pass: every weight of its layers has to be read once."""

import time
from typing import Any

import torch
from torch import nn

from leap.models.int8 import Int8Linear
from leap.models.walk import Walkable

# Large enough that no cache holds it.
READ_BYTES = 2**28
READS = 7


def floor(encoder: Walkable, device: torch.device) -> dict[str, Any]:
    """Measure weight_bytes, bandwidth_bytes_per_second (the best of some reads) and ms, their ratio.

    Every weight counts but the tables of embeddings, of which a text reads a few rows. A model that a cache holds
    whole can be faster than this: it says what reading from memory takes.
    """
    assert isinstance(encoder, nn.Module)
    tables = {
        id(tensor) for part in encoder.modules() if isinstance(part, nn.Embedding) for tensor in part.parameters()
    }
    read = [tensor for tensor in encoder.parameters() if id(tensor) not in tables]
    weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in read)
    weight_bytes += sum(module.packed_bytes for module in encoder.modules() if isinstance(module, Int8Linear))
    bandwidth = measure_bandwidth(device)
    return {
        "weight_bytes": weight_bytes,
        "bandwidth_bytes_per_second": bandwidth,
        "ms": weight_bytes / bandwidth * 1000,
    }


def measure_bandwidth(device: torch.device) -> float:
    """Measure the bytes a second at which this process reads memory, the best of some reads."""
    memory = torch.ones(READ_BYTES // 4, device=device)
    seconds = []
    for _ in range(READS):
        _wait(device)
        start = time.perf_counter()
        memory.sum()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return READ_BYTES / min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

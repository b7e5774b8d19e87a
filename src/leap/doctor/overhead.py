"""What watching for convergence costs where nobody leaves: the paper's monitoring overhead, measured."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.models.batches import Batch, pack

# A cosine lies at or below 1: with this threshold every check is made and no row leaves.
UNREACHABLE = 2.0
WARM_UP = 3


@torch.inference_mode()
def monitoring_overhead(
    model: LeapEncoder, sentences: Sequence[str], rule: ExitRule, calls: int = 40
) -> dict[str, float]:
    """Times full depth with and without checks, one sentence at a time, both on the same sentences in turns.

    Args:
        model: the encoder.
        sentences: the first ones are timed.
        rule: says which layers are checked.
        calls: sentences.

    Returns:
        `ms_full` and `ms_monitored`, medians, and `overhead`: the median of each sentence's ratio, less 1.
    """
    ids = model.tokenizer(list(sentences[:calls]))
    batches = [pack([row]).to(model.device) for row in ids]
    monitor = ExitRule(UNREACHABLE, rule.min_layer, rule.patience)
    full = _timer(model, lambda batch: layer_forward(model.encoder, batch, model.depth))
    watched = _timer(model, lambda batch: exit_forward(model.encoder, batch, monitor))
    for batch in batches[:WARM_UP]:
        full(batch)
        watched(batch)
    times = [
        (full(batch), watched(batch)) if turn % 2 else (watched(batch), full(batch))[::-1]
        for turn, batch in enumerate(batches)
    ]
    return {
        "ms_full": median(plain for plain, _ in times),
        "ms_monitored": median(monitored for _, monitored in times),
        "overhead": median(monitored / plain for plain, monitored in times) - 1,
    }


def _timer(model: LeapEncoder, forward: Callable[[Batch], Any]) -> Callable[[Batch], float]:
    def milliseconds(batch: Batch) -> float:
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        start = time.perf_counter()
        forward(batch)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        return (time.perf_counter() - start) * 1000

    return milliseconds

"""Times calls on the card."""

import time
from collections.abc import Callable
from statistics import median

import torch

# Calls before the first burst: plain, captured, and as often as `leap.exits.cuda.schedule.Clock` takes times.
WARM_UP = 12
BURSTS, CALLS = 7, 20


def time_calls(*calls: Callable[[], object]) -> list[float]:
    """Return the milliseconds of each call, made back to back: the median of bursts, which take turns."""
    for call in calls:
        for _ in range(WARM_UP):
            call()
    rounds = [[_burst(call) for call in calls] for _ in range(BURSTS)]
    return [median(bursts) for bursts in zip(*rounds, strict=True)]


def _burst(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000 / CALLS

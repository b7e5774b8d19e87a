"""Times a call on the card."""

import time
from collections.abc import Callable
from statistics import median

import torch

# Calls before the first burst: plain, captured, and as often as `leap.exits.cuda.schedule.Clock` takes times.
WARM_UP = 12
BURSTS, CALLS = 5, 20


def time_call(call: Callable[[], object]) -> float:
    """Return the milliseconds of a call, made back to back: the median of some bursts."""
    for _ in range(WARM_UP):
        call()
    bursts = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        bursts.append((time.perf_counter() - start) * 1000 / CALLS)
    return median(bursts)

"""Timing on a CUDA card: what is timed, and by which clock.

full, exit, monitored and truncated run by the fast path that the model takes for such batches
(`leap.exits.paths`), with their inputs placed beforehand. Next to them stand the same layers without it:

graph, graph_truncated    PyTorch's operations in one CUDA graph a batch: the best that full depth had so far
eager, eager_exit         layer by layer, each exit test waited for by the host

Requests come back to back, as in service: a time is that of a burst of calls between two CUDA events over
their number. `ms_event_*` are of single calls, each between two events, which wait for the host to launch.
"""

import math
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.paths import FastPath
from leap.exits.plan import Plan, fixed_plan, plan_of
from leap.models.batches import Batch
from leap.models.exit_heads import ExitHeads

# A burst takes about this long, and at most so many calls.
BURST_MS = 2.0
BURST_CALLS = 20
# After so many batches a path knows its traffic: less than a thousandth of what it guessed at first is left.
TRAFFIC_BATCHES = 200
# Passes over the batches before anything is timed: plain calls, captures, and times by which the schedule changes
# its mind. By an H200's times nothing new comes after them (tests/unit/test_schedule.py).
SETTLING = 36

Forward = Callable[[Batch], Any]


def fast_path(model: LeapEncoder, batches: Sequence[Batch]) -> FastPath | None:
    """Return the path by which the model computes all of these batches; None where that is layer by layer."""
    taking = (path for path in model.paths.fast if all(path.takes(batch) for batch in batches))
    return next(taking, None)


def placed_calls(
    path: FastPath, batches: Sequence[Batch], plans: dict[str, Plan], exits: Tensor, heads: ExitHeads | None
) -> dict[str, Forward]:
    """Return a fast path's calls by name, with the batches placed and the path warm, as in a server that runs.

    `exits` [batches, B] int64 are where rows leave by the plan named `exit`, through the heads; by the others all
    leave at the stop, as they are.
    """
    return {
        name: placed_call(path, batches, plan, exits, heads)
        if name == "exit"
        else placed_call(path, batches, plan, torch.full_like(exits, plan.stop), None)
        for name, plan in plans.items()
    }


def placed_call(
    path: FastPath, batches: Sequence[Batch], plan: Plan, exits: Tensor, heads: ExitHeads | None
) -> Forward:
    for row in islice(cycle(exits), TRAFFIC_BATCHES):
        path.learn(plan, row.tolist())
    placed = {id(batch): path.place(batch, plan) for batch in batches}
    for _ in range(SETTLING):
        for ready in placed.values():
            path.run(ready, plan, heads)
    return lambda batch: path.run(placed[id(batch)], plan, heads)


def own_plans(depth: int, rule: ExitRule, monitor: ExitRule, cut: int) -> dict[str, Plan]:
    plans = {"exit": plan_of(rule, depth), "monitored": plan_of(monitor, depth)}
    return {
        "full": fixed_plan(depth, depth),
        **{name: plan for name, plan in plans.items() if plan is not None},
        "truncated": fixed_plan(cut, depth),
    }


def plain_calls(model: LeapEncoder, rule: ExitRule, cut: int, batches: Sequence[Batch]) -> dict[str, Forward]:
    """Return calls of the same layers in CUDA graphs, and layer by layer."""
    encoder, depth = model.encoder, model.depth
    return {
        "graph": capture(lambda batch: layer_forward(encoder, batch, depth), batches),
        "graph_truncated": capture(lambda batch: layer_forward(encoder, batch, cut), batches),
        "eager": lambda batch: layer_forward(encoder, batch, depth),
        "eager_exit": lambda batch: exit_forward(encoder, batch, rule),
    }


def capture(forward: Forward, batches: Sequence[Batch]) -> Forward:
    """Capture a call as one CUDA graph a batch."""
    graphs: dict[int, Any] = {}
    pool = torch.cuda.graph_pool_handle()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for batch in batches:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward(batch)
        torch.cuda.current_stream().wait_stream(side)
        graphs[id(batch)] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[id(batch)], pool=pool):
            forward(batch)
    return lambda batch: graphs[id(batch)].replay()


def burst_timer() -> Callable[[Forward, Batch], float]:
    """Return a timer of calls back to back, milliseconds a call; it remembers how many are a burst of a path."""
    sizes: dict[int, int] = {}

    def timer(path: Forward, batch: Batch) -> float:
        if id(path) not in sizes:
            path(batch)  # the first call may compile or allocate
            one = between_events(path, batch, 1)
            sizes[id(path)] = max(1, min(BURST_CALLS, math.ceil(BURST_MS / max(one, 1e-6))))
        return between_events(path, batch, sizes[id(path)])

    return timer


def single_timer(path: Forward, batch: Batch) -> float:
    """Return milliseconds between two CUDA events round one call."""
    return between_events(path, batch, 1)


def between_events(path: Forward, batch: Batch, calls: int) -> float:
    """Return milliseconds a call between two CUDA events; one call before them fills the pipeline of a burst."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    if calls > 1:
        path(batch)
    start.record()
    for _ in range(calls):
        path(batch)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls

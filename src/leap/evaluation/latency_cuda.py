"""The latency of paths through one model on a CUDA card: the fused kernel and its rivals.

Requests come back to back with their inputs on the device, and the paths take turns, so drift hits all
alike. A row's times are the wall time of BURST calls over their number; `ms_event_p50` is between CUDA events
round one.

full, exit, monitored, truncated: the fused kernel; monitored makes every check and no row leaves, truncated
is cut at exit's expected depth, rounded. Rivals: graph and graph_truncated (the eager layers as a CUDA
graph), eager, eager_exit, compiled (torch.compile, as a CUDA graph), sentence_transformers.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leap.environment import package_version
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.fused import FusedEncoder, fits
from leap.exits.paths import FusedPath, thresholds
from leap.exits.paths import Path as ComputePath
from leap.exits.rules import ExitRule
from leap.model.batches import Batch, row_lengths
from leap.model.encoder import Encoder

logger = logging.getLogger(__name__)

BURST = 20
# A cosine lies at or below 1: with this threshold no row leaves.
UNREACHABLE = 2.0
# Graphs hold memory and take time to capture, so rivals that are graphs see only the first batches.
GRAPHED_BATCHES = 8

Call = Callable[[], Any]
Times = dict[str, dict[str, np.ndarray[Any, np.dtype[np.float64]]]]


def fused_for(path: ComputePath, batches: Sequence[Batch]) -> FusedEncoder | None:
    """The path's fused kernel, where it takes all batches; the log says if it does not."""
    if not isinstance(path, FusedPath):
        return None
    if all(fits(batch, path.fused.config) for batch in batches):
        return path.fused
    logger.info("the fused kernel is not timed: a batch does not fit it")
    return None


def cuda_rows(
    fused: FusedEncoder, batches: Sequence[Batch], rule: ExitRule, warmup: int, iterations: int, folder: Path
) -> list[dict[str, Any]]:
    """The rows of one batch size (docs/architecture.md, "latency.json").

    Args:
        fused: the model.
        batches: alike in rows, on the device, all of which `fused` takes; the paths take them in turn.
        rule: theta, l_min and k.
        warmup: calls of each path beforehand.
        iterations: timed calls of each path, at least.
        folder: the model's, for the rivals that load it themselves.
    """
    batches = batches[:GRAPHED_BATCHES]
    encoder = fused.encoder
    depth = encoder.config.layers
    limits = thresholds(rule, depth)
    exits = torch.stack([fused.exit(batch, limits, rule.patience)[1] for batch in batches]).cpu()
    mean = exits.double().mean().item()
    cut = round(mean)
    paths = dict(fused_paths(fused, batches, limits, rule.patience, cut))
    paths |= dict(rival_paths(encoder, batches, rule, cut, folder))
    layers = {"exit": mean, "eager_exit": mean, "truncated": cut, "graph_truncated": cut}
    shared = {
        "device": "cuda",
        "batch": batches[0].rows,
        "tokens": sum(len(batch.ids) for batch in batches) / sum(batch.rows for batch in batches),
    }
    mixed = bool((exits != exits[:, :1]).any())
    return rows_of(timed(paths, len(batches), warmup, iterations), depth, layers, shared, mixed)


def fused_paths(
    fused: FusedEncoder, batches: Sequence[Batch], limits: Sequence[float], patience: int, cut: int
) -> Iterator[tuple[str, list[Call]]]:
    """The fused kernel's paths: name to a call a batch."""
    placed = [fused.place(batch) for batch in batches]
    checked = [UNREACHABLE if limit < math.inf else math.inf for limit in limits]
    yield "full", [partial(fused.full, batch) for batch in placed]
    yield "exit", [partial(fused.exit, batch, limits, patience) for batch in placed]
    yield "monitored", [partial(fused.exit, batch, checked, patience) for batch in placed]
    yield "truncated", [partial(fused.at, batch, cut) for batch in placed]


def rival_paths(
    encoder: Encoder, batches: Sequence[Batch], rule: ExitRule, cut: int, folder: Path
) -> Iterator[tuple[str, list[Call]]]:
    """What a user would run instead; what is not installed is left out, with a line in the log."""
    depth = encoder.config.layers
    yield "graph", [captured(partial(layer_forward, encoder, batch, depth)) for batch in batches]
    yield "graph_truncated", [captured(partial(layer_forward, encoder, batch, cut)) for batch in batches]
    yield "eager", [partial(layer_forward, encoder, batch, depth) for batch in batches]
    yield "eager_exit", [partial(exit_forward, encoder, batch, rule) for batch in batches]
    if len({batch.groups for batch in batches}) == 1:
        compiled = torch.compile(layer_forward)
        yield "compiled", [captured(partial(compiled, encoder, batch, depth)) for batch in batches]
    else:
        logger.info("torch.compile is not timed: it compiles anew for every mixture of lengths")
    if package_version("sentence-transformers"):
        yield "sentence_transformers", _sentence_transformers(folder, batches)
    if not package_version("onnxruntime-gpu"):
        logger.info("ONNX Runtime is not timed: its package for CUDA, onnxruntime-gpu, is not installed")


def captured(call: Call) -> Call:
    """The call as a CUDA graph's replay."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def timed(paths: dict[str, list[Call]], batches: int, warmup: int, iterations: int) -> Times:
    """Times every path on every batch, in turns.

    Returns:
        Per path `burst`, milliseconds a call back to back, and `single`, between CUDA events round one call;
        both [rounds, batches].
    """
    for calls in paths.values():
        for number in range(warmup):
            calls[number % batches]()
    rounds = max(5, math.ceil(iterations / (BURST * batches)))
    clocks = {"burst": burst, "single": single}
    times = {name: {clock: np.empty((rounds, batches)) for clock in clocks} for name in paths}
    names = list(paths)
    for turn in range(rounds * batches):
        place = divmod(turn, batches)
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            for clock, measure in clocks.items():
                times[name][clock][place] = measure(paths[name][place[1]])
    return times


def burst(call: Call) -> float:
    """Milliseconds a call, of BURST calls back to back."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BURST):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / BURST * 1000


def single(call: Call) -> float:
    """Milliseconds between CUDA events round one call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def rows_of(
    times: Times, depth: int, layers: dict[str, float], shared: dict[str, Any], mixed: bool
) -> list[dict[str, Any]]:
    """The measured paths as rows; `full` is what speed-ups are against.

    Args:
        times: of `timed`.
        depth: L.
        layers: expected layers of the paths that do not compute all.
        shared: what all rows hold.
        mixed: whether exits differ within a batch.
    """
    full = typical(times["full"]["burst"])
    rows = []
    for name, measured in times.items():
        expected = layers.get(name, depth)
        speed_up = full / typical(measured["burst"])
        p50, p95, p99 = (float(value) for value in np.percentile(measured["burst"], [50, 95, 99]))
        rows.append(
            {
                **shared,
                "path": name,
                "mixed": mixed and name in ("exit", "eager_exit"),
                "ms_p50": p50,
                "ms_p95": p95,
                "ms_p99": p99,
                "ms_mean": float(measured["burst"].mean()),
                "ms_std": float(measured["burst"].std(ddof=1)),
                "ms_event_p50": float(np.median(measured["single"])),
                "expected_layers": expected,
                "speed_up": speed_up,
                "layer_reduction_realised": speed_up / (depth / expected),
                "monitoring_overhead": 1 / speed_up - 1 if name == "monitored" else None,
            }
        )
    return rows


def typical(milliseconds: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The mean over batches of each batch's median."""
    return float(np.median(milliseconds, axis=0).mean())


def weight_floor(encoder: Encoder) -> dict[str, float]:
    """The time to read the layers' weights once, by the card's measured copy bandwidth."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=encoder.words.weight.device)
    target = torch.empty_like(source)
    milliseconds = min(single(lambda: target.copy_(source)) for _ in range(10))
    weights = sum(p.numel() * p.element_size() for layer in encoder.layers for p in layer.parameters())
    bandwidth = 2 * source.numel() / (milliseconds / 1000)
    return {"weight_bytes": weights, "bytes_per_second": bandwidth, "floor_ms": weights / bandwidth * 1000}


def _sentence_transformers(folder: Path, batches: Sequence[Batch]) -> list[Call]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cuda").half()
    calls: list[Call] = []
    for batch in batches:
        lengths = row_lengths(batch)
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64, device=batch.ids.device)
        mask = torch.zeros_like(ids)
        start = 0
        for row, length in enumerate(lengths):
            ids[row, :length] = batch.ids[start : start + length]
            mask[row, :length] = 1
            start += length
        calls.append(partial(model, {"input_ids": ids, "attention_mask": mask}))
    return calls

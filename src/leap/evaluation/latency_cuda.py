"""The latency of paths through one model on a CUDA card: the fused kernel and its rivals.

Requests come back to back, inputs are on the device beforehand, and every path runs in turns, so drift hits all
alike. A row's time is the wall time of `burst` calls over their number; CUDA events time single calls besides.

full         fused kernel, all layers
exit         fused kernel, Algorithm 1
monitored    fused kernel, every check made and no row leaves
truncated    fused kernel, cut at exit's expected depth, rounded
graph        rival: the eager forward pass in one CUDA graph, all layers
graph_truncated, eager, eager_exit, compiled, sentence_transformers, onnx_cuda: rivals
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.exits.forward import exit_forward, layer_forward
from leap.exits.fused import FusedEncoder, Placed
from leap.exits.paths import thresholds, why_not_fused
from leap.exits.rules import ExitRule
from leap.model.batches import Batch, row_lengths
from leap.model.encoder import Encoder

logger = logging.getLogger(__name__)

BURST = 20
UNREACHABLE = 2.0
Call = Callable[[], Any]


def cuda_rows(
    encoder: Encoder,
    batches: Sequence[Batch],
    limits: Sequence[float],
    warmup: int = 50,
    iterations: int = 200,
    folder: Path | None = None,
    rivals: bool = True,
) -> list[dict[str, Any]]:
    """The rows of one batch size.

    Args:
        encoder: on a CUDA device, in half precision.
        batches: alike in rows, on the device; the paths take them in turn.
        limits: the exit rule as a threshold a layer.
        warmup: calls of each path on each batch beforehand, at most.
        iterations: timed calls of each path.
        folder: the model's, for the rivals that load it themselves.
        rivals: time them too.

    Returns:
        A row a path, in the form of docs/architecture.md, "latency.json".

    Raises:
        ValueError: the fused kernel does not run here.
    """
    reason = why_not_fused(encoder)
    if reason:
        raise ValueError(f"there is no fused path to time: {reason}")
    fused = FusedEncoder(encoder)
    placed = [fused.place(batch) for batch in batches]
    exits = torch.stack([fused.exit(batch, limits)[1] for batch in placed]).cpu()
    paths = dict(fused_paths(fused, placed, limits, exits))
    layers = {"full": encoder.config.layers, "exit": exits.double().mean().item(), "truncated": cut(exits)}
    if rivals:
        paths |= dict(rival_paths(encoder, batches, limits, cut(exits), folder))
    times = timed(paths, len(batches), warmup, iterations)
    return rows_of(times, encoder.config.layers, layers, batches, exits)


def cut(exits: Tensor) -> int:
    """The depth of a truncated model with the same expected number of layers, rounded."""
    return round(exits.double().mean().item())


def fused_paths(
    fused: FusedEncoder, placed: Sequence[Placed], limits: Sequence[float], exits: Tensor
) -> Iterator[tuple[str, list[Call]]]:
    """The fused kernel's paths: name to a call a batch."""
    checked = [UNREACHABLE if limit < math.inf else math.inf for limit in limits]
    yield "full", [lambda batch=batch: fused.full(batch) for batch in placed]
    yield "exit", [lambda batch=batch: fused.exit(batch, limits) for batch in placed]
    yield "monitored", [lambda batch=batch: fused.exit(batch, checked) for batch in placed]
    yield "truncated", [lambda batch=batch: fused.at(batch, cut(exits)) for batch in placed]


def rival_paths(
    encoder: Encoder, batches: Sequence[Batch], limits: Sequence[float], layer: int, folder: Path | None
) -> Iterator[tuple[str, list[Call]]]:
    """What a user would run instead; those that are not installed are left out, with a line in the log."""
    depth = encoder.config.layers
    yield "graph", [captured(lambda batch=batch: layer_forward(encoder, batch, depth)) for batch in batches]
    yield (
        "graph_truncated",
        [captured(lambda batch=batch: layer_forward(encoder, batch, layer)) for batch in batches],
    )
    yield "eager", [lambda batch=batch: layer_forward(encoder, batch, depth) for batch in batches]
    finite = [limit for limit in limits if limit < math.inf]
    if finite:
        first = next(number for number, limit in enumerate(limits, 1) if limit < math.inf)
        rule = ExitRule(finite[0], first)
        yield "eager_exit", [lambda batch=batch: exit_forward(encoder, batch, rule) for batch in batches]
    compiled = torch.compile(
        lambda batch: layer_forward(encoder, batch, depth), mode="max-autotune-no-cudagraphs"
    )
    yield (
        "compiled_graph",
        [captured(lambda batch=batch: compiled(batch)) for batch in batches[:1]] * len(batches),
    )
    if folder is not None and find_spec("sentence_transformers"):
        yield "sentence_transformers", _sentence_transformers(folder, batches)


def captured(call: Call) -> Call:
    """The call as a CUDA graph's replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def timed(
    paths: dict[str, list[Call]], batches: int, warmup: int, iterations: int
) -> dict[str, dict[str, np.ndarray[Any, np.dtype[np.float64]]]]:
    """Times every path on every batch, in turns.

    Returns:
        Per path `burst`, milliseconds a call back to back, and `single`, between CUDA events round one call;
        both [rounds, batches].
    """
    rounds = max(1, iterations // BURST // batches)
    for calls in paths.values():
        for number in range(warmup):
            calls[number % batches]()
    empty = {
        name: {"burst": np.empty((rounds, batches)), "single": np.empty((rounds, batches))} for name in paths
    }
    names = list(paths)
    for turn in range(rounds * batches):
        row, column = divmod(turn, batches)
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            empty[name]["burst"][row, column] = burst(paths[name][column])
            empty[name]["single"][row, column] = single(paths[name][column])
    return empty


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
    times: dict[str, dict[str, np.ndarray[Any, np.dtype[np.float64]]]],
    depth: int,
    layers: dict[str, float],
    batches: Sequence[Batch],
    exits: Tensor,
) -> list[dict[str, Any]]:
    """The measured paths as rows; `full` is what speed-ups are against."""
    full = typical(times["full"]["burst"])
    rows = []
    for name, measured in times.items():
        expected = layers.get(name, layers["truncated"] if "truncated" in name else depth)
        expected = layers["exit"] if name == "eager_exit" else expected
        speed_up = full / typical(measured["burst"])
        p50, p95, p99 = (float(value) for value in np.percentile(measured["burst"], [50, 95, 99]))
        rows.append(
            {
                "device": "cuda",
                "path": name,
                "batch": batches[0].rows,
                "tokens": sum(len(batch.ids) for batch in batches) / sum(batch.rows for batch in batches),
                "mixed": "exit" in name and bool((exits != exits[:, :1]).any()),
                "ms_p50": p50,
                "ms_p95": p95,
                "ms_p99": p99,
                "ms_mean": float(measured["burst"].mean()),
                "ms_std": float(measured["burst"].std()),
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


def floor(encoder: Encoder) -> dict[str, float]:
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
    calls = []
    for batch in batches:
        lengths = row_lengths(batch)
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64, device=batch.ids.device)
        mask = torch.zeros_like(ids)
        start = 0
        for row, length in enumerate(lengths):
            ids[row, :length] = batch.ids[start : start + length]
            mask[row, :length] = 1
            start += length
        calls.append(lambda ids=ids, mask=mask: model({"input_ids": ids, "attention_mask": mask}))
    return calls

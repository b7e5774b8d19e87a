"""Latency of four paths through one model on the same real batches (paper, Appendix "Latency Measurement").

full        all layers, pooled once
exit        Algorithm 1
monitored   Algorithm 1 with a threshold that no cosine reaches: every check is made and no row leaves
truncated   cut at exit's expected depth, rounded: what fixed depth gives for the same number of layers

Batches are random, so exits and lengths may differ within one, as in service. They are tokenised, packed and
on the device beforehand; the paths take turns batch by batch, so drift hits all alike.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leap.evaluation.latency_cuda import cuda_rows, fused_for, weight_floor
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.model.batches import Batch, pack
from leap.settings.evaluation import LatencySettings

# Each batch is timed this often; its median is free of what other programs did meanwhile.
PASSES = 5
# A cosine lies at or below 1: with this threshold no row leaves.
UNREACHABLE = 2.0

Forward = Callable[[Batch], Any]


@torch.inference_mode()
def latency_figures(
    model: LeapEncoder, sentences: Sequence[str], rule: ExitRule, settings: LatencySettings, seed: int
) -> dict[str, Any]:
    """Everything in latency.json below its head (docs/architecture.md).

    Args:
        model: the encoder; its weights become float16 where the settings say fp16 and the device is CUDA.
        sentences: what is encoded.
        rule: the deployable exit rule.
        settings: `iterations` are the timed calls of a path, spread over a fifth as many batches.
        seed: of the choice of sentences.
    """
    # Float16 products are emulated on CPUs: nothing is served that way.
    precision = settings.precision if model.device.type == "cuda" else "fp32"
    if precision == "fp16":
        model.encoder.half()
    token_ids = model.tokenizer(sentences)
    batches = max(1, settings.iterations // PASSES)
    rows = []
    for size in settings.batch_sizes:
        drawn = random_batches(token_ids, size, batches, seed)
        placed = [batch.to(model.device) for batch in drawn]
        fused = fused_for(model.path, placed)
        if fused:
            rows += cuda_rows(fused, placed, rule, settings.warmup, settings.iterations, model.folder)
        else:
            rows += _rows_of(model, placed, rule, settings.warmup)
    smallest = min(settings.batch_sizes)
    exits = next(row for row in rows if row["path"] == "exit" and row["batch"] == smallest)
    return {
        "rows": rows,
        "speed_up": exits["speed_up"],
        "protocol": {
            "warmup": settings.warmup,
            "iterations": batches * PASSES,
            "batches": batches,
            "precision": precision,
            "threads": torch.get_num_threads(),
            "speed_up_at_batch": smallest,
            "input": "tokenised, packed and on the device beforehand",
            "clock": "CUDA events" if model.device.type == "cuda" else "perf_counter",
            **({"floor": weight_floor(model.encoder)} if model.device.type == "cuda" else {}),
        },
    }


def random_batches(token_ids: Sequence[list[int]], size: int, number: int, seed: int) -> list[Batch]:
    """Seeded random batches; a sentence comes twice in a batch only where there are fewer than `size`."""
    generator = np.random.default_rng([seed, size])
    batches = []
    for _ in range(number):
        rows = generator.choice(len(token_ids), size, replace=size > len(token_ids))
        batches.append(pack(sorted((token_ids[row] for row in rows), key=len)))
    return batches


def _rows_of(model: LeapEncoder, batches: list[Batch], rule: ExitRule, warmup: int) -> list[dict[str, Any]]:
    """The rows of one batch size."""
    encoder, depth = model.encoder, model.depth
    exits = torch.stack([exit_forward(encoder, batch, rule)[1] for batch in batches])
    monitor = ExitRule(UNREACHABLE, rule.min_layer, rule.patience)
    cut = round(exits.double().mean().item())
    paths: dict[str, Forward] = {
        "full": lambda batch: layer_forward(encoder, batch, depth),
        "exit": lambda batch: exit_forward(encoder, batch, rule),
        "monitored": lambda batch: exit_forward(encoder, batch, monitor),
        "truncated": lambda batch: layer_forward(encoder, batch, cut),
    }
    layers = {"full": depth, "exit": exits.double().mean().item(), "monitored": depth, "truncated": cut}
    times = timed(paths, batches, warmup, cuda_timer if model.device.type == "cuda" else cpu_timer)
    shared = {
        "batch": batches[0].rows,
        "tokens": sum(len(batch.ids) for batch in batches) / sum(batch.rows for batch in batches),
    }
    full = _typical(times["full"])
    rows = []
    for path, milliseconds in times.items():
        speed_up = full / _typical(milliseconds)
        rows.append(
            {
                "device": model.device.type,
                "path": path,
                **shared,
                "mixed": path == "exit" and is_mixed(exits),
                **spread(milliseconds),
                "expected_layers": layers[path],
                "speed_up": speed_up,
                "layer_reduction_realised": speed_up / (depth / layers[path]),
                "monitoring_overhead": 1 / speed_up - 1 if path == "monitored" else None,
            }
        )
    return rows


def timed(
    paths: dict[str, Forward], batches: Sequence[Batch], warmup: int, timer: Callable[[Forward, Batch], float]
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Times every path on every batch in turns.

    Args:
        paths: name to what is timed.
        batches: every path gets all of them, PASSES times.
        warmup: calls of each path beforehand.
        timer: runs a path on a batch and returns milliseconds.

    Returns:
        Per path [PASSES, batches], milliseconds.
    """
    names = list(paths)
    for call in range(warmup):
        for name in names:
            timer(paths[name], batches[call % len(batches)])
    times = {name: np.empty((PASSES, len(batches))) for name in names}
    for turn in range(PASSES * len(batches)):
        row, column = divmod(turn, len(batches))
        # Each path goes first in its turn: what follows on the same batch finds it in the cache.
        start = (row + column) % len(names)
        for name in names[start:] + names[:start]:
            times[name][row, column] = timer(paths[name], batches[column])
    return times


def cpu_timer(path: Forward, batch: Batch) -> float:
    """Wall time of one call, in milliseconds."""
    start = time.perf_counter()
    path(batch)
    return (time.perf_counter() - start) * 1000


def cuda_timer(path: Forward, batch: Batch) -> float:
    """Time between two CUDA events round one call, in milliseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    path(batch)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def spread(milliseconds: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Percentiles, mean and sample standard deviation of all timed calls."""
    p50, p95, p99 = (float(value) for value in np.percentile(milliseconds, [50, 95, 99]))
    return {
        "ms_p50": p50,
        "ms_p95": p95,
        "ms_p99": p99,
        "ms_mean": float(milliseconds.mean()),
        "ms_std": float(milliseconds.std(ddof=1)),
    }


def is_mixed(exits: Tensor) -> bool:
    """Whether rows of any batch leave at different layers; [batches, B] int64."""
    return bool((exits != exits[:, :1]).any())


def _typical(milliseconds: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The mean over batches of each batch's median: weighs batches by their work and ignores outliers."""
    return float(np.median(milliseconds, axis=0).mean())

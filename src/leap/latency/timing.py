"""Latency of several paths through one model on the same batches (paper, Appendix "Latency Measurement").

full        all layers, pooled once
exit        Algorithm 1
monitored   Algorithm 1 with a threshold that no cosine reaches: every check is made and no row leaves
truncated   cut at exit's expected depth, rounded: what fixed depth gives for the same number of layers
and the rivals that the settings name: the full model, run by others (`leap.latency.other_libraries`). On a
CUDA card there are more, and another clock (`leap.latency.timing_cuda`).

Batches are random, so exits and lengths may differ within one, as in service. They are tokenised, packed and
on the device beforehand; the paths take turns batch by batch, so drift hits all alike.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.latency import timing_cuda as latency_cuda
from leap.latency.bandwidth import floor
from leap.latency.other_libraries import Rival, open_rivals
from leap.models.batches import Batch, pack

if TYPE_CHECKING:
    from leap.core.settings.evaluation import LatencySettings

# Each batch is timed this often; its median is free of what other programs did meanwhile.
PASSES = 5
# A cosine lies at or below 1: with this threshold no row leaves.
UNREACHABLE = 2.0

Forward = Callable[[Batch], Any]
Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class TimedPath:
    """One way through the model: what is called, and how many layers it computes a sentence, on average."""

    forward: Forward
    layers: float


@torch.inference_mode()
def latency_figures(
    model: LeapEncoder, sentences: Sequence[str], rule: ExitRule, settings: "LatencySettings", seed: int
) -> dict[str, Any]:
    """Everything in latency.json below its head (docs/architecture.md).

    Args:
        model: the encoder; its weights become float16 where the settings say fp16 and the device is CUDA.
        sentences: what is encoded.
        rule: the deployable exit rule.
        settings: `iterations` are the timed calls of a path, spread over a fifth as many batches.
        seed: of the choice of sentences.

    Raises:
        UserError: the path that the model was told to take does not work here.
    """
    # Float16 products are emulated on CPUs: nothing is served that way.
    precision = settings.precision if model.device.type == "cuda" else "fp32"
    if precision == "fp16":
        model.half()
    ways = model.paths.names()
    token_ids = model.tokenizer(sentences)
    first = pack(sorted(token_ids[:2], key=len)).to(model.device)
    rivals, missing = open_rivals(settings.rivals, model, first)
    batches = max(1, settings.iterations // PASSES)
    rows = []
    for length in settings.lengths:
        limit = model.tokenizer.max_length
        ids = token_ids if length == "sentences" else joined_rows(token_ids, min(length, limit), seed)
        for size in settings.batch_sizes:
            drawn = [batch.to(model.device) for batch in random_batches(ids, size, batches, seed)]
            rows += _rows_of(model, drawn, length, rule, rivals, settings.warmup)
    smallest = min(settings.batch_sizes)
    exits = next(row for row in rows if row["path"] == "exit" and row["batch"] == smallest)
    return {
        "rows": rows,
        "speed_up": exits["speed_up"],
        "floor": floor(model.encoder.layers, model.device),
        "rivals_missing": missing,
        "protocol": {
            "warmup": settings.warmup,
            "iterations": batches * PASSES,
            "batches": batches,
            "precision": model.quantize or precision,
            "paths": ways,
            "threads": torch.get_num_threads(),
            "speed_up_at_batch": smallest,
            "input": "tokenised, packed (for rivals padded) and on the device beforehand",
            "clock": (
                f"CUDA events round bursts of up to {latency_cuda.BURST_CALLS} calls"
                if model.device.type == "cuda"
                else "perf_counter"
            ),
        },
    }


def joined_rows(token_ids: Sequence[list[int]], length: int, seed: int) -> list[list[int]]:
    """Sentences in a random order joined and cut into rows of one length, between their special tokens."""
    order = np.random.default_rng([seed, length]).permutation(len(token_ids))
    inner = list(chain.from_iterable(token_ids[row][1:-1] for row in order))
    while len(inner) < length:
        inner += inner
    first, last = token_ids[0][0], token_ids[0][-1]
    starts = range(0, len(inner) - (length - 2) + 1, length - 2)
    return [[first, *inner[start : start + length - 2], last] for start in starts]


def random_batches(token_ids: Sequence[list[int]], size: int, number: int, seed: int) -> list[Batch]:
    """Seeded random batches; a sentence comes twice in a batch only where there are fewer than `size`."""
    generator = np.random.default_rng([seed, size])
    batches = []
    for _ in range(number):
        rows = generator.choice(len(token_ids), size, replace=size > len(token_ids))
        batches.append(pack(sorted((token_ids[row] for row in rows), key=len)))
    return batches


def own_paths(
    model: LeapEncoder, rule: ExitRule, batches: Sequence[Batch], exits: Tensor
) -> tuple[dict[str, TimedPath], str]:
    """The ways through the encoder itself, and the name of the path by which it computes such batches.

    Args:
        model: the encoder.
        rule: the exit rule.
        batches: on the model's device.
        exits: [batches, B] int64, the layers at which their rows leave.
    """
    encoder, depth = model.encoder, model.depth
    monitor = ExitRule(UNREACHABLE, rule.min_layer, rule.patience)
    expected = exits.double().mean().item()
    cut = round(expected)
    layers = {"exit": expected, "truncated": cut, "graph_truncated": cut, "eager_exit": expected}
    calls: dict[str, Forward] = {
        "full": lambda batch: layer_forward(encoder, batch, depth),
        "exit": lambda batch: exit_forward(encoder, batch, rule),
        "monitored": lambda batch: exit_forward(encoder, batch, monitor),
        "truncated": lambda batch: layer_forward(encoder, batch, cut),
    }
    engine = "eager"
    if model.device.type == "cuda":
        fast = latency_cuda.fast_path(model, batches)
        if fast is not None:
            engine = fast.name
            plans = latency_cuda.own_plans(depth, rule, monitor, cut)
            calls = latency_cuda.placed_calls(fast, batches, plans, exits)
        calls |= latency_cuda.plain_calls(model, rule, cut, batches)
    return {name: TimedPath(call, layers.get(name, depth)) for name, call in calls.items()}, engine


def _rows_of(
    model: LeapEncoder,
    batches: list[Batch],
    length: str | int,
    rule: ExitRule,
    rivals: dict[str, Rival],
    warmup: int,
) -> list[dict[str, Any]]:
    """The rows of one length and batch size."""
    depth = model.depth
    exits = torch.stack([exit_forward(model.encoder, batch, rule)[1] for batch in batches])
    paths, engine = own_paths(model, rule, batches, exits)
    paths |= {name: TimedPath(rival.prepared(batches), depth) for name, rival in rivals.items()}
    on_card = model.device.type == "cuda"
    forwards = {name: path.forward for name, path in paths.items()}
    times = timed(forwards, batches, warmup, latency_cuda.burst_timer() if on_card else cpu_timer)
    singles = timed(forwards, batches, 0, latency_cuda.single_timer) if on_card else {}
    shared = {
        "batch": batches[0].rows,
        "length": length,
        "tokens": sum(len(batch.ids) for batch in batches) / sum(batch.rows for batch in batches),
    }
    full = _typical(times["full"])
    rows = []
    for path, milliseconds in times.items():
        speed_up, layers = full / _typical(milliseconds), paths[path].layers
        rows.append(
            {
                "device": model.device.type,
                "path": path,
                **shared,
                "engine": engine,
                "mixed": path in ("exit", "eager_exit") and is_mixed(exits),
                **spread(milliseconds),
                **event_figures(singles.get(path)),
                "expected_layers": layers,
                "speed_up": speed_up,
                "layer_reduction_realised": speed_up / (depth / layers),
                "monitoring_overhead": 1 / speed_up - 1 if path == "monitored" else None,
            }
        )
    return rows


def timed(
    paths: dict[str, Forward], batches: Sequence[Batch], warmup: int, timer: Callable[[Forward, Batch], float]
) -> dict[str, Times]:
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
            paths[name](batches[call % len(batches)])
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


def spread(milliseconds: Times) -> dict[str, float]:
    """Percentiles, mean and sample standard deviation of all timed calls."""
    p50, p95, p99 = (float(value) for value in np.percentile(milliseconds, [50, 95, 99]))
    return {
        "ms_p50": p50,
        "ms_p95": p95,
        "ms_p99": p99,
        "ms_mean": float(milliseconds.mean()),
        "ms_std": float(milliseconds.std(ddof=1)),
    }


def event_figures(milliseconds: Times | None) -> dict[str, float]:
    """Percentiles of single calls between CUDA events; nothing where there are none."""
    if milliseconds is None:
        return {}
    found = np.percentile(milliseconds, [50, 95, 99])
    return {f"ms_event_p{percent}": float(value) for percent, value in zip((50, 95, 99), found, strict=True)}


def is_mixed(exits: Tensor) -> bool:
    """Whether rows of any batch leave at different layers; [batches, B] int64."""
    return bool((exits != exits[:, :1]).any())


def _typical(milliseconds: Times) -> float:
    """The mean over batches of each batch's median: weighs batches by their work and ignores outliers."""
    return float(np.median(milliseconds, axis=0).mean())

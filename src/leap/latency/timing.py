"""Latency of several paths through one model on the same batches (paper, Appendix "Latency Measurement").

full        all layers, pooled once
exit        Algorithm 1
monitored   Algorithm 1 with a threshold that no cosine reaches: every check is made and no row leaves
truncated   cut at exit's expected depth, rounded: what fixed depth gives for the same number of layers

and for the frontier, on batches of the smallest size, each layer, each theta of the sweep, and the teacher.

On a CUDA card there are more, and another clock (`leap.latency.timing_cuda`). Other libraries are compared by
`tools/benchmark_libraries.py`.

Batches are random, so exits and lengths may differ within one, as in service. They are tokenised, packed and
on the device beforehand. The paths alternate: a round times each of them once on one batch, so drift and other
programs hit all alike. A speed-up is the ratio of two medians over the same rounds, its interval a bootstrap
over rounds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from leap.evidence.bootstrap import percentile_interval
from leap.exits import ExitRule, LeapEncoder
from leap.exits.forward import exit_forward, layer_forward
from leap.exits.plan import plan_of
from leap.exits.policy import ExitPolicy, Fixed
from leap.latency import timing_cuda as latency_cuda
from leap.latency.bandwidth import floor
from leap.models.batches import Batch, pack

if TYPE_CHECKING:
    from leap.core.settings.evaluation import LatencySettings

# Each batch is timed this often.
PASSES = 5
# Resamples of rounds for the interval of a speed-up.
DRAWS = 1000
# Ways to compute all layers without a check; exits have to beat the fastest of them.
FULL_DEPTH = ("full", "graph", "eager")
LAYER, THETA, TEACHER = "layer_", "theta_", "teacher"
# A cosine lies at or below 1: with this threshold no row leaves.
UNREACHABLE = 2.0

Forward = Callable[[Batch], Any]
Prepare = Callable[[Sequence[Batch]], Forward]
PRECISIONS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class TimedPath:
    """One way through the model: what is called, and how many layers it computes a sentence, on average."""

    forward: Forward
    layers: float


@torch.inference_mode()
def latency_figures(
    model: LeapEncoder,
    sentences: Sequence[str],
    rule: ExitRule,
    settings: "LatencySettings",
    seed: int,
    others: Mapping[str, Prepare] | None = None,
    teacher: LeapEncoder | None = None,
    thresholds: Sequence[float] = (),
) -> dict[str, Any]:
    """Measure everything in latency.json below its head (docs/formats.md).

    Args:
        model: the encoder; its weights become float16 where the settings say fp16 and the device is CUDA.
        settings: `iterations` are the timed calls of a path, spread over a fifth as many batches.
        seed: of the choice of sentences, and of the intervals.
        others: further ways to compute the full model, by name: each takes the drawn batches and returns what
            is timed on them.
        teacher: is timed too where its tokens are the model's.
        thresholds: theta, each timed with the rule's l_min and k.

    Raises:
        UserError: the chosen path does not work here.
    """
    # Float16 products are emulated on CPUs: nothing is served that way.
    half = settings.precision == "fp16" and model.device.type == "cuda"
    if half:
        model.half()
    if teacher is not None and teacher.tokenizer(sentences) != model.tokenizer(sentences):
        teacher = None  # the same sentences are other batches
    if teacher is not None and half:
        teacher.half()
    ways = model.paths.names()
    token_ids = model.tokenizer(sentences)
    batches = max(1, settings.iterations // PASSES)
    smallest = min(settings.batch_sizes)
    rows: list[dict[str, Any]] = []
    frontier: dict[str, dict[str, Any]] = {}
    for length in settings.lengths:
        limit = model.tokenizer.max_length
        ids = token_ids if length == "sentences" else joined_rows(token_ids, min(length, limit), seed)
        for size in settings.batch_sizes:
            drawn = [batch.to(model.device) for batch in random_batches(ids, size, batches, seed)]
            depth = model.depth
            paths = {name: TimedPath(prepare(drawn), depth) for name, prepare in (others or {}).items()}
            if size == smallest and length == settings.lengths[0]:
                paths |= frontier_paths(model, drawn, rule, thresholds, teacher)
            timed_rows = _rows_of(model, drawn, length, rule, paths, settings.warmup, seed)
            rows += [row for row in timed_rows if not is_frontier(row)]
            frontier |= {row["path"]: frontier_row(row) for row in timed_rows if is_frontier(row)}
    exits = next(row for row in rows if row["path"] == "exit" and row["batch"] == smallest)
    return {
        "rows": rows,
        "by_layer": [row for path, row in frontier.items() if path.startswith(LAYER)],
        "by_threshold": [row for path, row in frontier.items() if path.startswith(THETA)],
        "teacher": frontier.get(TEACHER),
        "speed_up": exits["speed_up"],
        "speed_up_ci95": exits["speed_up_ci95"],
        "floor": floor(model.encoder, model.device),
        "protocol": {
            "warmup": settings.warmup,
            "iterations": batches * PASSES,
            "batches": batches,
            "precision": model.quantize or PRECISIONS[model.encoder.weight.dtype],
            "paths": ways,
            "threads": torch.get_num_threads(),
            "speed_up_at_batch": smallest,
            "speed_up_at_length": settings.lengths[0],
            "speed_up_over": exits["over"],
            "input": "tokenised, packed and on the device beforehand",
            "clock": (
                f"CUDA events round bursts of up to {latency_cuda.BURST_CALLS} calls"
                if model.device.type == "cuda"
                else "perf_counter"
            ),
        },
    }


def joined_rows(token_ids: Sequence[list[int]], length: int, seed: int) -> list[list[int]]:
    """Join sentences in a random order and cut them into rows of one length, between their special tokens."""
    order = np.random.default_rng([seed, length]).permutation(len(token_ids))
    inner = list(chain.from_iterable(token_ids[row][1:-1] for row in order))
    while len(inner) < length:
        inner += inner
    first, last = token_ids[0][0], token_ids[0][-1]
    starts = range(0, len(inner) - (length - 2) + 1, length - 2)
    return [[first, *inner[start : start + length - 2], last] for start in starts]


def random_batches(token_ids: Sequence[list[int]], size: int, number: int, seed: int) -> list[Batch]:
    """Draw seeded random batches; a sentence comes twice in a batch only where there are fewer than `size`."""
    generator = np.random.default_rng([seed, size])
    batches = []
    for _ in range(number):
        rows = generator.choice(len(token_ids), size, replace=size > len(token_ids))
        batches.append(pack(sorted((token_ids[row] for row in rows), key=len)))
    return batches


def own_paths(
    model: LeapEncoder, rule: ExitRule, batches: Sequence[Batch], exits: Tensor
) -> tuple[dict[str, TimedPath], str]:
    """Return the ways through the encoder, and the name of the path by which it computes such batches.

    `exits` [batches, B] int64 are the layers at which the batches' rows leave.
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
            calls = latency_cuda.placed_calls(fast, batches, plans, exits, model.heads)
        calls |= latency_cuda.plain_calls(model, rule, cut, batches)
    by_layers = ["eager_exit", *(["exit"] if engine == "eager" else [])]  # a fast path maps its vectors itself
    calls |= {name: through_heads(model, calls[name]) for name in by_layers if name in calls}
    return {name: TimedPath(call, layers.get(name, depth)) for name, call in calls.items()}, engine


def frontier_paths(
    model: LeapEncoder,
    batches: Sequence[Batch],
    rule: ExitRule,
    thresholds: Sequence[float],
    teacher: LeapEncoder | None,
) -> dict[str, TimedPath]:
    """Return ways to leave by name: `layer_1` to `layer_<L>`, `theta_0.95` and so on, and `teacher`.

    The teacher's full depth is one way; None if its batches would be others.
    """
    policies: dict[str, ExitPolicy] = {f"{LAYER}{layer}": Fixed(layer) for layer in range(1, model.depth + 1)}
    policies |= {f"{THETA}{theta}": replace(rule, threshold=theta) for theta in thresholds}
    paths = _policy_paths(model, batches, policies)
    if teacher is not None:
        paths |= _policy_paths(teacher, batches, {TEACHER: Fixed(teacher.depth)})
    return paths


def _policy_paths(
    model: LeapEncoder, batches: Sequence[Batch], policies: Mapping[str, ExitPolicy]
) -> dict[str, TimedPath]:
    """Ways to leave, by the path that the model takes for such batches."""
    fast = latency_cuda.fast_path(model, batches) if model.device.type == "cuda" else None
    paths: dict[str, TimedPath] = {}
    for name, policy in policies.items():
        plan = plan_of(policy, model.depth) if fast is not None else None
        exits = torch.stack([exit_forward(model.encoder, batch, policy)[1] for batch in batches])
        if fast is not None and plan is not None:
            call = latency_cuda.placed_call(fast, batches, plan, exits, model.heads)
        else:
            call = through_heads(model, partial(exit_forward, model.encoder, policy=policy))
        paths[name] = TimedPath(call, exits.double().mean().item())
    return paths


def through_heads(model: LeapEncoder, call: Forward) -> Forward:
    """Return a call that maps exited vectors as `encode` does, where the model has exit heads."""
    heads = model.heads
    if heads is None:
        return call

    def mapped(batch: Batch) -> tuple[Tensor, Tensor]:
        vectors, exits = call(batch)
        return heads.at_exits(vectors, exits), exits

    return mapped


def is_frontier(row: dict[str, Any]) -> bool:
    return str(row["path"]).startswith((LAYER, THETA, TEACHER))


def frontier_row(row: dict[str, Any]) -> dict[str, Any]:
    names = ("batch", "length", "tokens", "ms_p50", "ms_p95", "ms_p99", "speed_up", "speed_up_ci95", "over")
    figures = {name: row[name] for name in names}
    path, layers = str(row["path"]), row["expected_layers"]
    if path.startswith(THETA):
        return {"threshold": float(path.removeprefix(THETA)), "expected_layers": layers, **figures}
    return {"layer": round(layers), **figures}


def _rows_of(
    model: LeapEncoder,
    batches: list[Batch],
    length: str | int,
    rule: ExitRule,
    others: dict[str, TimedPath],
    warmup: int,
    seed: int,
) -> list[dict[str, Any]]:
    depth = model.depth
    exits = torch.stack([exit_forward(model.encoder, batch, rule)[1] for batch in batches])
    paths, engine = own_paths(model, rule, batches, exits)
    paths |= others
    on_card = model.device.type == "cuda"
    forwards = {name: path.forward for name, path in paths.items()}
    times = time_paths(forwards, batches, warmup, latency_cuda.burst_timer() if on_card else cpu_timer)
    singles = time_paths(forwards, batches, 0, latency_cuda.single_timer) if on_card else {}
    shared = {
        "batch": batches[0].rows,
        "length": length,
        "tokens": sum(len(batch.ids) for batch in batches) / sum(batch.rows for batch in batches),
    }
    deepest = exits.amax(1).double().mean().item()
    best = min((name for name in FULL_DEPTH if name in times), key=lambda name: float(np.median(times[name])))
    rows = []
    for path, milliseconds in times.items():
        layers = paths[path].layers
        gain, interval = speed_up(times[best], milliseconds, seed)
        rows.append(
            {
                "device": model.device.type,
                "path": path,
                **shared,
                "engine": engine,
                **spread(milliseconds),
                **event_figures(singles.get(path)),
                "expected_layers": layers,
                "deepest_layers": deepest if path in ("exit", "eager_exit") else layers,
                "speed_up": gain,
                "speed_up_ci95": interval,
                "over": best,
                "layer_reduction_realised": gain / (depth / layers),
                "monitoring_overhead": speed_up(milliseconds, times["full"], seed)[0] - 1
                if path == "monitored"
                else None,
            }
        )
    return rows


def speed_up(slow: Times, fast: Times, seed: int) -> tuple[float, list[float]]:
    """Return the ratio of two paths' medians over the same rounds, [PASSES, batches], and its 95 % interval.

    Rounds are drawn with replacement, both sides together, since what happened to the machine in a round happened
    to both.
    """
    slow, fast = slow.ravel(), fast.ravel()
    drawn = np.random.default_rng(seed).integers(len(slow), size=(DRAWS, len(slow)))
    ratios = np.median(slow[drawn], axis=1) / np.median(fast[drawn], axis=1)
    return float(np.median(slow) / np.median(fast)), percentile_interval([ratios])


def time_paths(
    paths: dict[str, Forward], batches: Sequence[Batch], warmup: int, timer: Callable[[Forward, Batch], float]
) -> dict[str, Times]:
    """Time every path on every batch, a round (one batch) after the other, PASSES times.

    `timer` runs a path on a batch and returns milliseconds; `warmup` are calls of each path beforehand. Per path
    [PASSES, batches] milliseconds come back.
    """
    names = list(paths)
    for call in range(warmup):
        for name in names:
            paths[name](batches[call % len(batches)])
    times = {name: np.empty((PASSES, len(batches))) for name in names}
    for number in range(PASSES * len(batches)):
        row, column = divmod(number, len(batches))
        # Each path goes first in its turn, for what follows on the same batch finds it in the cache.
        start = (row + column) % len(names)
        for name in names[start:] + names[:start]:
            times[name][row, column] = timer(paths[name], batches[column])
    return times


def cpu_timer(path: Forward, batch: Batch) -> float:
    """Run a path once; return its wall time in milliseconds."""
    start = time.perf_counter()
    path(batch)
    return (time.perf_counter() - start) * 1000


def spread(milliseconds: Times) -> dict[str, float]:
    """Return percentiles, mean and sample standard deviation of all timed calls."""
    p50, p95, p99 = (float(value) for value in np.percentile(milliseconds, [50, 95, 99]))
    return {
        "ms_p50": p50,
        "ms_p95": p95,
        "ms_p99": p99,
        "ms_mean": float(milliseconds.mean()),
        "ms_std": float(milliseconds.std(ddof=1)),
    }


def event_figures(milliseconds: Times | None) -> dict[str, float]:
    """Return percentiles of single calls between CUDA events; nothing where there are none."""
    if milliseconds is None:
        return {}
    percentiles = np.percentile(milliseconds, [50, 95, 99])
    return {f"ms_event_p{percent}": float(value) for percent, value in zip((50, 95, 99), percentiles, strict=True)}

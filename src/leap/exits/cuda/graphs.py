"""The CUDA path for what the fused kernel does not take: layers as CUDA graphs, with exits inside.

A batch lies in buffers of fixed size (`leap.exits.cuda.buckets`). Stretches of layers are graphs that test exits
on the device; after some of them the host reads in pinned memory how many rows stay (`leap.exits.cuda.schedule`
says where that pays), stops when none does, and moves the rest into smaller buffers. Where only the end of
a whole batch is of interest, the device sees to it alone (`leap.exits.cuda.conditional`). The reference
implementation is `leap.exits.forward`; on a CPU the same schedule runs with plain calls instead of graphs.
"""

import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from leap.exits.cuda.buckets import MOST_ROWS, MOST_TOKENS, Bucket, Shape, numbers_of, shape_of
from leap.exits.cuda.bursts import time_calls
from leap.exits.cuda.conditional import ParallelWork, conditions
from leap.exits.cuda.exit_steps import LAST, exit_step, move_step
from leap.exits.cuda.schedule import Clock, Costs, Schedule, Traffic, choices_alone
from leap.exits.plan import Plan
from leap.models.batches import Batch, pack
from leap.models.kernels import varlen
from leap.models.packed_encoder import Encoder

log = logging.getLogger(__name__)

# Buckets held, the least recently used goes first, and tokens of all their levels: some 2 GB at width 768.
BUCKETS = 16
HELD_TOKENS = 2**18
# Of a bucket, for all plans together; and plans whose traffic is remembered.
GRAPHS = 512
PLANS = 64
# The batch on which looks and moves are timed, and the least that one is taken to cost.
COST_ROWS, COST_LENGTH = 32, 16
LEAST_COST_MS = 0.001
# A cosine lies at or below 1: no row leaves.
UNREACHABLE = 2.0
# The host looks at the stream itself after so many looks at a flag.
LOOKS = 4096

# Not time.sleep(0), which takes 70 microseconds on Linux: as long as several layers.
_let_others_go_on = getattr(os, "sched_yield", partial(time.sleep, 0))

Call = Callable[[], None]


@dataclass(frozen=True)
class Placed:
    """A batch on the device as its bucket takes it: `leap.exits.cuda.buckets.Level.numbers`."""

    numbers: Tensor
    shape: Shape
    rows: int
    tokens: int


@dataclass
class GraphedBucket:
    """A bucket with its graphs, by what they compute, and the times that are being measured.

    calls: None for what ran once by plain calls: it is captured the next time.
    schedules: of the plans that it was run with.
    """

    bucket: Bucket
    clock: Clock
    pool: Any
    calls: dict[Any, Call | None] = field(default_factory=dict)
    schedules: dict[Plan, Schedule] = field(default_factory=dict)
    times: list[tuple[Any, Any, int, int]] = field(default_factory=list)


class GraphEncoder:
    """An encoder's forward pass with exits as CUDA graphs, for float16 and bfloat16.

    Example:
        >>> graphs = GraphEncoder(encoder.half().cuda())
        >>> vectors, exits = graphs.run(batch, plan_of(ExitRule(0.95, 6), 12))
    """

    def __init__(self, encoder: Encoder) -> None:
        """Take an encoder, whose weights must stay where they are; on a CPU nothing is captured."""
        self.encoder = encoder
        self.depth = encoder.config.layers
        self.device = encoder.words.weight.device
        self.on_card = self.device.type == "cuda"
        # Looks at every test and moves whenever rows fit, or leaves every test to the device: for tests.
        self.always = False
        self.alone = False
        self.costs = Costs()
        self._conditions = conditions(self.device)
        self._graphed: OrderedDict[Shape, GraphedBucket] = OrderedDict()
        self._traffic: OrderedDict[Plan, Traffic] = OrderedDict()
        self._lock = Lock()
        self._free: Any = torch.cuda.Event() if self.on_card else None  # type: ignore[no-untyped-call]

    def place(self, batch: Batch, patience: int = 1) -> Placed:
        """Put a batch that fits (`fits`) into the form of its bucket; `patience` is the coming plan's k."""
        rows, tokens = batch.rows, len(batch.ids)
        shape = shape_of(rows, tokens, batch.groups[-1].length, patience + 1)
        return Placed(numbers_of(batch, shape), shape, rows, tokens)

    @torch.inference_mode()
    def run(self, batch: Batch | Placed, plan: Plan) -> tuple[Tensor, Tensor]:
        """Compute the rows' vectors where the plan lets them leave, as `leap.exits.paths.FastPath.run`."""
        with self._in_turn():
            placed = batch if isinstance(batch, Placed) else self.place(batch, plan.patience)
            graphed = self._bucket(placed.shape)
            try:
                self._fill(graphed.bucket, placed, plan)
                self._pass(graphed, placed, plan)
            except BaseException:
                self._graphed.pop(placed.shape, None)  # its buffers and the host's count of runs may differ
                raise
            return graphed.bucket.copy_answers(placed.rows)

    def learn(self, plan: Plan, exits: Sequence[int]) -> None:
        """Note where a batch's rows left, so that the next one's host looks where it pays."""
        with self._lock:
            self._traffic_of(plan).note(exits)

    @torch.inference_mode()
    def warm(self, rows: int, length: int, plan: Plan) -> None:
        """Capture what batches of so many rows of this length need, seconds each; on a CPU nothing."""
        if not self.on_card:
            return
        made = pack([[self.encoder.config.pad_token] * length] * rows).to(self.device)
        with self._in_turn():
            placed = self.place(made, plan.patience)
            graphed = self._bucket(placed.shape)
            self._fill(graphed.bucket, placed, plan)
            graphed.bucket.levels[0].left.fill_(-1)  # no row is there, so none is moved where it has no room
            for level, first, last in warm_stretches(plan, len(graphed.bucket.levels)):
                for _ in range(2):
                    self._stretch(graphed, level, first, last, plan)
            for target in range(1, len(graphed.bucket.levels)):
                for source in range(target):
                    for _ in range(2):
                        self._move(graphed, source, target)
            for looks in choices_alone(plan.tests) if self._conditions else ():
                for _ in range(2):
                    self._alone(graphed, looks, plan)
            graphed.times.clear()  # of layers without rows

    @torch.inference_mode()
    def measure_costs(self) -> None:
        """Measure what looks and moves cost on this machine, in about a second; on a CPU nothing.

        A batch of which no row leaves is computed without a look, with one of the host, and with the device's
        after each test of the second half: the differences are the looks'. Looks that a batch does not reach are
        measured on rows that have left, and so is a move: none needs room.
        """
        middle = (self.depth + 1) // 2
        if not self.on_card or middle < 2 or middle == self.depth:
            return
        thresholds = [math.inf] * self.depth
        thresholds[middle - 1 : -1] = [UNREACHABLE] * (self.depth - middle)
        plan = Plan(tuple(thresholds), 1, self.depth)
        made = pack([[self.encoder.config.pad_token] * COST_LENGTH] * COST_ROWS).to(self.device)
        with self._in_turn():
            placed = self.place(made, plan.patience)
            graphed = self._bucket(placed.shape)
            self._fill(graphed.bucket, placed, plan)

            def looked_at() -> None:
                self._stretch(graphed, 0, 0, middle, plan)
                self._wait_for_flag(graphed.bucket, middle)
                self._stretch(graphed, 0, middle, self.depth, plan)

            unbroken = partial(self._stretch, graphed, 0, 0, self.depth, plan)
            looks, first_look = plan.tests, plan.tests[:1]
            alone = [partial(self._alone, graphed, looks, plan), partial(self._alone, graphed, first_look, plan)]
            whole, look, reached = time_calls(unbroken, looked_at, alone[0])
            graphed.bucket.levels[0].left.fill_(-1)
            many, one, move = time_calls(*alone, partial(self._move, graphed, 0, 1))
            self._graphed.pop(placed.shape)  # its clock has seen bursts, not batches
        device_look = self.costs.device_look
        if self._conditions:
            device_look = max((reached - whole) / len(looks), (many - one) / max(1, len(looks) - 1))
        self.costs = Costs(*(max(cost, LEAST_COST_MS) for cost in (look - whole, move, device_look)))
        log.info("exit path graphs: %s ms on this machine", self.costs)

    def held_tokens(self) -> int:
        return sum(level.shape.tokens for graphed in self._graphed.values() for level in graphed.bucket.levels)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One batch at a time, whichever thread and stream it comes from."""
        if not self.on_card:
            with self._lock:
                yield
            return
        with self._lock, torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self._free)
            try:
                yield
            finally:
                self._free.record(stream)

    def _bucket(self, shape: Shape) -> GraphedBucket:
        if shape not in self._graphed:
            bucket = Bucket(shape, self.encoder)
            clock = Clock([level.shape.tokens for level in bucket.levels])
            pool = torch.cuda.graph_pool_handle() if self.on_card else None
            self._graphed[shape] = GraphedBucket(bucket, clock, pool)
            while len(self._graphed) > 1 and (len(self._graphed) > BUCKETS or self.held_tokens() > HELD_TOKENS):
                self._wait()
                self._graphed.popitem(last=False)
        self._graphed.move_to_end(shape)
        graphed = self._graphed[shape]
        if len(graphed.calls) > GRAPHS:
            self._wait()
            graphed.calls.clear()
            graphed.pool = torch.cuda.graph_pool_handle() if self.on_card else None
        self._note_times(graphed)
        return graphed

    def _traffic_of(self, plan: Plan) -> Traffic:
        traffic = self._traffic.setdefault(plan, Traffic(self.depth))
        self._traffic.move_to_end(plan)
        while len(self._traffic) > PLANS:
            self._traffic.popitem(last=False)
        return traffic

    def _fill(self, bucket: Bucket, placed: Placed, plan: Plan) -> None:
        bucket.levels[0].numbers.copy_(placed.numbers)
        if bucket.thresholds_of != plan.thresholds:
            bucket.thresholds[1:] = torch.tensor(plan.thresholds)
            bucket.thresholds_of = plan.thresholds

    def _pass(self, graphed: GraphedBucket, placed: Placed, plan: Plan) -> None:
        schedule = self._schedule(graphed, plan)
        schedule.begin()
        looks = self._looks_alone(graphed, schedule, placed, plan)
        if looks is not None:
            self._alone(graphed, looks, plan)
            return
        rows, tokens, level, known = placed.rows, placed.tokens, 0, 0
        at = self._stretch(graphed, level, 0, schedule.next_look(0, rows, tokens, level), plan)
        while at < plan.stop:
            seen = at
            ahead = schedule.looks_behind(seen, known, rows, level)
            if ahead:
                at = self._stretch(graphed, level, at, schedule.next_look(at, rows, tokens, level), plan)
            rows, tokens = self._wait_for_flag(graphed.bucket, seen)
            known = seen
            if rows == 0:
                return
            better = schedule.better_level(at, rows, tokens, level)
            if better != level:
                self._move(graphed, level, better)
                level = better
            if not ahead:
                at = self._stretch(graphed, level, at, schedule.next_look(at, rows, tokens, level), plan)

    def _looks_alone(
        self, graphed: GraphedBucket, schedule: Schedule, placed: Placed, plan: Plan
    ) -> tuple[int, ...] | None:
        """Return where the device looks if it goes on alone; None where the host takes part."""
        if self.alone:
            return plan.tests or None
        measured = self._conditions is not None and not graphed.clock.wants(0)
        return schedule.looks_alone(placed.rows) if measured and not self.always else None

    def _schedule(self, graphed: GraphedBucket, plan: Plan) -> Schedule:
        traffic = self._traffic_of(plan)
        schedule = graphed.schedules.get(plan)
        if schedule is None or schedule.traffic is not traffic:
            levels = [(level.shape.rows, level.shape.tokens) for level in graphed.bucket.levels]
            if len(graphed.schedules) >= PLANS:
                graphed.schedules.clear()
            schedule = Schedule(plan.tests, plan.stop, levels, traffic, graphed.clock, self.costs)
            graphed.schedules[plan] = schedule
        schedule.always = self.always
        return schedule

    def _wait_for_flag(self, bucket: Bucket, layer: int) -> tuple[int, int]:
        looks = 0
        while (staying := bucket.read_flag(layer)) is None:
            _let_others_go_on()
            looks += 1
            if looks % LOOKS == 0 and torch.cuda.current_stream().query() and bucket.read_flag(layer) is None:
                raise RuntimeError(f"the exit test of layer {layer} did not tell how many rows stay")
        return staying

    def _stretch(self, graphed: GraphedBucket, level: int, first: int, last: int, plan: Plan) -> int:
        """Compute the layers after `first` up to `last`, with the plan's tests; return `last`."""
        key = (level, first, last, plan.tests, plan.patience, plan.stop)
        if first == 0:
            graphed.bucket.runs += 1
        replay = self._call(graphed, key, lambda: self._layers(graphed.bucket, level, first, last, plan))
        if replay is None:
            return last
        if not graphed.clock.wants(level):
            replay()
            return last
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        replay()
        end.record()
        graphed.times.append((start, end, level, last - first))
        return last

    def _layers(
        self, bucket: Bucket, number: int, first: int, last: int, plan: Plan, within: bool = False
    ) -> None:
        """Compute layers with their exit tests; `within` the body of a conditional node, which is its own capture.

        Nothing but later tests waits for a test before `last`: it runs while the next layer does. So do the
        counters, which only tests read.
        """
        level = bucket.levels[number]
        parallel = ParallelWork(self._conditions.tests[within] if self._conditions else None)
        batch = self.encoder.with_bias(level.batch())
        if first == 0:
            with parallel.launches():
                bucket.counters.zero_()
                bucket.epoch += 1
            states = self.encoder.embed(batch)
        else:
            states = level.states[: len(batch.ids)]
        flags = plan.flags()
        for layer in range(first + 1, last + 1):
            if len(states):  # on a CPU, where a level without rows has none
                states = self.encoder.layers[layer - 1](states, batch)
            kind = LAST if layer == plan.stop else flags[layer]
            if kind and layer < last:
                with parallel.launches(states):
                    exit_step(bucket, level, states, layer, plan.patience, kind)
            elif kind:
                parallel.join()
                exit_step(bucket, level, states, layer, plan.patience, kind)
        if last < plan.stop:
            level.states[: len(batch.ids)] = states

    def _alone(self, graphed: GraphedBucket, looks: tuple[int, ...], plan: Plan) -> None:
        """Compute a batch without the host, which does not look: the device does, after these tests."""
        graphed.bucket.runs += 1
        key = ("alone", looks, plan.tests, plan.patience, plan.stop)
        replay = self._call(graphed, key, lambda: self._parts(graphed.bucket, looks, plan))
        if replay is not None:
            replay()

    def _parts(self, bucket: Bucket, looks: Sequence[int], plan: Plan) -> None:
        capturing = self._conditions if self.on_card and torch.cuda.is_current_stream_capturing() else None
        with capturing.parts() if capturing else nullcontext() as if_rows_stay:
            for first, last in pairwise([0, *looks, plan.stop]):
                if first and if_rows_stay:
                    if_rows_stay(bucket.counters[first : first + 1])
                self._layers(bucket, 0, first, last, plan, within=first > 0)

    def _move(self, graphed: GraphedBucket, source: int, target: int) -> None:
        levels = graphed.bucket.levels
        replay = self._call(graphed, (source, target), lambda: move_step(levels[source], levels[target]))
        if replay is not None:
            replay()

    def _call(self, graphed: GraphedBucket, key: Any, work: Call) -> Call | None:
        """Do some work by plain calls the first time; capture it the second time, and return what to call.

        So the first time compiles and allocates, and what comes once costs no capture.
        """
        if not self.on_card or key not in graphed.calls:
            work()
            graphed.calls[key] = None
            return None
        replay = graphed.calls[key] or self._capture(work, graphed.pool)
        graphed.calls[key] = replay
        return replay

    def _capture(self, work: Call, pool: Any) -> Call:
        graph = torch.cuda.CUDAGraph()
        stream = self._conditions.layers if self._conditions else None
        # Other threads may go on allocating meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def _note_times(self, graphed: GraphedBucket) -> None:
        pending = []
        for start, end, level, layers in graphed.times:
            if end.query():
                graphed.clock.note(level, start.elapsed_time(end) / layers)
            else:
                pending.append((start, end, level, layers))
        graphed.times = pending

    def _wait(self) -> None:
        if self.on_card:
            torch.cuda.synchronize(self.device)


def warm_stretches(plan: Plan, levels: int) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches that a plan's batches need, as level, layer that is reached, and last layer."""
    looks = [0, *plan.tests, plan.stop]
    for level in range(levels):
        for first, last in combinations(looks, 2):
            if first or not level:
                yield level, first, last


def unsupported(encoder: Encoder) -> str | None:
    """Say why an encoder on CUDA cannot run as graphs; None where it can."""
    weight = encoder.words.weight
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"its weights are {weight.dtype}, not float16 or bfloat16"
    if not varlen.available(weight.device):
        return "Triton, which its attention needs, is not installed"
    if not encoder.packs:
        return "its attention or its pooling needs rows of one length"
    return None


def fits(rows: int, tokens: int, longest: int) -> bool:
    return rows <= MOST_ROWS and tokens <= MOST_TOKENS and longest <= varlen.LONGEST_TILE

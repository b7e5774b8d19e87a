"""The CUDA path for what the fused kernel does not take: layers as CUDA graphs, with exits inside.

A batch lies in buffers of fixed size (`leap.exits.cuda.buckets`). Stretches of layers are graphs that test exits
on the device, which may end a batch by itself (`leap.exits.cuda.conditional`); after some of them the host reads
in pinned memory how many rows stay, stops when none does, and moves the rest into smaller buffers.
`leap.exits.cuda.schedule` says where either pays. The reference implementation is `leap.exits.forward`; on a CPU
the same schedule runs with plain calls instead of graphs.
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

from leap.exits.cuda.buckets import MOST_ROWS, MOST_TOKENS, Bucket, Level, Shape, numbers_of, shape_of
from leap.exits.cuda.bursts import time_calls
from leap.exits.cuda.conditional import ParallelWork, conditions
from leap.exits.cuda.exit_steps import LAST, exit_step, move_step
from leap.exits.cuda.schedule import TIMES, Clock, Costs, Schedule, Traffic, choices_alone
from leap.exits.plan import Plan
from leap.models.batches import Batch, pack
from leap.models.exit_heads import ExitHeads
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
# How long a card is busy before a stretch that is timed: longer than the host takes to launch one.
BUSY_CYCLES = 500_000
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
        # For tests: see `leap.exits.cuda.schedule.Schedule`.
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
    def run(self, batch: Batch | Placed, plan: Plan, heads: ExitHeads | None = None) -> tuple[Tensor, Tensor]:
        """Compute the rows' vectors where the plan lets them leave, as `leap.exits.paths.FastPath.run`."""
        with self._in_turn():
            placed = batch if isinstance(batch, Placed) else self.place(batch, plan.patience)
            graphed = self._bucket(placed.shape)
            try:
                self._fill(graphed.bucket, placed, plan)
                self._pass(graphed, placed, plan)
                self._map(graphed, plan, heads)
            except BaseException:
                self._graphed.pop(placed.shape, None)  # its buffers and the host's count of runs may differ
                raise
            return graphed.bucket.copy_answers(placed.rows)

    def learn(self, plan: Plan, exits: Sequence[int]) -> None:
        """Note where a batch's rows left, so that the next one's host looks where it pays."""
        with self._lock:
            self._traffic_of(plan).note(exits)

    @torch.inference_mode()
    def warm(self, rows: int, length: int, plan: Plan, heads: ExitHeads | None = None) -> None:
        """Capture what batches of so many rows of this length need, seconds each; on a CPU nothing."""
        if not self.on_card:
            return
        made = pack([[self.encoder.config.pad_token] * length] * rows).to(self.device)
        with self._in_turn():
            placed = self.place(made, plan.patience)
            graphed = self._bucket(placed.shape)
            self._fill(graphed.bucket, placed, plan)
            for _ in range(2 + TIMES):
                self._stretch(graphed, 0, 0, plan.stop, (), plan)
            self._wait()
            self._note_times(graphed)
            graphed.bucket.levels[0].left.fill_(-1)  # no row is there, so none is moved where it has no room
            for stretch in warm_stretches(plan, len(graphed.bucket.levels), self._conditions is not None):
                for _ in range(2):
                    self._stretch(graphed, *stretch, plan)
            for target in range(1, len(graphed.bucket.levels)):
                for source in range(target):
                    for _ in range(2):
                        self._move(graphed, source, target)
            for _ in range(2):
                self._map(graphed, plan, heads)
            graphed.times.clear()  # of layers without rows

    @torch.inference_mode()
    def measure_costs(self) -> None:
        """Measure what looks and moves cost on this machine, in about a second; on a CPU nothing.

        A batch of which no row leaves is computed at once, in two stretches, with a look of the host in between,
        and with the device's after each test of the second half: the differences are the costs. A move is
        measured on rows that have left: it needs no room.
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
            graphed.clock.timed = False
            looks = plan.tests if self._conditions else ()

            def compute(bounds: Sequence[int], looks: tuple[int, ...] = (), wait: bool = False) -> None:
                self._fill(graphed.bucket, placed, plan)  # the last layer's test has taken all rows away
                for first, last in pairwise(bounds):
                    self._stretch(graphed, 0, first, last, looks, plan)
                    if wait and last < self.depth:
                        self._wait_for_flag(graphed.bucket, last)

            once, twice = (0, self.depth), (0, middle, self.depth)
            ways = (once,), (twice,), (twice, (), True), (once, looks)
            whole, in_two, looked_at, by_device = time_calls(*(partial(compute, *way) for way in ways))
            graphed.bucket.levels[0].left.fill_(-1)
            (move,) = time_calls(partial(self._move, graphed, 0, 1))
            self._graphed.pop(placed.shape)
        device_look = (by_device - whole) / len(looks) if looks else self.costs.device_look
        costs = (looked_at - whole, in_two - whole, move, device_look)
        self.costs = Costs(*(max(cost, LEAST_COST_MS) for cost in costs))
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
            clock = Clock([level.shape.tokens for level in bucket.levels], timed=self.on_card)
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
        at, rows, tokens, level = 0, placed.rows, placed.tokens, 0
        while True:
            step = schedule.next_step(at, rows, tokens, level)
            self._stretch(graphed, level, at, step.last, step.looks, plan)
            if step.last == plan.stop:
                return
            if step.acts > step.last:
                self._stretch(graphed, level, step.last, step.acts, (), plan)
            at = step.acts
            rows, tokens = self._wait_for_flag(graphed.bucket, step.last)
            if rows == 0:
                return
            better = schedule.better_level(at, rows, tokens, level)
            if better != level:
                self._move(graphed, level, better)
                level = better

    def _schedule(self, graphed: GraphedBucket, plan: Plan) -> Schedule:
        traffic = self._traffic_of(plan)
        schedule = graphed.schedules.get(plan)
        if schedule is None or schedule.traffic is not traffic:
            levels = [(level.shape.rows, level.shape.tokens) for level in graphed.bucket.levels]
            if len(graphed.schedules) >= PLANS:
                graphed.schedules.clear()
            by_device = self._conditions is not None
            schedule = Schedule(plan.tests, plan.stop, levels, traffic, graphed.clock, self.costs, by_device)
            graphed.schedules[plan] = schedule
        schedule.always, schedule.alone = self.always, self.alone
        return schedule

    def _wait_for_flag(self, bucket: Bucket, layer: int) -> tuple[int, int]:
        looks = 0
        while (staying := bucket.read_flag(layer)) is None:
            _let_others_go_on()
            looks += 1
            if looks % LOOKS == 0 and torch.cuda.current_stream().query() and bucket.read_flag(layer) is None:
                raise RuntimeError(f"the exit test of layer {layer} did not tell how many rows stay")
        return staying

    def _stretch(
        self, graphed: GraphedBucket, level: int, first: int, last: int, looks: tuple[int, ...], plan: Plan
    ) -> None:
        """Compute the layers after `first` up to `last`, with the plan's tests; the device looks after `looks`."""
        key = (level, first, last, looks, plan.tests, plan.patience, plan.stop)
        if first == 0:
            graphed.bucket.runs += 1
        replay = self._call(graphed, key, lambda: self._parts(graphed.bucket, level, (first, *looks, last), plan))
        if replay is None:
            return
        if looks or not graphed.clock.wants(level):
            replay()
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # Or an idle card would reach `start` at once, and the time would be the launch's.
        torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
        start.record()
        replay()
        end.record()
        graphed.times.append((start, end, level, last - first))

    def _parts(self, bucket: Bucket, number: int, bounds: Sequence[int], plan: Plan) -> None:
        """Compute layers; between the parts that the bounds make the device looks, where it can."""
        level = bucket.levels[number]
        batch = self.encoder.with_bias(level.batch())
        parallel = self._parallel(within=False)
        if bounds[0] == 0:
            with parallel.launches():  # as the tests, which alone read them
                bucket.counters.zero_()
                bucket.epoch += 1
            states = self.encoder.embed(batch)
        else:
            states = level.states[: len(batch.ids)]
        conditional = self._conditions if len(bounds) > 2 else None
        if conditional and not torch.cuda.is_current_stream_capturing():
            conditional = None  # plain calls compute everything
        with conditional.parts() if conditional else nullcontext() as if_rows_stay:
            for first, last in pairwise(bounds):
                if first > bounds[0] and if_rows_stay:
                    if_rows_stay(bucket.counters[first : first + 1])
                    parallel = self._parallel(within=True)
                for layer in range(first + 1, last + 1):
                    states = self._layer(bucket, level, batch, states, layer, plan, parallel, layer == last)
        if bounds[-1] < plan.stop:
            level.states[: len(batch.ids)] = states

    def _layer(
        self,
        bucket: Bucket,
        level: Level,
        batch: Batch,
        states: Tensor,
        layer: int,
        plan: Plan,
        parallel: ParallelWork,
        ends: bool,
    ) -> Tensor:
        """Compute a layer, and its exit test in parallel with the next one; the last of a part waits for all."""
        if len(states):  # on a CPU, where a level without rows has none
            states = self.encoder.layers[layer - 1](states, batch)
        kind = LAST if layer == plan.stop else plan.flags()[layer]
        if not kind:
            return states
        if ends:
            parallel.join()
        with nullcontext() if ends else parallel.launches(states):
            exit_step(bucket, level, states, layer, plan.patience, kind)
        return states

    def _parallel(self, within: bool) -> ParallelWork:
        """Return where tests are launched; `within` the body of a conditional node, which is its own capture."""
        return ParallelWork(self._conditions.tests[within] if self._conditions else None)

    def _move(self, graphed: GraphedBucket, source: int, target: int) -> None:
        levels = graphed.bucket.levels
        replay = self._call(graphed, (source, target), lambda: move_step(levels[source], levels[target]))
        if replay is not None:
            replay()

    def _map(self, graphed: GraphedBucket, plan: Plan, heads: ExitHeads | None) -> None:
        """Map what the rows left behind by their layers' heads; captured, for launches take the host long."""
        if heads is None or plan.exits_at[0] == self.depth:
            return
        vectors, exits = graphed.bucket.vectors, graphed.bucket.exits

        def work() -> None:
            vectors.copy_(heads.at_exits(vectors, exits, plan.exits_at))

        replay = self._call(graphed, ("heads", heads.maps.data_ptr(), plan.exits_at), work)
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


def warm_stretches(plan: Plan, levels: int, by_device: bool) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Yield the stretches that a plan's batches need: level, layer that is reached, last layer, device's looks."""
    for level in range(levels):
        for first, last in combinations([0, *plan.tests, plan.stop], 2):
            if first or not level:
                yield level, first, last, ()
        for first in [0, *plan.tests] if by_device else ():
            if first or not level:
                for looks in choices_alone(plan.tests, first):
                    yield level, first, plan.stop, looks


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

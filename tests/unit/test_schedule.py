"""Where the host looks, by counts and milliseconds made up here."""

import random
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import pytest

from leap.exits.cuda.buckets import shape_of
from leap.exits.cuda.graphs import GraphedBucket, GraphEncoder
from leap.exits.cuda.schedule import REMEMBERED, TIMES, Clock, Costs, Schedule, Step, Traffic
from leap.exits.plan import Plan
from leap.latency.timing_cuda import SETTLING, TRAFFIC_BATCHES

LEVELS = [(32, 4096), (16, 2048), (4, 512)]


def schedule(traffic: Traffic, milliseconds: list[float], costs: Costs | None = None) -> Schedule:
    """A schedule of the host alone; with costs, of the device too."""
    clock = Clock([tokens for _, tokens in LEVELS])
    for level, value in enumerate(milliseconds):
        for _ in range(TIMES):
            clock.note(level, value)
    clock.timed = False
    return Schedule((6, 7, 8, 9), 12, LEVELS, traffic, clock, costs or Costs(), costs is not None)


def first_step(milliseconds: list[float], *batches: list[int], rows: int = 32, costs: Costs | None = None) -> Step:
    """The first step of a batch where the traffic is these batches."""
    return schedule(traffic_of(*batches), milliseconds, costs).next_step(0, rows, 128 * rows, 0)


def traffic_of(*batches: list[int]) -> Traffic:
    traffic = Traffic(12)
    for _ in range(200):
        for exits in batches:
            traffic.note(exits)
    return traffic


def test_traffic_learns_where_rows_leave() -> None:
    traffic = traffic_of([6, 6, 8, 12])
    assert traffic.staying(5, 0) == pytest.approx(1, abs=1e-3)
    assert traffic.staying(6, 0) == pytest.approx(0.5, abs=1e-3)
    assert traffic.staying(8, 6) == pytest.approx(0.5, abs=1e-3)
    assert traffic.staying(11, 8) == pytest.approx(1, abs=1e-3)


def test_nothing_is_certain_before_there_is_traffic() -> None:
    assert Traffic(4).staying(1, 0) == pytest.approx(0.75)
    assert Traffic(4).staying(3, 2) == pytest.approx(0.5)


def test_a_clock_guesses_by_tokens_until_it_has_times() -> None:
    clock = Clock([400, 100])
    clock.note(0, 0.8)
    assert clock.layer(1) == pytest.approx(0.2)
    for value in (0.5, 0.7, 9.0):
        clock.note(1, value)
    assert clock.layer(1) == 0.7
    assert clock.wants(1)
    for _ in range(6):
        clock.note(1, 0.7)
    assert not clock.wants(1)


UNBROKEN = Step(12, 12)


def test_until_a_level_is_timed_a_batch_is_one_stretch() -> None:
    clock = Clock([tokens for _, tokens in LEVELS])
    waiting = Schedule((6, 7), 12, LEVELS, traffic_of([6]), clock)
    for _ in range(TIMES):
        assert waiting.next_step(0, 32, 4096, 0) == UNBROKEN
        clock.note(0, 0.05)
    assert clock.measurements() == TIMES
    assert waiting.next_step(0, 32, 4096, 0) == Step(6, 6)
    assert waiting.next_step(6, 4, 512, 2) == UNBROKEN


def test_the_host_looks_first_where_all_rows_leave() -> None:
    assert first_step([0.05], [7]) == Step(7, 7)


DEVICE = Costs(look=0.045, move=0.03, device_look=0.004)


def test_the_device_goes_on_alone_where_only_the_end_of_a_batch_matters() -> None:
    layers = [0.05, 0.03, 0.01]
    assert first_step(layers, [7], costs=DEVICE) == Step(12, 12, (7,))
    assert first_step(layers, [12], costs=DEVICE) == UNBROKEN
    flat = [0.05, 0.049, 0.049]
    assert first_step(flat, [6, 7, 8, 9], rows=4, costs=DEVICE) == Step(12, 12, (8, 9))
    assert first_step(flat, [6, 7, 8, 9], rows=1, costs=DEVICE) == Step(12, 12, (6, 7, 8, 9))


def test_the_host_takes_part_where_moving_rows_saves_more_than_the_end() -> None:
    # A quarter stays after 6: six layers of .02 or .01 ms instead of .05.
    assert first_step([0.05, 0.02, 0.01], [6, 6, 6, 12], costs=DEVICE).last == 6
    assert first_step([0.05, 0.02, 0.01], [6, 6, 6, 12], rows=2, costs=DEVICE).last == 6
    # Nowhere is it faster.
    assert first_step([0.05, 0.048, 0.047], [6, 6, 6, 12], rows=2, costs=DEVICE) == Step(12, 12, (6,))


def test_rows_that_moved_are_left_to_the_device() -> None:
    moved = schedule(traffic_of([6, 6, 6, 6, 6, 6, 8, 9]), [0.05, 0.01, 0.01], DEVICE)
    assert moved.next_step(0, 32, 4096, 0).last == 6
    assert moved.next_step(6, 2, 300, 2) == Step(12, 12, (7, 8, 9))


def test_the_device_looks_only_where_that_pays() -> None:
    # One row is gone after 6, 7, 8 and 9 in 25, 50, 75 and 100 of 100 batches.
    for cost, looks in ((0.01, (6, 7, 8, 9)), (0.02, (7, 8, 9)), (0.06, (8, 9)), (0.16, ())):
        costs = Costs(look=1.0, device_look=cost)
        assert first_step([0.05, 0.049, 0.049], [6, 7, 8, 9], rows=1, costs=costs) == Step(12, 12, looks)


def test_a_batch_that_will_not_finish_early_is_not_looked_at() -> None:
    assert first_step([0.05], [12]) == UNBROKEN
    # One row in ten leaves at 6: 32 rows never all do, and the rest fit no smaller level.
    assert first_step([0.05], [6] + [12] * 9) == UNBROKEN


def test_a_look_has_to_pay_for_itself() -> None:
    # Layers of a microsecond: five of them cost less than the look.
    assert Costs.look > 5 * 0.001
    assert first_step([0.001], [7], rows=1) == UNBROKEN


def test_the_next_test_is_launched_before_the_answer_where_that_costs_less_than_waiting() -> None:
    # Half of the rows leave at 6, the rest stays: one more layer of .05 instead of .03 ms, but no wait of .045.
    assert first_step([0.05, 0.03, 0.03], [6, 12]) == Step(6, 7)
    # Layers of .2 ms: one that is computed in full costs more.
    assert first_step([0.2, 0.05, 0.05], [6, 12]) == Step(6, 6)


def test_answers_are_computed_again_after_some_batches() -> None:
    traffic = traffic_of([7])
    result = schedule(traffic, [0.05])
    for _ in range(200):
        traffic.note([12])
    looks = []
    for _ in range(REMEMBERED + 1):
        result.begin()
        looks.append(result.next_step(0, 32, 4096, 0).last)
        for _ in range(200):
            traffic.note([6])
    # The first answer is the traffic's then; the traffic of the second batch on is heard of after some.
    assert looks == [12] * REMEMBERED + [6]


def test_rows_move_where_the_rest_is_worth_it() -> None:
    plan = schedule(traffic_of([6]), [0.1, 0.06, 0.02])
    assert plan.better_level(6, 10, 1000, 0) == 1
    assert plan.better_level(6, 3, 300, 0) == 2
    assert plan.better_level(6, 17, 1000, 0) == 0
    assert plan.better_level(6, 10, 3000, 0) == 0
    assert plan.better_level(12, 1, 10, 0) == 0
    assert Costs.move > 0.1 - 0.06 - 0.03
    # One layer less at half the time does not pay for moving.
    flat = schedule(traffic_of([6]), [0.1, 0.099, 0.098])
    assert flat.better_level(6, 3, 300, 0) == 0


def test_mixed_batches_are_looked_at_where_the_rest_fits_a_smaller_level() -> None:
    assert first_step([0.1, 0.05, 0.0125], [6, 6, 6, 12]) == Step(6, 6)
    # No gain from fewer rows: only a common end would pay, and there is none.
    assert first_step([0.1, 0.1, 0.1], [6, 6, 6, 12]) == UNBROKEN


class Imagined(GraphEncoder):
    """The host's part of the graphed path, for layers that take an H200's time (docs/log/2026-11-29.md)."""

    def __init__(self, plan: Plan, device_look: float) -> None:
        self.depth, self.always, self.alone, self.on_card = plan.stop, False, False, True
        self.costs = Costs(look=0.024, move=0.005, device_look=device_look)
        self.plan, self._conditions, self.traffic = plan, object(), Traffic(plan.stop)  # type: ignore[assignment]
        self.buckets: dict[Any, GraphedBucket] = {}
        self.milliseconds, self.new, self.reached = 0.0, 0, 0

    def _traffic_of(self, plan: Plan) -> Traffic:
        return self.traffic

    def encode(self, lengths: list[int], exits: list[int]) -> None:
        shape = shape_of(len(lengths), sum(lengths), max(lengths), 2)
        if shape not in self.buckets:
            levels = [SimpleNamespace(shape=size) for size in shape.levels()]
            clock = Clock([level.shape.tokens for level in levels])
            self.buckets[shape] = GraphedBucket(SimpleNamespace(levels=levels), clock, None)  # type: ignore[arg-type]
        self.rows = list(zip(lengths, exits, strict=True))
        self._pass(self.buckets[shape], SimpleNamespace(rows=len(lengths), tokens=sum(lengths)), self.plan)  # type: ignore[arg-type]

    def _known(self, graphed: GraphedBucket, key: Any) -> bool:
        """Count a plain call or a capture: the first two of a key."""
        calls: Any = graphed.calls
        calls[key] = calls.get(key, 0) + 1
        self.new += calls[key] <= 2
        return bool(calls[key] > 1)

    def _stretch(
        self, graphed: GraphedBucket, level: int, first: int, last: int, looks: tuple[int, ...], plan: Plan
    ) -> None:
        layer = layer_ms(graphed.bucket.levels[level].shape.tokens)
        if self._known(graphed, (level, first, last, looks)) and not looks and graphed.clock.wants(level):
            graphed.clock.note(level, layer)
        deepest = max(exit_layer for _, exit_layer in self.rows)
        self.reached = next((look for look in looks if look >= deepest), last)
        self.milliseconds += (self.reached - first) * layer
        self.milliseconds += sum(look <= self.reached for look in looks) * self.costs.device_look

    def _move(self, graphed: GraphedBucket, source: int, target: int) -> None:
        self._known(graphed, (source, target))
        self.milliseconds += self.costs.move

    def _wait_for_flag(self, bucket: Any, layer: int) -> tuple[int, int]:
        if self.reached == layer:  # else the device computes what was launched behind the look
            self.milliseconds += self.costs.look
        staying = [length for length, exit_layer in self.rows if exit_layer > layer]
        return len(staying), sum(staying)


def layer_ms(tokens: int) -> float:
    return 0.0297 + 9.9e-6 * tokens


NEAR_SIX = [4.0, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4, 0.4, 1.0]
AT_THREE = [200.0, 10.0, 1.0, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rows", "tokens", "weights", "device_look", "least"),
    [
        (8, 128, AT_THREE, 0.008, 0.72),
        (32, 128, AT_THREE, 0.008, 0.67),
        (8, 128, NEAR_SIX, 0.008, 0.47),
        (32, 128, NEAR_SIX, 0.008, 0.53),
        (8, 14, NEAR_SIX, 0.008, 0.46),
        (32, 14, NEAR_SIX, 0.008, 0.44),
        (8, 128, AT_THREE, 0.016, 0.65),
        (32, 128, AT_THREE, 0.016, 0.65),
    ],
)
def test_a_warm_path_captures_nothing_and_saves_what_the_deepest_row_leaves(
    rows: int, tokens: int, weights: list[float], device_look: float, least: float, seed: int
) -> None:
    """Exits at 3 to 12 of 12, tested at every layer; `least` of the mean row's reduction is realised."""
    drawn = random.Random(seed)
    batches = [
        (
            sorted(tokens if tokens > 40 else max(6, min(40, int(drawn.gauss(tokens, 5)))) for _ in range(rows)),
            drawn.choices(range(3, 13), weights, k=rows),
        )
        for _ in range(20)
    ]
    path = Imagined(Plan((*(float("inf"),) * 2, *(0.9,) * 9, float("inf")), 1, 12), device_look)
    for _, exits in islice(cycle(batches), TRAFFIC_BATCHES):
        path.traffic.note(exits)
    for _ in range(SETTLING):
        for lengths, exits in batches:
            path.encode(lengths, exits)
    path.new, path.milliseconds = 0, 0.0
    for lengths, exits in batches * 5:
        path.encode(lengths, exits)
    assert path.new == 0
    full = 5 * sum(12 * layer_ms(shape_of(rows, sum(lengths), max(lengths), 2).tokens) for lengths, _ in batches)
    mean = sum(sum(exits) for _, exits in batches) / rows / len(batches)
    assert full / path.milliseconds / (12 / mean) >= least
    assert path.milliseconds <= full / 0.97

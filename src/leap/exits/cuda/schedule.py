"""When host and device look whether a batch is done or may shrink: only where that is likely to save time.

What leaves where is decided on the device, at every layer that the plan tests, whoever looks: this moves time
only, never an exit. Pure functions of counts and milliseconds.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

# Of a batch's exits, the share that older batches lose.
FORGETTING = 0.05
# Before anything is measured.
LAYER_MS = 0.05
# Batches after which answers are computed again: the host has some microseconds a layer, no more.
REMEMBERED = 256
# Times of a layer that a level's median is taken of.
TIMES = 5
# The host takes part where that saves more than this share of what is left: times vary by about as much.
WORTH = 0.03


@dataclass(frozen=True)
class Costs:
    """The milliseconds that a look or a move costs; `GraphEncoder.measure_costs` measures them on the machine.

    Until then, what mixed batches lost by both on an H200 (docs/log).

    look: from the end of a stretch to the start of the next one when the host looks in between.
    split: when the next one was launched before.
    move: moving rows to a smaller level.
    device_look: a look of the device itself, where a batch gets to it.
    """

    look: float = 0.045
    split: float = 0.01
    move: float = 0.03
    device_look: float = 0.011


class Traffic:
    """The share of rows that is still there after each layer, learnt from past batches."""

    def __init__(self, depth: int) -> None:
        # As if one row had left at every layer: nothing is certain at first.
        self._left = [0.0, *[1 / depth] * depth]
        self._there: list[float] = []

    def note(self, exits: Sequence[int]) -> None:
        self._left = [share * (1 - FORGETTING) for share in self._left]
        for layer in exits:
            self._left[layer] += FORGETTING / len(exits)
        self._there = []

    def staying(self, after: int, of: int) -> float:
        """Return the share of rows that are there after layer `after`, of those after layer `of`."""
        if not self._there:
            self._there = list(accumulate(reversed(self._left[1:]), initial=0.0))[::-1]
        return self._there[after] / self._there[of] if self._there[of] > 0 else 0.0


class Clock:
    """Milliseconds of a layer at each of a bucket's levels: measured, else guessed by the tokens."""

    def __init__(self, tokens: Sequence[int], timed: bool = True) -> None:
        """Take the levels' tokens; nothing is measured unless `timed`."""
        self.timed = timed
        self._tokens = tokens
        self._sorted: list[list[float]] = [[] for _ in tokens]

    def wants(self, level: int) -> bool:
        return self.timed and len(self._sorted[level]) < TIMES

    def measurements(self) -> int:
        """Return the number of times measured so far, of all levels."""
        return sum(map(len, self._sorted))

    def note(self, level: int, milliseconds: float) -> None:
        insort(self._sorted[level], milliseconds)

    def layer(self, level: int) -> float:
        measured = [number for number, times in enumerate(self._sorted) if times]
        if level in measured:
            times = self._sorted[level]
            return times[len(times) // 2]
        if 0 not in measured:
            return LAYER_MS * self._tokens[level] / self._tokens[0]
        whole, smallest = self.layer(0), measured[-1]
        if smallest == 0:
            return whole * self._tokens[level] / self._tokens[0]
        # A layer of few tokens takes hardly less time than one of some more: along the line through two levels.
        slope = (whole - self.layer(smallest)) / (self._tokens[0] - self._tokens[smallest])
        return max(0.0, whole - slope * (self._tokens[0] - self._tokens[level]))


class Step(NamedTuple):
    """The part of a batch to launch next.

    last: the layer after which the host looks; the plan's `stop` if it does not.
    acts: the layer after which it moves rows or ends the batch: `last`, or the next test, up to which the layers
        are launched before the answer is there, so that the device does not wait for it.
    looks: the layers before `last` after which the device looks by itself, and ends the batch.
    """

    last: int
    acts: int
    looks: tuple[int, ...] = ()


def choices_alone(tests: Sequence[int], at: int) -> list[tuple[int, ...]]:
    """Return the tests that the device may look after by itself, from layer `at` on to the end.

    From the start any run of them; later all that are left. Every choice is a graph of its own, so they are few
    enough to be captured beforehand.
    """
    if at == 0:
        return [tuple(tests[first:end]) for first, end in combinations(range(len(tests) + 1), 2)]
    left = tuple(layer for layer in tests if layer > at)
    return [left] if left else []


@dataclass
class Schedule:
    """Where to look, for one bucket and one plan.

    tests: the layers after which rows may leave.
    stop: the last layer.
    levels: (rows, tokens) of the bucket's levels.
    costs: of looks and moves.
    by_device: whether the device can look by itself.
    always, alone: for tests. The host looks after every test and moves rows whenever they fit; the device looks
        after every test; both: the host looks once, and the device after the tests that are left.
    """

    tests: Sequence[int]
    stop: int
    levels: Sequence[tuple[int, int]]
    traffic: Traffic
    clock: Clock
    costs: Costs = Costs()
    by_device: bool = False
    always: bool = False
    alone: bool = False
    _batches: int = 0
    _measurements: int = 0
    _steps: dict[tuple[int, ...], Step] = field(default_factory=dict)
    _moves: dict[tuple[int, ...], int] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a batch: forget the answers now and then, and when the clock has measured."""
        measurements = self.clock.measurements()
        if self._batches % REMEMBERED == 0 or self._measurements != measurements:
            self._steps.clear()
            self._moves.clear()
        self._batches += 1
        self._measurements = measurements

    def next_step(self, at: int, rows: int, tokens: int, level: int) -> Step:
        """Return what is likely to take the least time.

        Args:
            at: the layer that is reached, 0 for none.
            rows, tokens: that are there.
            level: where they lie. Until its layers are timed, all that is left is one stretch.
        """
        if self.always or self.alone:
            return self._forced_step(at)
        if self.clock.wants(level):
            return Step(self.stop, self.stop)
        rows, tokens = self._about(rows, tokens)
        question = (at, rows, tokens, level)
        if question not in self._steps:
            self._steps[question] = self._best_step(*question)
        return self._steps[question]

    def better_level(self, at: int, rows: int, tokens: int, level: int) -> int:
        """Return the level that rows should move to for what is left, or the one where they are."""
        if self.always:
            return max([level, *self._fitting(at, rows, tokens, level)])
        rows, tokens = self._about(rows, tokens)
        question = (at, rows, tokens, level)
        if question not in self._moves:
            self._moves[question] = self._better_level(*question)
        return self._moves[question]

    def _about(self, rows: int, tokens: int) -> tuple[int, int]:
        """Round up: rows to four bits, tokens to sixteenths of the bucket. Batches alike then share an answer."""
        row_step, token_step = 2 ** max(0, rows.bit_length() - 4), max(1, self.levels[0][1] // 16)
        return math.ceil(rows / row_step) * row_step, math.ceil(tokens / token_step) * token_step

    def _fitting(self, at: int, rows: int, tokens: int, level: int) -> list[int]:
        """Return the smaller levels that hold so much, if any layer is left."""
        return [
            number
            for number, (most_rows, most_tokens) in enumerate(self.levels)
            if at < self.stop and number > level and most_rows >= rows and most_tokens >= tokens
        ]

    def _better_level(self, at: int, rows: int, tokens: int, level: int) -> int:
        fitting, there = self._fitting(at, rows, tokens, level), self._any_stay(at, rows)
        times = {number: self.costs.move + self._rest(at, there, number)[0] for number in fitting}
        times[level] = self._rest(at, there, level)[0]
        return min(times, key=times.__getitem__)

    def _forced_step(self, at: int) -> Step:
        left = tuple(layer for layer in self.tests if layer > at)
        if self.alone and (at or not self.always):
            return Step(self.stop, self.stop, left)
        if not left:
            return Step(self.stop, self.stop)
        # Both ways: after every other layer what follows is launched before the answer.
        return Step(left[0], left[1] if at % 2 and len(left) > 1 else left[0])

    def _best_step(self, at: int, rows: int, tokens: int, level: int) -> Step:
        there = self._any_stay(at, rows)
        least, looks = self._rest(at, there, level)
        best = Step(self.stop, self.stop, looks)
        smallest = min(self.clock.layer(number) for number in range(level, len(self.levels)))
        if self.by_device and least * (1 - smallest / self.clock.layer(level)) <= 2 * self.costs.split:
            return best  # the device ends the batch, and moves save less than any look of the host costs
        least *= 1 - WORTH
        tests = list(there)
        for look, acts in [*zip(tests, tests, strict=True), *pairwise(tests)]:
            meanwhile = (acts - look) * self.clock.layer(level)
            wait = max(self.costs.split, self.costs.look - meanwhile) + (self.costs.split if meanwhile else 0.0)
            time = (acts - at) * self.clock.layer(level) + wait
            if there[look] > 0:
                # Of batches of which any row is left.
                stay = self.traffic.staying(look, at) / there[look]
                time += there[look] * self._moved_rest(acts, round(rows * stay), round(tokens * stay), level)
            if time < least:
                least, best = time, Step(look, acts)
        return best

    def _moved_rest(self, at: int, rows: int, tokens: int, level: int) -> float:
        """Return the milliseconds of what is left, the move to a better level included."""
        better = self._better_level(at, rows, tokens, level)
        move = self.costs.move if better != level else 0.0
        return move + self._rest(at, self._any_stay(at, rows), better)[0]

    def _any_stay(self, at: int, rows: int) -> dict[int, float]:
        """Return how often any of the rows that are there after `at` is left, by the later tests."""
        staying = self.traffic.staying
        return {layer: 1 - (1 - staying(layer, at)) ** rows for layer in self.tests if layer > at}

    def _rest(self, at: int, there: dict[int, float], level: int) -> tuple[float, tuple[int, ...]]:
        """Return the milliseconds of what is left if the host looks no more, and where the device then looks."""
        layer, look = self.clock.layer(level), self.costs.device_look
        least = (self.stop - at) * layer
        best: tuple[int, ...] = ()
        for looks in choices_alone(self.tests, at) if self.by_device else ():
            layers = looks[0] - at + sum(there[at] * (to - at) for at, to in pairwise([*looks, self.stop]))
            time = layers * layer + (1 + sum(there[reached] for reached in looks[:-1])) * look
            if time < least * 0.999:  # looks that almost no batch gets to make the graph larger, no more
                least, best = time, looks
        return least, best

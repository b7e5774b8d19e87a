"""When the host looks whether a batch is done or may shrink: only where that is likely to save time.

What leaves where is decided on the device, at every layer that the plan tests, whatever the host does: this
moves time only, never an exit. Pure functions of counts and milliseconds.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise

# Of a batch's exits, the share that older batches lose.
FORGETTING = 0.05
# Before anything is measured.
LAYER_MS = 0.05
# Batches after which answers are computed again: the host has some microseconds a layer, no more.
REMEMBERED = 64


@dataclass(frozen=True)
class Costs:
    """The milliseconds that a look or a move costs; `GraphEncoder.measure_costs` measures them on the machine.

    Until then, what mixed batches lost by both on an H200 (docs/log).

    look: from the end of a stretch to the start of the next one when the host looks in between.
    move: moving rows to a smaller level.
    device_look: each look of the device itself, reached or not.
    """

    look: float = 0.045
    move: float = 0.03
    device_look: float = 0.004


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

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._sorted: list[list[float]] = [[] for _ in tokens]

    def wants(self, level: int) -> bool:
        return len(self._sorted[level]) < 9

    def note(self, level: int, milliseconds: float) -> None:
        insort(self._sorted[level], milliseconds)

    def layer(self, level: int) -> float:
        times = self._sorted[level]
        if times:
            return times[len(times) // 2]
        if level == 0:
            return LAYER_MS
        return self.layer(0) * self._tokens[level] / self._tokens[0]


def choices_alone(tests: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the tests that the device may look after by itself: any run of them.

    Every choice is a graph of its own, so they are few enough to be captured beforehand.
    """
    return [tuple(tests[first:end]) for first, end in combinations(range(len(tests) + 1), 2)]


@dataclass
class Schedule:
    """Where to look, for one bucket and one plan.

    tests: the layers after which rows may leave.
    stop: the last layer.
    levels: (rows, tokens) of the bucket's levels.
    costs: of looks and moves.
    """

    tests: Sequence[int]
    stop: int
    levels: Sequence[tuple[int, int]]
    traffic: Traffic
    clock: Clock
    costs: Costs = Costs()
    always: bool = False
    _batches: int = 0
    _answers: dict[tuple[int, ...], int] = field(default_factory=dict)
    _alone: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a batch: now and then traffic and clock are asked again."""
        if self.always or self._batches % REMEMBERED == 0:
            self._answers.clear()
            self._alone.clear()
        self._batches += 1

    def next_look(self, at: int, rows: int, tokens: int, level: int) -> int:
        """Return the next tested layer where looking is likely to pay; `stop` if none is.

        Args:
            at: the layer that is reached, 0 for none.
            rows, tokens: that are there.
            level: where they lie.
        """
        # By sixteenths of the bucket: batches of about as many tokens then share an answer.
        step = max(1, self.levels[0][1] // 16)
        question = (at, rows, math.ceil(tokens / step) * step, level)
        if question not in self._answers:
            self._answers[question] = self._next_look(*question)
        return self._answers[question]

    def looks_alone(self, rows: int) -> tuple[int, ...] | None:
        """Return the layers at which the device looks by itself; None where the host should take part.

        The device can end a batch, but only the host moves rows to a smaller level, or knows that no look
        pays: it takes part where the best of its looks saves more than all of the device's.
        """
        if rows not in self._alone:
            gone = {layer: self._all_gone(layer, 0, rows) for layer in self.tests}
            choices = ((self._saved_alone(looks, gone), looks) for looks in choices_alone(self.tests))
            saved, looks = max(choices, default=(0.0, ()))
            tokens = self.levels[0][1]
            best_look = max((self._gain(layer, 0, rows, tokens, 0) for layer in self.tests), default=0.0)
            self._alone[rows] = looks if saved > 0 and best_look - self.costs.look <= saved else None
        return self._alone[rows]

    def looks_behind(self, layer: int, at: int, rows: int, level: int) -> bool:
        """Decide to launch what follows a look at `layer` before it is answered.

        The device then never waits for the host, but computes a layer in vain if all rows are gone.
        """
        done = self._all_gone(layer, at, rows)
        return done * self.clock.layer(level) < (1 - done) * self.costs.look

    def better_level(self, at: int, rows: int, tokens: int, level: int) -> int:
        """Return the level that rows should move to for what is left, or the one where they are."""
        stay = (self.stop - at) * self.clock.layer(level)
        best, least = level, math.inf if self.always else stay
        for number, (most_rows, most_tokens) in enumerate(self.levels):
            if number > level and most_rows >= rows and most_tokens >= tokens:
                time = self.costs.move + (self.stop - at) * self.clock.layer(number)
                if time < least:
                    best, least = number, time
        return best

    def _next_look(self, at: int, rows: int, tokens: int, level: int) -> int:
        for layer in self.tests:
            if layer > at and (self.always or self._gain(layer, at, rows, tokens, level) > self.costs.look):
                return layer
        return self.stop

    def _all_gone(self, layer: int, at: int, rows: int) -> float:
        return float((1 - self.traffic.staying(layer, at)) ** rows)

    def _gain(self, layer: int, at: int, rows: int, tokens: int, level: int) -> float:
        """Milliseconds that looking at a layer saves on average: layers after the last exit, and rows."""
        return self._ending(layer, at, rows, level) + self._moving(layer, at, rows, tokens, level)

    def _ending(self, layer: int, at: int, rows: int, level: int) -> float:
        """Milliseconds saved on average by computing nothing more after a layer, if no row stays."""
        return self._all_gone(layer, at, rows) * (self.stop - layer) * self.clock.layer(level)

    def _saved_alone(self, looks: Sequence[int], gone: dict[int, float]) -> float:
        """Milliseconds that looks save on average, less their cost; `gone`: how often no row is left, by layer."""
        left_out = sum(gone[at] * (to - at) for at, to in pairwise([*looks, self.stop]))
        return left_out * self.clock.layer(0) - len(looks) * self.costs.device_look

    def _moving(self, layer: int, at: int, rows: int, tokens: int, level: int) -> float:
        """Milliseconds saved on average by moving the rows that stay after a layer, if any does."""
        share = self.traffic.staying(layer, at)
        smaller = self.better_level(layer, round(rows * share), round(tokens * share), level)
        if smaller == level:
            return 0.0
        saved = (self.stop - layer) * (self.clock.layer(level) - self.clock.layer(smaller)) - self.costs.move
        return (1 - self._all_gone(layer, at, rows)) * max(saved, 0.0)

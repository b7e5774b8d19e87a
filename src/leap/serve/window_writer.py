"""The open window of one process: its counts, and the file that they are written to.

The writer outlives its `Monitor` by one write, so it refers to neither the monitor nor the model.
"""

import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from leap.core.files import write_json
from leap.serve.score_shift import BINS, ENOUGH, LIMIT, ScoreReference, stability_index
from leap.serve.shadow import Reservoir
from leap.serve.window import Mean, Window

logger = logging.getLogger(__name__)

# Window files of all processes that stay in the folder; the oldest go first.
KEEP = 1000
WINDOW_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{6}Z-.+-\d+\.json")
# A caller may send a rule of its own with every request; beyond so many they are counted together.
MOST_RULES = 50


class WindowWriter:
    """Counts batches under a lock, and writes what it counted in time."""

    def __init__(
        self,
        folder: Path,
        model: dict[str, Any],
        width: int,
        reference: ScoreReference | None,
        *,
        shadow_rate: float,
        window_seconds: float,
        write_seconds: float,
        expected_layers: float | None,
        seed: int | None,
    ) -> None:
        """Start the first window; the arguments are `Monitor`'s.

        Args:
            model: checkpoint, depth and exit_rule, as a window file names them.
            width: of the vectors.
            reference: the scores that calibration saw, if it did.
            window_seconds: a window's length.
            write_seconds: the longest time that a count stays in memory only.
        """
        self.folder = folder
        self._model, self._width, self._reference = model, width, reference
        self._rate, self._expected = shadow_rate, expected_layers
        self._window_seconds, self._write_seconds = window_seconds, write_seconds
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()  # a finalizer may run in the middle of a call
        self._timer: threading.Timer | None = None
        self._can_write = True
        self._begin()

    def sample(self, rows: int) -> list[bool]:
        with self._lock:
            chosen: list[bool] = (self._random.random(rows) < self._rate).tolist()
        return chosen

    def record(
        self,
        rule: str,
        patience: int | None,
        exits: Tensor,
        similarities: Mapping[int, Tensor],
        exited: Tensor | None,
        layers: Tensor | None,
    ) -> None:
        """As `Monitor.record`, the policy as its words and the k of its similarity."""
        counts = torch.bincount(exits.cpu(), minlength=len(self._exits) + 1)[1:].numpy()
        sums = dict(zip(similarities, _sums(list(similarities.values())), strict=True))
        near = []
        if exited is not None and layers is not None:
            near = _sums([F.cosine_similarity(each, layers[-1], dim=-1) for each in (exited, *layers[1:])])
        scores = self._scores(patience, similarities, len(exits))
        with self._lock:
            self._leave_to_parent()
            self._rules[rule if rule in self._rules or len(self._rules) < MOST_RULES else "other"] += len(exits)
            self._exits += counts
            for layer, (number, total, _) in sums.items():
                self._similarity[:, layer - 1] += (number, total)
            for place, (number, total, _) in enumerate(near):
                self._shadow[:, place] += (number, total)
            self._not_finite += sum(rest for *_, rest in (*sums.values(), *near))
            if scores is not None:
                self._score_counts += scores
                self._warn_if_shifted()
            if exited is not None and layers is not None:
                self._reservoir.add(exited, layers[-1])
            self._write_in_time()

    def bypass(self, rows: int) -> None:
        with self._lock:
            self._leave_to_parent()
            self._bypassed += rows
            self._write_in_time()

    def window(self) -> Window:
        with self._lock:
            return self._window()

    def flush(self) -> None:
        with self._lock:
            self._write()

    def close(self) -> None:
        """Write what is left; nothing is counted any more."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if os.getpid() == self._process:
                self._write()

    def _begin(self) -> None:
        depth = int(self._model["depth"])
        self._process = os.getpid()
        self._started = datetime.now(UTC)
        self._clock = time.monotonic()
        self._write_at = self._clock
        self._dirty = self._warned = False
        self._rules: Counter[str] = Counter()
        self._exits = np.zeros(depth, dtype=np.int64)
        self._bypassed = self._not_finite = 0
        # Rows: how many, and their sum. The shadow's first column is the exited vectors, then the layers.
        self._similarity = np.zeros((2, depth))
        self._shadow = np.zeros((2, depth + 1))
        # Rows: what was counted, and what calibration would have had.
        self._score_counts = np.zeros((2, BINS))
        self._reservoir = Reservoir(self._width, self._random)

    def _leave_to_parent(self) -> None:
        """Begin again in a forked process: its parent writes the counts of before."""
        if os.getpid() != self._process:
            self._begin()

    def _scores(
        self, patience: int | None, similarities: Mapping[int, Tensor], rows: int
    ) -> np.ndarray[Any, Any] | None:
        """The scores of the first check in bins, [2, 10], if all rows were there and calibration knows it."""
        first = min(similarities, default=0)
        if self._reference is None or patience != self._reference.patience or not first:
            return None
        if len(similarities[first]) != rows:
            return None
        counted = self._reference.counts(first, similarities[first])
        return None if counted is None else np.stack(counted)

    def _warn_if_shifted(self) -> None:
        if self._warned or self._score_counts[0].sum() < ENOUGH:
            return
        shift = stability_index(*self._score_counts)
        if shift is not None and shift > LIMIT:
            self._warned = True
            logger.warning(
                "monitoring: these sentences score unlike those of the calibration (population stability index "
                "%.2f, limit %g): its thresholds promise nothing here. Calibrate on sentences like these, or "
                "serve with strategy full",
                *(shift, LIMIT),
            )

    def _window(self) -> Window:
        return Window(
            started=self._started,
            # By the clock that nobody sets: a window never ends before it starts.
            ended=self._started + timedelta(seconds=time.monotonic() - self._clock),
            model=self._model,
            rules=dict(self._rules),
            exits=tuple(self._exits.tolist()),
            bypassed=self._bypassed,
            not_finite=self._not_finite,
            similarity=tuple(_mean(*column) for column in self._similarity.T),
            shadowed=_mean(*self._shadow[:, 0]),
            to_final=tuple(_mean(*column) for column in self._shadow[:, 1:].T),
            agreement=self._reservoir.agreement(),
            scores=tuple(self._score_counts[0].tolist()),
            calibrated_scores=tuple(self._score_counts[1].tolist()),
            expected_layers=self._expected,
        )

    def _write_in_time(self) -> None:
        """Write now what is due, else see to it that it is written later, with traffic or without."""
        self._dirty = True
        now = time.monotonic()
        if now - self._clock >= self._window_seconds:
            self._write()
            self._begin()
            self._remove_oldest()
        elif now >= self._write_at:
            self._write()
        elif self._timer is None or not self._timer.is_alive():  # a fork leaves timers behind
            self._timer = threading.Timer(self._write_at - now, self._write_late)
            self._timer.daemon = True
            self._timer.start()

    def _write_late(self) -> None:
        with self._lock:
            self._timer = None
            if self._dirty and os.getpid() == self._process:
                self._write()

    def _write(self) -> None:
        self._write_at = time.monotonic() + self._write_seconds
        if not self._exits.any() and not self._bypassed:
            return
        name = f"{self._started:%Y-%m-%dT%H%M%S.%f}Z-{socket.gethostname()}-{self._process}.json"
        try:
            write_json(self.folder / name, self._window().as_json())
        except OSError as error:
            if self._can_write:
                logger.warning("monitoring: %s; serving goes on, the window is kept in memory", error)
            self._can_write = False
        else:
            self._can_write = True
            self._dirty = False

    def _remove_oldest(self) -> None:
        windows = sorted(file for file in self.folder.glob("*.json") if WINDOW_NAME.fullmatch(file.name))
        for file in windows[:-KEEP]:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("monitoring: an old window stays: %s", error)


def _sums(groups: Sequence[Tensor]) -> list[tuple[int, float, int]]:
    """Of each group how many values are finite, their sum, and how many are not; one copy from a device."""
    if not groups:
        return []
    values = torch.cat(list(groups)).double().cpu().numpy()
    ends = np.cumsum([len(group) for group in groups])
    return [_sum(part) for part in np.split(values, ends[:-1])]


def _sum(values: np.ndarray[Any, Any]) -> tuple[int, float, int]:
    finite = values[np.isfinite(values)]
    return len(finite), float(finite.sum()), len(values) - len(finite)


def _mean(number: float, total: float) -> Mean:
    return Mean(int(number), float(total / number) if number else None)
